//! Text from files, made safe for terminals, logs and pages.

/// The longest message of an error, in characters.
const LONGEST: usize = 8192;

/// The text on one line: control characters, line breaks among them, and characters that reorder text become escapes such
/// as `\u{1b}`. A very long text is cut.
pub fn one_line(text: &str) -> String {
    let all = text.chars().count();
    if all <= LONGEST {
        return escaped(text, |_| false);
    }
    let end = text.char_indices().nth(LONGEST).map_or(text.len(), |(at, _)| at);
    format!("{} ... ({} more characters)", escaped(&text[..end], |_| false), all - LONGEST)
}

/// The text with line breaks and tabs kept. Other control characters, and characters that reorder text, become escapes:
/// neither a terminal nor a page acts on the text.
pub fn visible(text: &str) -> String {
    escaped(text, |character| matches!(character, '\n' | '\t'))
}

/// Whether a terminal shows all of the text and acts on no character.
pub fn is_plain(text: &str) -> bool {
    !text.contains(needs_escape)
}

/// The text as a basic string of TOML, in quotes. What a terminal would act on is escaped, so that it is shown as it is read.
pub fn toml_string(text: &str) -> String {
    let mut shown = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => shown.extend(['\\', character]),
            _ if needs_escape(character) && u32::from(character) > 0xffff => {
                shown.push_str(&format!("\\U{:08X}", u32::from(character)));
            }
            _ if needs_escape(character) => shown.push_str(&format!("\\u{:04X}", u32::from(character))),
            _ => shown.push(character),
        }
    }
    shown.push('"');
    shown
}

/// The texts as an array of TOML.
pub fn toml_strings(texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let each: Vec<String> = texts.into_iter().map(|text| toml_string(text.as_ref())).collect();
    format!("[{}]", each.join(", "))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match needs_escape(character) && !stays(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

/// Control characters, characters that change the direction of the text behind (Unicode Standard Annex 9), characters
/// that nobody sees, and characters that are line breaks to some programs.
fn needs_escape(character: char) -> bool {
    let reorders = matches!(character, '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    // Marks of direction are among those without width. A soft hyphen is one too, and so are tags, a second alphabet.
    let is_unseen = matches!(
        character,
        '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    );
    character.is_control() || reorders || is_unseen || matches!(character, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_shown_instead() {
        assert_eq!(one_line("a\u{1b}[2Jb\nc\td é ┌"), "a\\u{1b}[2Jb\\nc\\td é ┌");
        assert_eq!(one_line("x\u{202e}y\u{9b}31m\u{7f}"), "x\\u{202e}y\\u{9b}31m\\u{7f}");
        assert_eq!(visible("a\u{1b}]0;b\nc\td\r"), "a\\u{1b}]0;b\nc\td\\r");
        assert_eq!(one_line("a\u{200b}b\u{feff}\u{ad}c\u{2060}"), "a\\u{200b}b\\u{feff}\\u{ad}c\\u{2060}");
        assert_eq!(visible("\u{200d}\n\u{e0041}"), "\\u{200d}\n\\u{e0041}");
        assert!(is_plain("d é ┌") && ["\n", "\t", "x\u{202e}y", "\u{7f}"].iter().all(|text| !is_plain(text)));
    }

    #[test]
    fn strings_of_toml_have_its_escapes_alone() {
        assert_eq!(toml_string("a\u{1b}\"\\\n\u{202e}é'\u{7f}"), r#""a\u001B\"\\\u000A\u202Eé'\u007F""#);
        assert_eq!(toml_string("\u{feff}\u{e0041}"), r#""\uFEFF\U000E0041""#);
        assert_eq!(toml_strings(["a", "\u{2028}"]), r#"["a", "\u2028"]"#);
    }

    #[test]
    fn a_very_long_text_is_cut_between_characters() {
        let text = one_line(&"é".repeat(LONGEST + 7));
        assert!(text.ends_with("é ... (7 more characters)") && text.chars().count() < LONGEST + 40);
    }
}
