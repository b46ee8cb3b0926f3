//! Mistakes of a user that are found one after the other, and told at once.

use std::collections::BTreeSet;

use crate::user_error::UserError;

/// Mistakes of a user. A check that fails because of an earlier mistake says nothing new: it is not kept.
#[derive(Debug, Default)]
pub struct Mistakes {
    found: Vec<UserError>,
    doubted: BTreeSet<&'static str>,
}

impl Mistakes {
    /// The value. An error is kept.
    pub fn keep<T>(&mut self, result: Result<T, UserError>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Keeps an error, unless the error names a setting with an unknown value, or is there already.
    pub fn add(&mut self, error: UserError) {
        if !error.together.is_empty() {
            return error.together.into_vec().into_iter().for_each(|error| self.add(error));
        }
        let between = |c: char| !(c.is_ascii_alphanumeric() || "_.-".contains(c));
        let has_key = |word: &str| self.doubted.contains(word.trim_end_matches('.'));
        let has_name = |word: &str| self.doubted.iter().any(|key| key.rsplit('.').next() == Some(word));
        // A rule is prose: there a name without its section may be any word.
        let follows = error.what.split(between).any(|word| has_key(word) || has_name(word))
            || error.rule.split(between).any(has_key);
        if !follows && !self.found.contains(&error) {
            self.found.push(error);
        }
    }

    /// From now on, nothing is said about the settings of the given keys: a mistake hides their values.
    pub fn doubt(&mut self, keys: impl IntoIterator<Item = &'static str>) {
        self.doubted.extend(keys);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The number of mistakes.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// A line for each mistake.
    pub fn lines(&self) -> Vec<String> {
        self.found.iter().flat_map(lines).collect()
    }

    /// Fails if there is a mistake.
    ///
    /// # Errors
    /// The only mistake, or all of them with a line each.
    pub fn end(mut self) -> Result<(), UserError> {
        match self.found.len() {
            0 => Ok(()),
            1 => Err(self.found.remove(0)),
            _ => {
                let lines = self.lines();
                let what = format!("{} mistakes", lines.len());
                let error = UserError::new(what, "nothing begins before all of them are corrected", "correct each:");
                Err(UserError { together: self.found.into(), ..error.with_each(lines) })
            }
        }
    }
}

/// A line for each thing that an error is about.
fn lines(error: &UserError) -> Vec<String> {
    match &error.each[..] {
        [] => vec![format!("{}. Rule: {}. Fix: {}", error.what, error.rule, error.fix)],
        each => each.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(what: &str) -> UserError {
        UserError::new(what, "a rule", "a fix")
    }

    #[test]
    fn one_mistake_is_told_as_it_is_and_several_have_a_line_each() {
        let mut mistakes = Mistakes::default();
        assert_eq!(mistakes.keep(Ok(3)), Some(3));
        assert!(mistakes.is_empty());
        assert_eq!(mistakes.keep::<()>(Err(error("train.steps = 0"))), None);
        mistakes.add(error("train.steps = 0"));
        assert!(!mistakes.is_empty());
        assert_eq!(mistakes.end(), Err(error("train.steps = 0")));

        let mut mistakes = Mistakes::default();
        mistakes.add(error("--a and --b").with_each(["--a: a rule".to_string(), "--b: a rule".into()]));
        mistakes.add(error("train.steps = 0"));
        let all = mistakes.end().unwrap_err();
        assert_eq!(all.what, "3 mistakes");
        assert_eq!(all.each, ["--a: a rule", "--b: a rule", "train.steps = 0. Rule: a rule. Fix: a fix"]);
        let mut outer = Mistakes::default();
        outer.add(error("train.steps = 0"));
        outer.doubt(["--a"]);
        outer.add(all);
        assert_eq!(outer.end(), Err(error("train.steps = 0")));
        assert_eq!(Mistakes::default().end(), Ok(()));
    }

    #[test]
    fn what_follows_from_an_unknown_value_is_not_told() {
        let mut mistakes = Mistakes::default();
        mistakes.add(error("train.steps = \"many\""));
        mistakes.doubt(["train.steps", "train.global_batch_size"]);
        mistakes.add(error("train.steps = 1000 with optimizer.warmup_steps = 2000"));
        mistakes.add(error("train.micro_batch_size = 3 with global_batch_size = 16"));
        mistakes.add(UserError::new("data.split = 2", "it is below train.steps, as a rule", "a fix"));
        mistakes.add(error("train.eval_steps = -1"));
        let all = mistakes.end().unwrap_err();
        assert_eq!(all.each.len(), 2, "{all}");
        assert!(all.each[1].starts_with("train.eval_steps"), "{all}");
    }
}
