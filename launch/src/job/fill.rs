//! Text of templates and shells.

/// A template with its `{names}` replaced. The replacing text is not searched again, so it may hold braces.
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, from)) = rest.split_once('{') {
        text.push_str(before);
        let named = values.iter().find_map(|(name, value)| Some((value, from.strip_prefix(name)?.strip_prefix('}')?)));
        rest = match named {
            Some((value, after)) => {
                text.push_str(value);
                after
            }
            None => {
                text.push('{');
                from
            }
        };
    }
    text + rest
}

/// The words as a shell command line.
pub(super) fn shell(words: &[impl AsRef<str>]) -> String {
    let words = words.iter().map(AsRef::as_ref);
    // Only a NUL cannot be quoted, and no argument of a process has one.
    let quoted = words.map(|word| shlex::try_quote(word).map_or_else(|_| word.to_string(), |word| word.into_owned()));
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_once_and_other_braces_stay() {
        let values = [("name", "{flags}"), ("flags", "{name}")];
        assert_eq!(fill("a {name}, {flags}; ${name[@]} {x} {", &values), "a {flags}, {name}; ${name[@]} {x} {");
    }

    #[test]
    fn words_that_a_shell_would_change_are_quoted() {
        assert_eq!(shell(&["a", "b c", "$d", ""]), "a 'b c' '$d' ''");
    }
}
