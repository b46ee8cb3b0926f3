//! The few colours of lines: errors red, notices yellow, a step's loss bold.

use std::ops::Range;

use anstyle::{AnsiColor, Style};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTICE: Style = AnsiColor::Yellow.on_default();
const LOSS: Style = Style::new().bold();

/// Whether a line tells of an error that ends a run.
pub(super) fn is_error(line: &str) -> bool {
    line.starts_with("error: ") || line.starts_with("error on rank ")
}

/// The line with the one part that stands out, if any.
pub(super) fn highlighted(line: &str) -> String {
    match accent(line) {
        Some((part, style)) => {
            format!("{}{style}{}{style:#}{}", &line[..part.start], &line[part.clone()], &line[part.end..])
        }
        None => line.into(),
    }
}

fn accent(line: &str) -> Option<(Range<usize>, Style)> {
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    let label = |style| line.find(':').map(|end| (0..end + 1, style));
    if is_error(line) {
        label(ERROR)
    } else if begins(&["notice: ", "WARNING: "]) {
        label(NOTICE)
    } else if begins(&["FAIL "]) {
        Some((0..4, ERROR))
    } else if begins(&["lacks "]) {
        Some((0..5, NOTICE))
    } else if begins(&["step ", "done: "]) {
        let at = line.find("loss ")?;
        let number = &line[at + 5..];
        let end = number.find([' ', ',', '\n']).unwrap_or(number.len());
        Some((at..at + 5 + end, LOSS))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_of_a_line_stands_out_and_all_others_are_as_they_were() {
        let red = "\u{1b}[1m\u{1b}[31m";
        assert_eq!(highlighted("error: no. Rule: x"), format!("{red}error:\u{1b}[0m no. Rule: x"));
        assert_eq!(highlighted("error on rank 1: no"), format!("{red}error on rank 1:\u{1b}[0m no"));
        assert_eq!(highlighted("notice: a: b"), "\u{1b}[33mnotice:\u{1b}[0m a: b");
        assert_eq!(highlighted("step 1/2  loss 5.1  norm 1"), "step 1/2  \u{1b}[1mloss 5.1\u{1b}[0m  norm 1");
        assert_eq!(highlighted("done: loss 5.1, in 3 s"), "done: \u{1b}[1mloss 5.1\u{1b}[0m, in 3 s");
        for plain in ["errors are listed", "graphs: 3 graphs", "step 2: the update was skipped", ""] {
            assert_eq!(highlighted(plain), plain);
        }
    }
}
