//! Numbers and tables as people read them.

use crate::escape::one_line;

/// A box of labels and values, each on one line.
pub fn boxed(title: &str, rows: &[(&str, String)]) -> String {
    let rows: Vec<(&str, String)> = rows.iter().map(|(label, value)| (*label, one_line(value))).collect();
    let label = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let value = rows.iter().map(|(_, value)| value.chars().count()).max().unwrap_or(0);
    let width = (label + value + 3).max(title.chars().count() + 1);
    let mut text = format!("┌─ {title} {}┐\n", "─".repeat(width - title.chars().count() - 1));
    for (name, content) in &rows {
        let line = format!("{name:label$}   {content}");
        text += &format!("│ {line:width$} │\n", width = width);
    }
    text + &format!("└{}┘", "─".repeat(width + 2))
}

/// A number with a unit, such as `1.24 M` or `3.5 MiB`.
pub fn short(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let text = if unit == 0 { format!("{value}") } else { format!("{value:.2}") };
    format!("{text} {}", units[unit]).trim_end().into()
}

/// Bytes for people.
pub fn bytes(value: usize) -> String {
    short(value as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// A count for people.
pub fn count(value: f64) -> String {
    short(value, 1000.0, &["", "k", "M", "G", "T"])
}

/// So many of something, in the singular where it is one: `1 rank`, `2 ranks`. The plural of `noun` ends in an s, after ch in es.
pub fn counted(number: usize, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_as_wide_as_its_longest_line() {
        let text = boxed("plan", &[("parameters", "12".into()), ("steps", "a longer value".into())]);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
        assert!(text.contains("parameters   12") && text.contains("steps        a longer value"), "{text}");
    }

    #[test]
    fn one_thing_is_in_the_singular() {
        let rank = |number| counted(number, "rank");
        assert_eq!([rank(0), rank(1), rank(2), rank(21)], ["0 ranks", "1 rank", "2 ranks", "21 ranks"]);
        assert_eq!([counted(1, "batch"), counted(2, "batch")], ["1 batch", "2 batches"]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([count(999.0), count(124_439_808.0), bytes(1536), bytes(7)], ["999", "124.44 M", "1.50 KiB", "7 B"]);
    }
}
