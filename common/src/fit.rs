//! Text that fits a number of terminal columns. Nothing is cut away: text that is too long continues on the next line.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The columns that a text without line breaks takes on a terminal. Characters may take none, one or two.
pub fn width(text: &str) -> usize {
    text.width()
}

/// A line, divided into lines that fit `columns`. It is divided at spaces. A word that is too long by itself, such as a
/// path, is divided after a slash or a comma, or in the middle. All lines but the first are indented.
pub fn wrap(line: &str, columns: usize, indent: usize) -> String {
    if width(line) <= columns {
        return line.into();
    }
    // Narrower than this nothing can be read.
    let columns = columns.max(indent + 8);
    let begin = format!("\n{}", " ".repeat(indent));
    let (mut text, mut at, mut spaces) = (String::new(), 0, 0);
    for word in line.split(' ') {
        let mut word = word;
        let is_first = text.is_empty();
        if !is_first && at > indent && at + spaces + width(word) > columns {
            text += &begin;
            (at, spaces) = (indent, 0);
        }
        if !word.is_empty() {
            text += &" ".repeat(spaces);
            (at, spaces) = (at + spaces, 0);
        }
        while at + width(word) > columns {
            let (piece, rest) = word.split_at(break_in(word, columns - at));
            text += piece;
            text += &begin;
            (word, at) = (rest, indent);
        }
        text += word;
        at += width(word);
        spaces += 1;
    }
    text
}

/// The place at which to divide a word if the first part may take so many columns: a byte index above 0.
fn break_in(word: &str, columns: usize) -> usize {
    let (mut taken, mut last, mut after_mark) = (0, 0, 0);
    for (at, character) in word.char_indices() {
        taken += character.width().unwrap_or(0);
        let end = at + character.len_utf8();
        if taken > columns {
            break;
        }
        last = end;
        if matches!(character, '/' | ',') {
            after_mark = end;
        }
    }
    let first = word.chars().next().map_or(0, char::len_utf8);
    // A mark near the beginning would leave most of the line empty.
    if after_mark * 2 > last { after_mark } else { last.max(first) }
}

/// The beginning of a text, no wider than `columns`.
pub(crate) fn cut(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let too_wide = |character: char| {
        taken += character.width().unwrap_or(0);
        taken > columns
    };
    &text[..text.find(too_wide).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_fits_and_all_words_are_there_in_order() {
        let long = "notice: /data/a-folder/of/many/parts/that/is/longer/than/any/terminal/is/wide/shard-0001.bin is \
                    read as tokens,  and  漢字漢字漢字 too";
        for columns in [20, 30, 47, 80] {
            let text = wrap(long, columns, 2);
            assert!(text.lines().all(|line| width(line) <= columns), "{columns}: {text}");
            assert!(text.lines().skip(1).all(|line| line.starts_with("  ")), "{text}");
            let bare = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(bare(&text), bare(long), "nothing is lost");
        }
    }

    #[test]
    fn lines_break_at_spaces_and_paths_after_a_slash() {
        assert_eq!(wrap("one two  three four", 10, 2), "one two\n  three\n  four");
        assert_eq!(wrap("/abcdef/ghijkl/mnopqr", 12, 0), "/abcdef/\nghijkl/\nmnopqr");
        assert_eq!(wrap("it fits", 7, 2), "it fits");
    }

    #[test]
    fn a_wide_character_counts_as_two_columns_and_is_never_divided() {
        assert_eq!(cut("ab漢字", 5), "ab漢");
        assert_eq!((width("漢字"), width("┌─ é")), (4, 4));
        assert_eq!(wrap("漢字漢字漢字", 9, 0), "漢字漢字\n漢字");
    }
}
