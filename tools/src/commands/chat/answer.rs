//! The text of an answer during the writing: it is complete when its end comes, and the end is not shown.

/// An answer so far.
pub(super) struct Answer<'e> {
    /// The text that ends an answer; empty if there is none.
    end: &'e str,
    /// The text that was shown.
    pub(super) shown: String,
    /// Text that may be the beginning of the end.
    held: String,
}

impl<'e> Answer<'e> {
    pub(super) fn new(end: &'e str) -> Answer<'e> {
        Answer { end, shown: String::new(), held: String::new() }
    }

    /// Adds text. Returns the part of the answer that can be shown now, and whether the answer is complete.
    pub(super) fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        let end = if self.end.is_empty() { None } else { self.held.find(self.end) };
        let shown = end.unwrap_or_else(|| {
            let is_begun = |at: &usize| self.held.get(*at..).is_some_and(|rest| self.end.starts_with(rest));
            (0..self.held.len()).find(is_begun).unwrap_or(self.held.len())
        });
        let rest = self.held.split_off(shown);
        let now = std::mem::replace(&mut self.held, rest);
        self.shown += &now;
        (now, end.is_some())
    }

    /// The text that was held back. Called if no more comes.
    pub(super) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        self.shown += &rest;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_however_it_arrives_and_never_shown() {
        for parts in [&["Hello<end>\n"][..], &["Hel", "lo<", "e", "nd>"], &["H", "ello", "<", "end", "> and more"]] {
            let mut answer = Answer::new("<end>");
            let ends: Vec<bool> = parts.iter().map(|part| answer.push(part).1).collect();
            assert_eq!(ends.iter().position(|end| *end), Some(parts.len() - 1), "{parts:?}");
            assert_eq!(answer.shown, "Hello", "{parts:?}");
        }
    }

    #[test]
    fn what_only_looks_like_the_end_is_shown_when_it_is_not() {
        let mut answer = Answer::new("<end>");
        let shown: Vec<String> = ["a <", "b> é<en", "ding<e"].iter().map(|part| answer.push(part).0).collect();
        assert_eq!(shown, ["a ", "<b> é", "<ending"]);
        assert_eq!((answer.finish(), &*answer.shown), ("<e".into(), "a <b> é<ending<e"));
        let mut without = Answer::new("");
        assert_eq!(without.push("text"), ("text".into(), false));
    }
}
