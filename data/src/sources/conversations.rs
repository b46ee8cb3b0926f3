//! Conversations as samples: each has a row of its own, or several are packed into one. Only the tokens of answers are
//! targets. The two conversations of a pair of answers are packed one after the other. Beside an answer with a label
//! stands another row, which has its prompt with the answer of the record before it.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use common::Choice;
use common::format::{count, counted};
use device::ops::PairLoss;
use sha2::{Digest, Sha256};

use crate::config::RecordKind;
use crate::identity::Identity;
use crate::source::SampleCounts;
use crate::sources::packs::{Item, Packs};
use crate::sources::stored_conversations::{ReferenceLogps, Row, Stored, shares};
use crate::text::conversation::Conversation;

/// Some of the conversations of a dataset, as samples.
#[derive(Clone)]
pub struct Conversations {
    all: Arc<Stored>,
    /// The numbers in `all` of the conversations' units. A unit is a record: a sample has one or several, and each stays
    /// whole.
    range: Range<usize>,
    /// The units of each sample, numbered from the start of `range`. `None` if a sample is one conversation.
    packs: Option<Arc<Packs>>,
    /// The reference model's log-probabilities of each pair, once known.
    references: Arc<OnceLock<Vec<ReferenceLogps>>>,
}

/// Collects the conversations of a dataset.
pub(crate) struct Builder {
    all: Stored,
    pub(crate) counts: Counts,
}

/// Counts of units and of the units' tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) read: u64,
    /// Longer than a sample.
    pub(crate) cut: u64,
    /// Units that are not trained on, because the answers begin behind a sample's end.
    pub(crate) beyond: u64,
    /// Without an answer that is learned.
    pub(crate) unlearned: u64,
    /// Inputs of a sample that would hold the answers of every conversation.
    pub(crate) needed: u64,
    /// Tokens of the units that are trained on, after cutting.
    pub(crate) tokens: u64,
    /// Targets among the tokens.
    pub(crate) targets: u64,
}

impl Counts {
    /// The counts in words, for `samples` samples of `seq` inputs.
    pub(crate) fn describe(self, kind: RecordKind, samples: u64, seq: usize) -> String {
        let Counts { read, cut, beyond, unlearned, needed, tokens, targets } = self;
        let kept = read - beyond - unlearned;
        // The two of a pair share a sample.
        let (longest, answers) = (seq / shares(kind), shares(kind) as u64);
        let filled = tokens.saturating_sub(answers * kept) as f64 / (samples * seq as u64).max(1) as f64;
        let packed = match samples < kept {
            true => format!(", packed into {}", counted(samples as usize, "sample")),
            false => String::new(),
        };
        let left_out = |number: u64, why: &str| match number {
            0 => String::new(),
            number => format!(", {number} left out because {why}"),
        };
        let beyond = left_out(beyond, "no answer begins within");
        let unlearned = left_out(unlearned, "none of its answers is learned");
        let longer = match needed > seq as u64 {
            true => format!(" (--seq-length {needed} keeps all answers)"),
            false => String::new(),
        };
        format!(
            "{}, {cut} cut to {longest} tokens{longer}{beyond}{unlearned}{packed}; {:.0} % of a sample is padding on average; the loss is on {} of {} tokens",
            counted(read as usize, kind.word()),
            100.0 * (1.0 - filled),
            count(targets as f64),
            count(tokens as f64),
        )
    }
}

impl Builder {
    /// For samples of `seq` inputs and at most `most` units. `padding` fills the rest of a sample.
    pub(crate) fn new(kind: RecordKind, seq: usize, most: usize, padding: u32) -> Builder {
        let (tokens, ends, labels, losses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let all = Stored { kind, tokens, ends, labels, losses, padding: padding as i32, seq, most };
        Builder { all, counts: Counts::default() }
    }

    /// Adds the conversations of a unit, if each has a target: of each the first tokens, as many as fit an equal share of a
    /// sample.
    pub(crate) fn push(&mut self, unit: &[Conversation]) {
        let Builder { all, counts, .. } = self;
        let shares = shares(all.kind);
        let most = all.seq / shares + 1;
        // The first token of a row is no target: nothing stands before it.
        let is_target = |of: &Conversation, at: usize| at > 0 && of.counts[at];
        // A target is behind as many inputs as its place says.
        let needed = |of: &Conversation| (0..of.tokens.len()).rfind(|&at| is_target(of, at)).unwrap_or(0);
        let targets = |of: &Conversation| (0..of.tokens.len().min(most)).filter(|&at| is_target(of, at)).count() as u64;
        counts.read += 1;
        let longest = unit.iter().map(needed).max().unwrap_or(0);
        counts.needed = counts.needed.max((longest * shares) as u64);
        if unit.iter().any(|of| targets(of) == 0) {
            *if unit.iter().any(|of| needed(of) == 0) { &mut counts.unlearned } else { &mut counts.beyond } += 1;
            return;
        }
        counts.cut += u64::from(unit.iter().any(|of| of.tokens.len() > most));
        for of in unit {
            let kept = of.tokens.len().min(most);
            counts.tokens += kept as u64;
            counts.targets += targets(of);
            // Answers are exchanged before they are cut.
            let stored = if all.kind == RecordKind::Labelled { of.tokens.len() } else { kept };
            let stored = of.tokens[..stored].iter().enumerate();
            all.tokens
                .extend(stored.map(|(at, &token)| if is_target(of, at) { token as i32 } else { !(token as i32) }));
            all.ends.push(all.tokens.len());
            all.labels.push(of.is_desirable);
        }
        let before = all.losses.last().copied().unwrap_or(0);
        all.losses.push(if all.kind.is_judged() { before + 1 } else { counts.targets });
    }

    /// The largest token.
    pub(crate) fn largest(&self) -> i32 {
        self.all.tokens.iter().map(|&token| token.max(!token)).max().unwrap_or(0).max(self.all.padding)
    }

    /// The conversations that were added.
    pub(crate) fn finish(mut self) -> Conversations {
        if self.all.kind == RecordKind::Labelled {
            self.all.add_mismatched();
        }
        let range = 0..self.all.losses.len();
        Conversations::new(Arc::new(self.all), range)
    }
}

impl Conversations {
    fn new(all: Arc<Stored>, range: Range<usize>) -> Conversations {
        let item = |at: usize| Item { inputs: all.inputs_of(at), targets: all.losses_of(at..at + 1) };
        let packed = all.most > 1 || all.kind.is_judged();
        let items: Vec<Item> = if packed { range.clone().map(item).collect() } else { Vec::new() };
        let packs = packed.then(|| Arc::new(Packs::new(&items, all.seq, all.most)));
        Conversations { all, range, packs, references: Arc::default() }
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.packs.as_ref().map_or(self.range.len(), |packs| packs.count()) as u64
    }

    /// Number of units.
    pub(crate) fn conversations(&self) -> u64 {
        self.range.len() as u64
    }

    /// The first `share` of the conversations, and the rest.
    pub fn split(self, share: f64) -> (Conversations, Conversations) {
        let Conversations { all, range, .. } = self;
        let middle = range.start + (range.len() as f64 * share).floor() as usize;
        (Conversations::new(all.clone(), range.start..middle), Conversations::new(all, middle..range.end))
    }

    /// The identity of the dataset. `None` for the second part of a [`Conversations::split`]: the first part has it.
    pub fn identity(&self) -> Option<Identity> {
        if self.range.start > 0 {
            return None;
        }
        let mut hash = Sha256::new();
        self.all.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        self.all.ends.iter().for_each(|end| hash.update((*end as u64).to_le_bytes()));
        if self.all.kind == RecordKind::Labelled {
            self.all.labels.iter().for_each(|label| hash.update([u8::from(*label)]));
        }
        Some(Identity { tokens: self.all.tokens.len() as u64, sha256: format!("{:x}", hash.finalize()) })
    }

    /// The number of losses in a range of samples.
    pub fn targets(&self, samples: Range<u64>) -> u64 {
        let (start, end) = (samples.start as usize, samples.end as usize);
        match &self.packs {
            Some(packs) => packs.targets(start..end),
            None => self.all.losses_of(self.range.start + start..self.range.start + end),
        }
    }

    /// The counts of a sample.
    pub(crate) fn counts(&self, number: u64) -> SampleCounts {
        let inputs = |at: usize| self.all.inputs_in(self.range.start + at, Row::Own) as u64;
        let targets = self.targets(number..number + 1);
        match &self.packs {
            None => SampleCounts { targets, tokens: inputs(number as usize), documents: 1 },
            Some(packs) => {
                let members = packs.members(number as usize);
                let tokens = members.iter().map(|member| inputs(*member as usize)).sum();
                let documents = (members.len() * shares(self.all.kind)) as u64;
                SampleCounts { targets, tokens, documents }
            }
        }
    }

    /// Inputs of a sample that are no padding. `None` if samples are packed.
    pub(crate) fn length(&self, number: u64) -> Option<usize> {
        let at = self.range.start + number as usize;
        self.packs.is_none().then(|| self.all.inputs_of(at))
    }

    /// The number of a row's values about pairs.
    fn of_pairs(&self) -> usize {
        if self.all.kind.is_judged() { self.all.most * PairLoss::COLUMNS } else { 0 }
    }

    /// Values of a sample: `seq` inputs and `seq` targets, of a packed sample also `seq` positions, of each token in its
    /// conversation. For each pair that a sample may have the values follow that a [`PairLoss`] reads; log-probabilities
    /// under the reference model are 0 until they are known. The last value is the number of inputs that are no padding.
    /// Of answers with a label a second row follows, laid out likewise.
    pub fn width(&self) -> usize {
        self.rows_of_sample().len() * self.row_width()
    }

    fn row_width(&self) -> usize {
        self.all.seq * if self.packs.is_some() { 3 } else { 2 } + self.of_pairs() + 1
    }

    fn rows_of_sample(&self) -> &'static [Row] {
        if self.all.kind == RecordKind::Labelled { &[Row::Own, Row::Mismatched] } else { &[Row::Own] }
    }

    /// Writes a sample of padding.
    pub(crate) fn clear(&self, sample: &mut [i32]) {
        for row in sample.chunks_mut(self.row_width()) {
            let Some((real, row)) = row.split_last_mut() else { return };
            let (inputs, rest) = row.split_at_mut(self.all.seq);
            let (targets, rest) = rest.split_at_mut(self.all.seq);
            let (positions, pairs) = rest.split_at_mut(rest.len() - self.of_pairs());
            inputs.fill(self.all.padding);
            targets.fill(-1);
            count_up(positions);
            pairs.fill(0);
            *real = 0;
        }
    }

    /// Writes a sample, of [`Conversations::width`] values. A target that has no loss is -1. The padding of a packed
    /// sample is a conversation of its own.
    pub fn read(&self, number: u64, sample: &mut [i32]) {
        self.clear(sample);
        for (row, to) in self.rows_of_sample().iter().zip(sample.chunks_mut(self.row_width())) {
            self.read_row(number, *row, to);
        }
    }

    fn read_row(&self, number: u64, which: Row, row: &mut [i32]) {
        let Some((real, row)) = row.split_last_mut() else { return };
        let (inputs, rest) = row.split_at_mut(self.all.seq);
        let (targets, rest) = rest.split_at_mut(self.all.seq);
        let Some(packs) = &self.packs else {
            *real = self.all.read(self.range.start + number as usize, inputs, targets) as i32;
            return;
        };
        let (positions, pairs) = rest.split_at_mut(rest.len() - self.of_pairs());
        let mut pairs = pairs.chunks_mut(PairLoss::COLUMNS);
        let mut begin = 0;
        for &member in packs.members(number as usize) {
            let unit = self.range.start + member as usize;
            let mut places = vec![begin];
            for at in self.all.in_row(unit, which) {
                let end = begin + self.all.read(at, &mut inputs[begin..], &mut targets[begin..]);
                count_up(&mut positions[begin..end]);
                // The last token of a conversation is no input.
                inputs[end..].iter_mut().take(1).for_each(|input| *input = self.all.padding);
                begin = end;
                places.push(end);
            }
            if let Some(pair) = pairs.next() {
                let references = self.references.get().map_or([0.0; 2], |references| references[member as usize]);
                pair.copy_from_slice(&self.all.judged(unit, which, &places, references));
            }
        }
        count_up(&mut positions[begin..]);
        *real = begin as i32;
    }

    /// The rows of `count` samples from `first` on; rows beyond the last sample are padding.
    pub fn rows(&self, first: u64, count: usize) -> Vec<i32> {
        let width = self.width();
        let mut rows = vec![0; count * width];
        for (number, row) in (first..).zip(rows.chunks_mut(width)) {
            if number < self.count() { self.read(number, row) } else { self.clear(row) }
        }
        rows
    }

    /// The number of judged records; 0 for conversations.
    pub fn pairs(&self) -> usize {
        if self.all.kind.is_judged() { self.range.len() } else { 0 }
    }

    /// The pairs of a sample, in the sample's order.
    pub fn pairs_of(&self, number: u64) -> &[u32] {
        self.packs.as_ref().map_or(&[], |packs| packs.members(number as usize))
    }

    /// SHA-256 in hexadecimal over the tokens of all pairs, in order.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for at in self.range.clone().flat_map(|unit| self.all.unit(unit)) {
            let tokens = &self.all.tokens[self.all.tokens_of(at)];
            hash.update((tokens.len() as u64).to_le_bytes());
            tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        }
        format!("{:x}", hash.finalize())
    }

    /// Sets the reference model's log-probabilities of all pairs, in the pairs' order. They are set once.
    ///
    /// # Panics
    /// If they are set already, or are not as many as the pairs.
    pub fn set_references(&self, references: Vec<ReferenceLogps>) {
        assert_eq!(references.len(), self.pairs(), "log-probabilities of all pairs");
        assert!(self.references.set(references).is_ok(), "references are set once");
    }
}

/// 0, 1, 2 and so on.
fn count_up(positions: &mut [i32]) {
    positions.iter_mut().zip(0..).for_each(|(position, number)| *position = number);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conversations of the given tokens; tokens of 100 and more are answers.
    fn made(all: &[&[u32]], seq: usize) -> (Conversations, Counts) {
        let mut builder = Builder::new(RecordKind::Conversations, seq, 1, 7);
        for tokens in all {
            let counts = tokens.iter().map(|&token| token >= 100).collect();
            builder.push(&[Conversation { tokens: tokens.to_vec(), counts, ..Conversation::default() }]);
        }
        let counts = builder.counts;
        (builder.finish(), counts)
    }

    #[test]
    fn a_row_has_the_tokens_and_the_answers_as_targets_and_is_cut_or_filled() {
        let all: [&[u32]; 4] =
            [&[1, 2, 100, 3, 101], &[1, 2, 3, 4, 5, 100], &[100, 101], &[0, 1, 2, 100, 101, 102, 103]];
        let (conversations, counts) = made(&all, 4);
        assert_eq!(counts, Counts { read: 4, cut: 1, beyond: 1, unlearned: 0, needed: 6, tokens: 12, targets: 5 });
        let said = counts.describe(RecordKind::Conversations, 3, 4);
        assert!(
            said.contains("1 cut to 4 tokens (--seq-length 6 keeps all answers), 1 left out because no answer"),
            "{said}"
        );
        let (_, longer) = made(&all, counts.needed as usize);
        assert_eq!((longer.cut, longer.beyond, longer.targets), (0, 0, 8));
        let (_, read) = made(&[&[1, 2, 100], &[1, 2, 3, 4]], 2);
        assert_eq!((read.beyond, read.unlearned, read.needed), (0, 1, 2));
        assert!(
            read.describe(RecordKind::Conversations, 1, 2)
                .contains("0 cut to 2 tokens, 1 left out because none of its answers is learned")
        );
        let row = |number| {
            let mut row = [0; 9];
            conversations.read(number, &mut row);
            row
        };
        assert_eq!(row(0), [1, 2, 100, 3, -1, 100, -1, 101, 4]);
        assert_eq!(row(1), [100, 101, 7, 7, 101, -1, -1, -1, 1]);
        assert_eq!(row(2), [0, 1, 2, 100, -1, -1, 100, 101, 4]);
        assert_eq!([0..1, 1..2, 2..3, 0..3, 1..1].map(|range| conversations.targets(range)), [2, 1, 2, 5, 0]);
        assert_eq!(conversations.counts(1), SampleCounts { targets: 1, tokens: 1, documents: 1 });
    }

    #[test]
    fn the_rest_of_a_split_goes_on_where_the_first_part_ends() {
        let all: Vec<Vec<u32>> = (0..10).map(|n| vec![n, 100 + n, 200]).collect();
        let (whole, _) = made(&all.iter().map(Vec::as_slice).collect::<Vec<_>>(), 2);
        let (train, rest) = whole.clone().split(0.8);
        assert_eq!((train.count(), rest.count(), rest.targets(0..2)), (8, 2, 4));
        let (mut a, mut b) = ([0; 5], [0; 5]);
        rest.read(1, &mut a);
        whole.read(9, &mut b);
        assert_eq!(a, b);
        assert!(train.identity().is_some() && rest.identity().is_none());
        let (others, _) = made(&[&[0, 100], &[1, 101]], 2);
        assert_ne!(others.identity(), whole.identity());
    }

    #[test]
    fn packed_conversations_follow_each_other_and_each_counts_its_positions() {
        let all: [&[u32]; 4] = [&[1, 2, 100, 3, 101], &[4, 100], &[5, 6, 102], &[7, 101, 8, 103]];
        let mut builder = Builder::new(RecordKind::Conversations, 6, 4, 9);
        for tokens in all {
            let counts = tokens.iter().map(|&token| token >= 100).collect();
            builder.push(&[Conversation { tokens: tokens.to_vec(), counts, ..Conversation::default() }]);
        }
        let counts = builder.counts;
        let packed = builder.finish();
        // Inputs that they take: 4, 1, 2 and 3.
        assert_eq!((packed.count(), packed.width()), (2, 19));
        let row = |number| {
            let mut row = [0; 19];
            packed.read(number, &mut row);
            row
        };
        let [inputs, targets, positions] = [[1, 2, 100, 3, 5, 6], [-1, 100, -1, 101, -1, 102], [0, 1, 2, 3, 0, 1]];
        assert_eq!(row(0)[..], [&inputs[..], &targets, &positions, &[6]].concat());
        let [inputs, targets, positions] = [[4, 7, 101, 8, 9, 9], [100, 101, -1, 103, -1, -1], [0, 0, 1, 2, 0, 1]];
        assert_eq!(row(1)[..], [&inputs[..], &targets, &positions, &[4]].concat());
        assert_eq!([0..1, 1..2, 0..2].map(|range| packed.targets(range)), [3, 3, 6]);
        assert_eq!(packed.counts(0), SampleCounts { targets: 3, tokens: 6, documents: 2 });
        assert_eq!(packed.counts(1), SampleCounts { targets: 3, tokens: 4, documents: 2 });
        let said = counts.describe(RecordKind::Conversations, packed.count(), 6);
        assert!(
            said.contains("4 conversations, 0 cut to 6 tokens, packed into 2 samples; 17 % of a sample is padding"),
            "{said}"
        );
        let (train, rest) = packed.split(0.5);
        assert_eq!((train.count(), train.targets(0..1), rest.count(), rest.targets(0..1)), (1, 3, 1, 3));
    }
    #[test]
    fn the_two_of_a_pair_stay_together_and_bring_their_places_and_references() {
        let conversation = |tokens: &[u32]| Conversation {
            tokens: tokens.to_vec(),
            counts: tokens.iter().map(|&token| token >= 100).collect(),
            ..Conversation::default()
        };
        let mut builder = Builder::new(RecordKind::Pairs, 8, 2, 9);
        let pairs: [[&[u32]; 2]; 4] = [
            [&[1, 100], &[1, 2, 101]],
            // Each is cut to half of a sample: no answer is left of the second.
            [&[1, 100], &[1, 2, 3, 4, 5, 101]],
            [&[5, 100, 101, 102, 103, 104], &[5, 105]],
            [&[6, 106, 107], &[6, 108]],
        ];
        pairs.iter().for_each(|pair| builder.push(&pair.map(conversation)));
        let counts = builder.counts;
        assert_eq!((counts.read, counts.beyond, counts.cut, counts.needed), (4, 1, 1, 10));
        let packed = builder.finish();
        assert!(
            counts
                .describe(RecordKind::Pairs, packed.count(), 8)
                .starts_with("4 pairs, 1 cut to 4 tokens (--seq-length 10")
        );
        let digest = packed.digest();
        packed.set_references(vec![[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]]);
        // Inputs that they take: 3, 5 and 3.
        assert_eq!((packed.count(), packed.pairs(), packed.width()), (2, 3, 33));
        assert_eq!((packed.pairs_of(0), packed.pairs_of(1)), (&[0, 1][..], &[2][..]));
        let row = |of: &Conversations, number| {
            let mut row = [0; 33];
            of.read(number, &mut row);
            row
        };
        let bits = |logp: f32| logp.to_bits() as i32;
        let rows: [&[i32]; 5] = [
            &[1, 1, 2, 5, 100, 101, 102, 5],
            &[100, -1, 101, 100, 101, 102, 103, 105],
            &[0, 0, 1, 0, 1, 2, 3, 0],
            &[1, 3, bits(-1.0), bits(-2.0), 7, 8, bits(-3.0), bits(-4.0)],
            &[8],
        ];
        assert_eq!(row(&packed, 0)[..], rows.concat());
        assert_eq!(row(&packed, 1)[24..], [2, 3, bits(-5.0), bits(-6.0), 0, 0, 0, 0, 3]);
        assert_eq!(packed.counts(0), SampleCounts { targets: 2, tokens: 8, documents: 4 });
        let (train, rest) = packed.split(0.4);
        assert_eq!((train.pairs(), rest.pairs(), rest.targets(0..1)), (1, 2, 2));
        assert!(train.digest() != digest && rest.digest() != train.digest());
        assert_eq!(row(&train, 0)[24..28], [1, 3, 0, 0], "of a part they are set anew");
    }
}
