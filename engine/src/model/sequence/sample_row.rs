//! The columns of a sample's inputs and targets.

use std::ops::Range;

use device::DType;
use device::ops::PairLoss;

/// A sample in the data's form: one row of values. Inputs and targets are ranges of its columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleRow {
    /// Values of a row.
    pub width: usize,
    /// The values' type on the host: i32 or f32.
    pub dtype: DType,
    /// Columns of the inputs.
    pub inputs: Range<usize>,
    /// Columns of the targets. A negative token as a target has no loss.
    pub targets: Range<usize>,
    /// The columns that divide a sample into documents; `None` if a sample is one document.
    pub documents: Option<DocumentColumns>,
    /// The columns of pairs of answers; `None` if the loss is of targets.
    pub pairs: Option<PairColumns>,
    /// The column at which a sample of the same prompts with other prompts' answers begins, laid out like this sample.
    /// `None` if there is none.
    pub mismatched: Option<usize>,
    /// The column of the number of inputs that are no padding, after the inputs' columns; `None` if there is no
    /// padding.
    pub real: Option<usize>,
}

/// The division of a sample into several documents, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentColumns {
    /// Columns of the position of each token in the token's document.
    pub position_ids: Range<usize>,
    /// No sample has more documents.
    pub most: usize,
    /// What begins anew with each document.
    pub restart: Restart,
}

/// The pairs of answers of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairColumns {
    /// Columns of the pairs, for [`PairLoss`].
    pub columns: Range<usize>,
    /// No sample has more pairs.
    pub most: usize,
    /// Where the log-probabilities under the reference model come from.
    pub references: References,
}

/// Where the log-probabilities of answers under the reference model come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum References {
    /// The columns of the pairs have the log-probabilities.
    InRow,
    /// Each step computes the log-probabilities: the reference is the model without its adapters.
    WithoutAdapters,
}

/// What begins anew with each document of a sample. Rotary positions count on: attention depends on differences of
/// positions alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Attention stays within a document, and learned positions count from the document's first token.
    AttentionAndPositions,
    /// Attention alone.
    Attention,
    /// Learned positions alone.
    Positions,
}

impl SampleRow {
    /// `seq + 1` token ids. The inputs are all but the last, the targets all but the first.
    pub fn tokens(seq: usize) -> SampleRow {
        SampleRow {
            width: seq + 1,
            dtype: DType::I32,
            inputs: 0..seq,
            targets: 1..seq + 1,
            documents: None,
            pairs: None,
            mismatched: None,
            real: None,
        }
    }

    /// `seq` token ids as inputs, then as many as targets. Some targets have no loss.
    pub fn conversations(seq: usize) -> SampleRow {
        let (inputs, targets) = (0..seq, seq..2 * seq);
        SampleRow { width: 2 * seq, inputs, targets, ..SampleRow::tokens(seq) }
    }

    /// Up to `most` conversations one after the other: inputs and targets as in [`SampleRow::conversations`], then the
    /// position of each token in its conversation.
    pub fn packed(seq: usize, most: usize) -> SampleRow {
        SampleRow::conversations(seq).divided(most, Restart::AttentionAndPositions)
    }

    /// Up to `most` pairs of answers: the chosen one and the rejected one are each packed as a conversation of its own.
    /// Then come the columns of the pairs.
    pub fn pairs(seq: usize, most: usize, references: References) -> SampleRow {
        SampleRow::packed(seq, 2 * most + 1).judged(most, references)
    }

    /// Up to `most` answers with a label, each a conversation: a pair with one answer, whose other one has no tokens. Behind
    /// them are as many values, laid out likewise, of the same prompts with the answers of others.
    pub fn labelled(seq: usize, most: usize) -> SampleRow {
        let own = SampleRow::packed(seq, most + 1).judged(most, References::InRow).with_padding();
        SampleRow { mismatched: Some(own.width), width: 2 * own.width, ..own }
    }

    /// The same row with added columns of pairs.
    fn judged(self, most: usize, references: References) -> SampleRow {
        let (begin, columns) = (self.width, most * PairLoss::COLUMNS);
        let pairs = Some(PairColumns { columns: begin..begin + columns, most, references });
        SampleRow { width: begin + columns, pairs, ..self }
    }

    /// The same row with added columns: the position of each token in its document. A sample has up to `most`
    /// documents.
    #[must_use]
    pub fn divided(self, most: usize, restart: Restart) -> SampleRow {
        let (begin, seq) = (self.width, self.inputs.len());
        let documents = Some(DocumentColumns { position_ids: begin..begin + seq, most, restart });
        SampleRow { width: begin + seq, documents, ..self }
    }

    /// The same row. Its last column is the number of inputs that are no padding.
    #[must_use]
    pub fn with_padding(self) -> SampleRow {
        SampleRow { real: Some(self.width), width: self.width + 1, ..self }
    }

    /// Tokens of a sample; 1 for a sample of features and outputs.
    pub fn length(&self) -> usize {
        if self.dtype == DType::I32 { self.inputs.len() } else { 1 }
    }

    /// Features, then outputs.
    pub fn regression(features: usize, outputs: usize) -> SampleRow {
        let width = features + outputs;
        SampleRow {
            width,
            dtype: DType::F32,
            inputs: 0..features,
            targets: features..width,
            documents: None,
            pairs: None,
            mismatched: None,
            real: None,
        }
    }
}
