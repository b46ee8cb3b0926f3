//! Conversations as samples: each begins a row of its own, and only the tokens of answers are targets.

use std::ops::Range;
use std::sync::Arc;

use common::format::{count, counted};
use sha2::{Digest, Sha256};

use crate::identity::Identity;
use crate::text::conversation::Conversation;

/// Conversations `first..first + count` of a dataset.
#[derive(Clone)]
pub struct Conversations {
    all: Arc<All>,
    first: usize,
    /// Number of conversations.
    pub count: u64,
}

/// All conversations of a dataset, in memory, as far as they fit a sample.
struct All {
    /// The tokens, one conversation after the other. One that is no target is stored as `!token`, which is negative.
    tokens: Vec<i32>,
    /// The position behind the last token of each conversation.
    ends: Vec<usize>,
    /// For each conversation, the number of targets of all up to it.
    targets: Vec<u64>,
    /// The token that fills a row.
    padding: i32,
}

/// Collects the conversations of a dataset.
pub(crate) struct Builder {
    all: All,
    /// Inputs of a sample.
    seq: usize,
    pub(crate) counts: Counts,
}

/// What became of the conversations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) read: u64,
    /// Longer than a sample.
    pub(crate) cut: u64,
    /// Without a target, so they are not trained on.
    pub(crate) empty: u64,
    /// Tokens of those that are trained on, after cutting.
    pub(crate) tokens: u64,
    /// Targets among them.
    pub(crate) targets: u64,
}

impl Counts {
    /// In words, for samples of `seq` inputs.
    pub(crate) fn describe(self, seq: usize) -> String {
        let Counts { read, cut, empty, tokens, targets } = self;
        let kept = read - empty;
        let filled = tokens.saturating_sub(kept) as f64 / (kept * seq as u64).max(1) as f64;
        let left_out = match empty {
            0 => String::new(),
            empty => format!(", {empty} left out because no answer begins within"),
        };
        format!(
            "{}, {cut} cut to {seq} tokens{left_out}; {:.0} % of a sample is padding on average; the loss is on {} of {} tokens",
            counted(read as usize, "conversation"),
            100.0 * (1.0 - filled),
            count(targets as f64),
            count(tokens as f64),
        )
    }
}

impl Builder {
    /// For samples of `seq` inputs. `padding` fills the rows of short conversations.
    pub(crate) fn new(seq: usize, padding: u32) -> Builder {
        let all = All { tokens: Vec::new(), ends: Vec::new(), targets: Vec::new(), padding: padding as i32 };
        Builder { all, seq, counts: Counts::default() }
    }

    /// Adds a conversation: its first `seq + 1` tokens, if a target is among them.
    pub(crate) fn push(&mut self, conversation: &Conversation) {
        let Builder { all, counts, .. } = self;
        let kept = conversation.tokens.len().min(self.seq + 1);
        // The first token of a row is no target: nothing stands before it.
        let is_target = |at: usize| at > 0 && conversation.counts[at];
        let targets = (0..kept).filter(|&at| is_target(at)).count() as u64;
        counts.read += 1;
        if targets == 0 {
            counts.empty += 1;
            return;
        }
        counts.cut += u64::from(kept < conversation.tokens.len());
        counts.tokens += kept as u64;
        counts.targets += targets;
        let stored = conversation.tokens[..kept].iter().enumerate();
        all.tokens.extend(stored.map(|(at, &token)| if is_target(at) { token as i32 } else { !(token as i32) }));
        all.ends.push(all.tokens.len());
        all.targets.push(counts.targets);
    }

    /// The largest token.
    pub(crate) fn largest(&self) -> i32 {
        self.all.tokens.iter().map(|&token| token.max(!token)).max().unwrap_or(0).max(self.all.padding)
    }

    /// The conversations that were added.
    pub(crate) fn finish(self) -> Conversations {
        Conversations { first: 0, count: self.all.ends.len() as u64, all: Arc::new(self.all) }
    }
}

impl Conversations {
    /// The first `share` of the conversations, and the rest.
    pub fn split(self, share: f64) -> (Conversations, Conversations) {
        let count = (self.count as f64 * share).floor() as u64;
        let rest = Conversations { first: self.first + count as usize, count: self.count - count, ..self.clone() };
        (Conversations { count, ..self }, rest)
    }

    /// What identifies the dataset. `None` for the second part of a [`Conversations::split`]: the first part has it.
    pub fn identity(&self) -> Option<Identity> {
        if self.first > 0 {
            return None;
        }
        let mut hash = Sha256::new();
        self.all.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        self.all.ends.iter().for_each(|end| hash.update((*end as u64).to_le_bytes()));
        Some(Identity { tokens: self.all.tokens.len() as u64, sha256: format!("{:x}", hash.finalize()) })
    }

    /// The number of targets in a range of conversations.
    pub fn targets(&self, range: Range<u64>) -> u64 {
        let before = |at: u64| match self.first + at as usize {
            0 => 0,
            at => self.all.targets[at - 1],
        };
        before(range.end) - before(range.start)
    }

    /// Writes a conversation into `row`: `seq` inputs, then `seq` targets, -1 where there is none.
    pub fn read(&self, number: u64, row: &mut [i32]) {
        let at = self.first + number as usize;
        let begin = if at == 0 { 0 } else { self.all.ends[at - 1] };
        let tokens = &self.all.tokens[begin..self.all.ends[at]];
        let (inputs, targets) = row.split_at_mut(row.len() / 2);
        inputs.fill(self.all.padding);
        targets.fill(-1);
        let (_, after_first) = tokens.split_at(1);
        inputs.iter_mut().zip(tokens).for_each(|(to, &token)| *to = token.max(!token));
        targets.iter_mut().zip(after_first).for_each(|(to, &token)| *to = token.max(-1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conversations of these tokens; those of 100 and more are answers.
    fn made(all: &[&[u32]], seq: usize) -> (Conversations, Counts) {
        let mut builder = Builder::new(seq, 7);
        for tokens in all {
            let counts = tokens.iter().map(|&token| token >= 100).collect();
            builder.push(&Conversation { tokens: tokens.to_vec(), counts });
        }
        let counts = builder.counts;
        (builder.finish(), counts)
    }

    #[test]
    fn a_row_has_the_tokens_and_the_answers_as_targets_and_is_cut_or_filled() {
        let all: [&[u32]; 4] =
            [&[1, 2, 100, 3, 101], &[1, 2, 3, 4, 5, 100], &[100, 101], &[0, 1, 2, 100, 101, 102, 103]];
        let (conversations, counts) = made(&all, 4);
        assert_eq!(counts, Counts { read: 4, cut: 1, empty: 1, tokens: 12, targets: 5 });
        let row = |number| {
            let mut row = [0; 8];
            conversations.read(number, &mut row);
            row
        };
        assert_eq!(row(0), [1, 2, 100, 3, -1, 100, -1, 101]);
        assert_eq!(row(1), [100, 101, 7, 7, 101, -1, -1, -1]);
        assert_eq!(row(2), [0, 1, 2, 100, -1, -1, 100, 101]);
        assert_eq!([0..1, 1..2, 2..3, 0..3, 1..1].map(|range| conversations.targets(range)), [2, 1, 2, 5, 0]);
    }

    #[test]
    fn the_rest_of_a_split_goes_on_where_the_first_part_ends() {
        let all: Vec<Vec<u32>> = (0..10).map(|n| vec![n, 100 + n, 200]).collect();
        let (whole, _) = made(&all.iter().map(Vec::as_slice).collect::<Vec<_>>(), 2);
        let (train, rest) = whole.clone().split(0.8);
        assert_eq!((train.count, rest.count, rest.targets(0..2)), (8, 2, 4));
        let (mut a, mut b) = ([0; 4], [0; 4]);
        rest.read(1, &mut a);
        whole.read(9, &mut b);
        assert_eq!(a, b);
        assert!(train.identity().is_some() && rest.identity().is_none());
        let (others, _) = made(&[&[0, 100], &[1, 101]], 2);
        assert_ne!(others.identity(), whole.identity());
    }
}
