//! Numbers and tables in a form for people.

use crate::escape::one_line;
use crate::fit::{width, wrap};

/// A box of labels and values. Each value is on one line, or on as many as it needs if the box may be `columns` wide.
pub fn boxed(title: &str, rows: &[(&str, String)], columns: Option<usize>) -> String {
    /// Border and space on each side, and the space between label and value.
    const AROUND: usize = 7;
    let label = rows.iter().map(|(label, _)| width(label)).max().unwrap_or(0);
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(label + AROUND));
    let rows: Vec<(&str, String)> =
        rows.iter().map(|(label, value)| (*label, wrap(&one_line(value), room, 0))).collect();
    let lines = rows.iter().flat_map(|(label, value)| {
        let labels = std::iter::once(*label).chain(std::iter::repeat(""));
        labels.zip(value.lines())
    });
    let lines: Vec<(&str, &str)> = lines.collect();
    let value = lines.iter().map(|(_, line)| width(line)).max().unwrap_or(0);
    let inside = (label + value + 3).max(width(title) + 1);
    let mut text = format!("┌─ {title} {}┐\n", "─".repeat(inside - width(title) - 1));
    for (name, line) in lines {
        let after = " ".repeat(inside - label - 3 - width(line));
        text += &format!("│ {name:label$}   {line}{after} │\n");
    }
    text + &format!("└{}┘", "─".repeat(inside + 2))
}

/// A time in seconds for people, such as `6 s`, `3 min 20 s` or `2 h 5 min`.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |large: u64, unit: &str, small: u64, part: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {part}"),
    };
    match seconds {
        0 => "less than 1 s".into(),
        1..60 => format!("{seconds} s"),
        60..3600 => two(minutes, "min", seconds % 60, "s"),
        3600..86400 => two(hours, "h", minutes % 60, "min"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

/// A step's time, given in milliseconds: with about three digits.
pub fn step_time(milliseconds: f64) -> String {
    match milliseconds {
        10_000.0.. => format!("{:.1} s", milliseconds / 1e3),
        100.0.. => format!("{milliseconds:.0} ms"),
        10.0.. => format!("{milliseconds:.1} ms"),
        _ => format!("{milliseconds:.2} ms"),
    }
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

/// A number of things, in the singular for one: `1 rank`, `2 ranks`. The plural of `noun` ends in an s, after ch in es.
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
    fn a_box_is_as_wide_as_its_longest_line_and_no_wider_than_the_terminal() {
        let rows =
            [("parameters", "12".into()), ("steps", "a longer value of several 漢字 words, and /a/path/too".into())];
        let text = boxed("plan", &rows, None);
        assert!(text.contains("parameters   12 ") && text.contains("steps        a longer value"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
        for columns in [None, Some(80), Some(60), Some(40)] {
            let text = boxed("plan", &rows, columns);
            let widths: Vec<usize> = text.lines().map(width).collect();
            assert!(widths.iter().all(|width| *width == widths[0] && *width <= columns.unwrap_or(100)), "{text}");
        }
        let narrow = boxed("plan", &rows, Some(40));
        assert!(narrow.contains("│ steps        a longer value of       │"), "{narrow}");
        assert!(narrow.contains("│              several 漢字 words, and │"), "{narrow}");
    }

    #[test]
    fn times_have_one_or_two_units() {
        let cases =
            [(0.2, "less than 1 s"), (5.6, "6 s"), (59.7, "1 min"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min")];
        for (seconds, words) in cases.into_iter().chain([(3600.0, "1 h"), (300_000.0, "3 d 11 h")]) {
            assert_eq!(duration(seconds), words);
        }
    }

    #[test]
    fn a_step_s_time_has_about_three_digits() {
        assert_eq!([0.302, 62.34, 131.4, 12_345.0].map(step_time), ["0.30 ms", "62.3 ms", "131 ms", "12.3 s"]);
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
