//! The conversations of a dataset in memory, and what a row of a sample takes of the conversations.

use std::ops::Range;

use crate::config::RecordKind;

/// Log-probabilities under the reference model: of the chosen and the rejected answer of a pair, or of an answer with a
/// label and of that of the record before it.
pub type ReferenceLogps = [f32; 2];

/// All conversations of a dataset, in memory, each as far as a sample has room.
pub(super) struct Stored {
    pub(super) kind: RecordKind,
    /// The tokens, one conversation after the other. A token that is no target is stored as `!token`, a negative
    /// number.
    pub(super) tokens: Vec<i32>,
    /// The position behind the last token of each conversation.
    pub(super) ends: Vec<usize>,
    /// For each answer with a label, whether the answer is desirable.
    pub(super) labels: Vec<bool>,
    /// For each unit, the number of losses up to the unit's end, all earlier units included.
    pub(super) losses: Vec<u64>,
    /// The token that fills a row.
    pub(super) padding: i32,
    /// Inputs of a sample.
    pub(super) seq: usize,
    /// Units of a sample, at most.
    pub(super) most: usize,
}

impl Stored {
    /// The tokens of a conversation, as a range of `tokens`.
    pub(super) fn tokens_of(&self, at: usize) -> Range<usize> {
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        begin..self.ends[at]
    }

    /// The conversations of a unit. That of an answer with a label is followed by its prompt with another answer.
    pub(super) fn unit(&self, at: usize) -> Range<usize> {
        let conversations = if self.kind.is_judged() { 2 } else { 1 };
        at * conversations..(at + 1) * conversations
    }

    /// The conversations of a unit that are in a row.
    pub(super) fn in_row(&self, unit: usize, row: Row) -> Range<usize> {
        let Range { start, end } = self.unit(unit);
        match (self.kind, row) {
            (RecordKind::Labelled, Row::Own) => start..start + 1,
            (_, Row::Own) => start..end,
            (_, Row::Mismatched) => start + 1..end,
        }
    }

    /// The inputs of a unit in a row that are no padding.
    pub(super) fn inputs_in(&self, unit: usize, row: Row) -> usize {
        self.in_row(unit, row).map(|at| self.tokens_of(at).len() - 1).sum()
    }

    /// The room that a unit takes in a sample.
    pub(super) fn inputs_of(&self, unit: usize) -> usize {
        let own = self.inputs_in(unit, Row::Own);
        if self.kind == RecordKind::Labelled { own.max(self.inputs_in(unit, Row::Mismatched)) } else { own }
    }

    /// Puts behind each answer its prompt with the answer of the record before it, and cuts both to a sample. The first
    /// record gets the answer of the last.
    pub(super) fn add_mismatched(&mut self) {
        let (mut tokens, mut ends) = (Vec::new(), Vec::new());
        let own: Vec<&[i32]> = (0..self.ends.len()).map(|at| &self.tokens[self.tokens_of(at)]).collect();
        let split = |of: &[i32]| of.iter().position(|token| *token >= 0).unwrap_or(of.len());
        let mut before = own.last().copied().unwrap_or(&[]);
        for &of in &own {
            for (prompt, answer) in [(of, of), (of, before)] {
                let whole = prompt[..split(prompt)].iter().chain(&answer[split(answer)..]);
                tokens.extend(whole.take(self.seq + 1));
                ends.push(tokens.len());
            }
            before = of;
        }
        (self.tokens, self.ends) = (tokens, ends);
    }

    /// The number of losses in a range of units.
    pub(super) fn losses_of(&self, range: Range<usize>) -> u64 {
        let before = |at: usize| if at == 0 { 0 } else { self.losses[at - 1] };
        before(range.end) - before(range.start)
    }

    /// The values that a [`PairLoss`](device::ops::PairLoss) reads of a unit in a row. `places` are its begin, and the end of
    /// each of its conversations. An answer with a label is the chosen or the rejected one of a pair, and the other has no
    /// tokens; that of another record is the chosen one.
    pub(super) fn judged(&self, unit: usize, row: Row, places: &[usize], [first, second]: ReferenceLogps) -> [i32; 4] {
        let (begin, end) = (places[0], places[places.len() - 1]);
        let (middle, references) = match (self.kind, row) {
            (RecordKind::Labelled, Row::Own) if self.labels[unit] => (end, [first, 0.0]),
            (RecordKind::Labelled, Row::Own) => (begin, [0.0, first]),
            (RecordKind::Labelled, Row::Mismatched) => (end, [second, 0.0]),
            _ => (places[1], [first, second]),
        };
        let [of_chosen, of_rejected] = references.map(|logp| logp.to_bits() as i32);
        [middle as i32, end as i32, of_chosen, of_rejected]
    }

    /// Writes a conversation at the start of `inputs` and of `targets`. Returns the number of places that it takes in
    /// each: all its tokens but the last are inputs, all but the first may be targets.
    pub(super) fn read(&self, at: usize, inputs: &mut [i32], targets: &mut [i32]) -> usize {
        let tokens = &self.tokens[self.tokens_of(at)];
        let (_, after_first) = tokens.split_at(1);
        inputs.iter_mut().zip(tokens).for_each(|(to, &token)| *to = token.max(!token));
        targets.iter_mut().zip(after_first).for_each(|(to, &token)| *to = token.max(-1));
        after_first.len()
    }
}

/// A row of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// The row that is learned.
    Own,
    /// The prompts of answers with a label, with the answers of others.
    Mismatched,
}

/// Conversations that share a sample with each other.
pub(super) fn shares(kind: RecordKind) -> usize {
    if kind == RecordKind::Pairs { 2 } else { 1 }
}
