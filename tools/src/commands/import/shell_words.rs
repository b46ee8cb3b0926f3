//! The words of a shell script: commands with their quotes and expansions, as bash divides them. Nothing is executed.

/// A command of a script.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Line {
    /// The number of the command's first line.
    pub(super) number: usize,
    /// The line runs only if the command before it succeeds, or fails: `&&`, `||`.
    pub(super) is_conditional: bool,
    pub(super) words: Vec<RawWord>,
}

/// A word of a script before expansion.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RawWord {
    pub(super) fragments: Vec<Fragment>,
    /// The words between the brackets of `NAME=(...)`.
    pub(super) list: Option<Vec<RawWord>>,
}

/// A fragment of a word.
#[derive(Debug, PartialEq)]
pub(super) enum Fragment {
    /// Text as written; whether the text was quoted.
    Text(String, bool),
    /// The inner of `$NAME` or `${...}`; whether the variable was quoted.
    Variable(String, bool),
    /// The inner of `$((...))`.
    Sum(String),
    /// The output of a program, which is not known: as it is written.
    Output(String),
}

impl RawWord {
    /// The word, if plain text without quotes and expansions.
    pub(super) fn bare(&self) -> Option<&str> {
        match (&self.fragments[..], &self.list) {
            ([Fragment::Text(text, false)], None) => Some(text),
            _ => None,
        }
    }
}

/// The commands of a script, in order.
pub(super) fn lines(script: &str) -> Vec<Line> {
    let mut reader = Reader { rest: script, number: 1 };
    let (mut all, mut is_conditional) = (Vec::new(), false);
    while let Some((line, next_is)) = reader.line(is_conditional) {
        is_conditional = next_is;
        if !line.words.is_empty() {
            all.push(line);
        }
    }
    all
}

struct Reader<'s> {
    rest: &'s str,
    number: usize,
}

impl<'s> Reader<'s> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.rest = &self.rest[character.len_utf8()..];
        self.number += usize::from(character == '\n');
        Some(character)
    }

    /// Skips a text that is next.
    fn skip(&mut self, text: &str) {
        for _ in text.chars() {
            self.next();
        }
    }

    fn takes(&mut self, text: &str) -> bool {
        let is_next = self.rest.starts_with(text);
        if is_next {
            self.skip(text);
        }
        is_next
    }

    /// Skips spaces, lines that go on, and comments.
    fn skip_blanks(&mut self) {
        while self.takes("\\\n") || self.takes("\\\r\n") || self.peek().is_some_and(|c| " \t\r".contains(c)) {
            if self.peek().is_some_and(|c| " \t\r".contains(c)) {
                self.next();
            }
        }
        if self.peek() == Some('#') {
            while self.peek().is_some_and(|c| c != '\n') {
                self.next();
            }
        }
    }

    /// The next command, which may have no words, and whether the command after is conditional; `None` at the end.
    fn line(&mut self, is_conditional: bool) -> Option<(Line, bool)> {
        self.skip_blanks();
        self.peek()?;
        let mut line = Line { number: self.number, is_conditional, words: Vec::new() };
        loop {
            self.skip_blanks();
            match self.peek() {
                None => return Some((line, false)),
                Some('&' | '|') if self.takes("&&") || self.takes("||") => {
                    while self.peek().is_some_and(char::is_whitespace) {
                        self.next();
                    }
                    return Some((line, true));
                }
                Some('\n' | ';' | '&' | '|' | '(' | ')') => {
                    self.next();
                    return Some((line, false));
                }
                Some('<' | '>') => self.skip_redirection(),
                Some(_) => {
                    let word = self.word();
                    // The number of a stream belongs to its redirection: 2>&1.
                    let is_stream = word.bare().is_some_and(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                    if !(is_stream && self.peek().is_some_and(|c| "<>".contains(c))) {
                        line.words.push(word);
                    }
                }
            }
        }
    }

    /// Skips `>file`, `2>&1`, or the text of `<<END`.
    fn skip_redirection(&mut self) {
        let here = self.takes("<<") && !self.takes("<");
        while self.peek().is_some_and(|c| "<>&-".contains(c)) {
            self.next();
        }
        self.skip_blanks();
        let target = self.word();
        if let (true, Some(Fragment::Text(end, _))) = (here, target.fragments.first()) {
            while let Some(line) = self.rest.lines().next() {
                self.skip(line);
                // The command ends where the text does.
                if line.trim() == end || self.next().is_none() {
                    return;
                }
            }
        }
    }

    fn word(&mut self) -> RawWord {
        let mut word = RawWord::default();
        while let Some(character) = self.peek() {
            match character {
                '(' if word
                    .fragments
                    .last()
                    .is_some_and(|fragment| matches!(fragment, Fragment::Text(text, false) if text.ends_with('='))) =>
                {
                    self.next();
                    word.list = Some(self.list());
                    return word;
                }
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => return word,
                '\'' => {
                    self.next();
                    let text = self.until("'");
                    word.fragments.push(Fragment::Text(text, true));
                }
                '"' => {
                    self.next();
                    self.quoted(&mut word);
                }
                _ => self.piece(&mut word, false),
            }
        }
        word
    }

    /// The words up to a closing bracket.
    fn list(&mut self) -> Vec<RawWord> {
        let mut words = Vec::new();
        loop {
            self.skip_blanks();
            match self.peek() {
                None => return words,
                Some(')') => {
                    self.next();
                    return words;
                }
                Some('\n' | ';' | '&' | '|' | '(' | '<' | '>') => {
                    self.next();
                }
                Some(_) => words.push(self.word()),
            }
        }
    }

    /// The rest of a word in double quotes.
    fn quoted(&mut self, word: &mut RawWord) {
        word.fragments.push(Fragment::Text(String::new(), true));
        while let Some(character) = self.peek() {
            if character == '"' {
                self.next();
                return;
            }
            self.piece(word, true);
        }
    }

    /// One character, or one expansion.
    fn piece(&mut self, word: &mut RawWord, quoted: bool) {
        match self.next() {
            Some('\\') => match self.next() {
                Some('\n') | None => {}
                // In double quotes a backslash stays before other characters.
                Some(next) if quoted && !"$`\"\\".contains(next) => {
                    push(word, '\\', quoted);
                    push(word, next, quoted);
                }
                // An escaped character is as if quoted.
                Some(next) => push(word, next, true),
            },
            Some('`') => {
                let inner = self.until("`");
                word.fragments.push(Fragment::Output(format!("`{inner}`")));
            }
            Some('$') => self.expansion(word, quoted),
            Some(character) => push(word, character, quoted),
            None => {}
        }
    }

    fn expansion(&mut self, word: &mut RawWord, quoted: bool) {
        if self.takes("((") {
            let inner = self.until_closed('(', ')');
            self.takes(")");
            word.fragments.push(Fragment::Sum(inner));
        } else if self.takes("(") {
            let inner = self.until_closed('(', ')');
            word.fragments.push(Fragment::Output(format!("$({inner})")));
        } else if self.takes("{") {
            let inner = self.until_closed('{', '}');
            word.fragments.push(Fragment::Variable(inner, quoted));
        } else {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = match self.peek() {
                Some(c) if c.is_ascii_digit() || "@*#?$!".contains(c) => 1,
                _ => self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len()),
            };
            let (name, rest) = self.rest.split_at(end);
            self.rest = rest;
            match name {
                "" => push(word, '$', quoted),
                name => word.fragments.push(Fragment::Variable(name.into(), quoted)),
            }
        }
    }

    /// The text up to `end`, which is skipped.
    fn until(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !self.takes(end) {
            let Some(character) = self.next() else { break };
            text.push(character);
        }
        text
    }

    /// The text up to the bracket that closes the bracket before the text.
    fn until_closed(&mut self, opens: char, closes: char) -> String {
        let (mut text, mut depth) = (String::new(), 1);
        while let Some(character) = self.next() {
            depth += isize::from(character == opens) - isize::from(character == closes);
            if depth == 0 {
                break;
            }
            text.push(character);
        }
        text
    }
}

fn push(word: &mut RawWord, character: char, quoted: bool) {
    match word.fragments.last_mut() {
        Some(Fragment::Text(text, same)) if *same == quoted => text.push(character),
        _ => word.fragments.push(Fragment::Text(character.into(), quoted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_divided_into_commands_and_words_as_bash_does_it() {
        let script = "#!/bin/bash\nA=1; B=\"x y\" # c\nARGS=(\n    --lr 1e-4 # rate\n    --save 'a b'\n)\nrun \\\n  $A ${B:-d} \
                      2>&1 >log && end \"$((1+2))\" `pwd` $(date +%s)x\ncat <<END\n--not words\nEND\nlast\\ word$";
        let all = lines(script);
        let numbers: Vec<usize> = all.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [2, 2, 3, 7, 8, 9, 12], "{all:?}");
        assert_eq!(all[0].words[0].bare(), Some("A=1"));
        let conditional: Vec<bool> = all.iter().map(|line| line.is_conditional).collect();
        assert_eq!(conditional, [false, false, false, false, true, false, false]);
        assert_eq!(all[3].words.len(), 3);
        let list = all[2].words[0].list.as_ref().unwrap();
        let words: Vec<Option<&str>> = list.iter().map(RawWord::bare).collect();
        assert_eq!(words, [Some("--lr"), Some("1e-4"), Some("--save"), None]);
        assert_eq!(list[3].fragments, [Fragment::Text("a b".into(), true)]);
        let variable = |name: &str| Fragment::Variable(name.into(), false);
        assert_eq!(all[3].words[1].fragments, [variable("A")]);
        assert_eq!(all[3].words[2].fragments, [variable("B:-d")]);
        assert_eq!(all[4].words[1].fragments[1], Fragment::Sum("1+2".into()));
        assert_eq!(all[4].words[3].fragments[0], Fragment::Output("$(date +%s)".into()));
        assert_eq!(all[5].words.len(), 1, "{:?}", all[5]);
        assert_eq!(all[6].words.len(), 1, "{:?}", all[6]);
    }

    #[test]
    fn texts_that_are_cut_anywhere_are_read_to_their_end() {
        let script = "A=(\"$B\" ${C[@]}) x=$((1+(2))) 'q' `w` $(e) <<E\nt\nE\n\\\n${u";
        for end in 0..=script.len() {
            lines(&script[..end]);
        }
    }
}
