//! Documents within a window of text, divided at the tokens that end documents.

use device::ops::Documents;

use crate::config::DataConfig;
use crate::error::DataError;
use crate::source::SampleCounts;

/// The treatment of documents within windows.
#[derive(Clone, Copy, Debug)]
pub struct DocumentEnds {
    /// The token that ends a document. It belongs to the document that it ends.
    end: i32,
    /// Attention or positions begin anew with each document.
    restarts: bool,
    /// No window that restarts any may have more documents.
    most: usize,
    /// No loss where the input is an end: the target is the first token of an unrelated document.
    masks_loss: bool,
}

impl DocumentEnds {
    /// As the options say; `end` ends a document.
    pub(crate) fn new(data: &DataConfig, end: u32) -> DocumentEnds {
        let restarts = data.reset_attention_mask || data.reset_position_ids;
        DocumentEnds { end: end as i32, restarts, most: data.documents_per_sample, masks_loss: data.eod_mask_loss }
    }

    /// Values of a row of `seq` inputs: the inputs, as many targets, and a position for each input if any restart.
    pub(crate) fn width(&self, seq: usize) -> usize {
        seq * if self.restarts { 3 } else { 2 }
    }

    /// Makes a row of a window. Its `seq + 1` tokens lie at the start of `row`.
    ///
    /// # Errors
    /// More documents than there may be.
    pub(crate) fn divide(&self, seq: usize, row: &mut [i32]) -> Result<(), DataError> {
        row.copy_within(1..=seq, seq);
        let (inputs, rest) = row.split_at_mut(seq);
        let (targets, positions) = rest.split_at_mut(seq);
        if self.masks_loss {
            let ends = targets.iter_mut().zip(&*inputs).filter(|(_, input)| **input == self.end);
            ends.for_each(|(target, _)| *target = -1);
        }
        let mut next = 0;
        for (position, input) in positions.iter_mut().zip(&*inputs) {
            *position = next;
            next = if *input == self.end { 0 } else { next + 1 };
        }
        let documents = positions.iter().filter(|position| **position == 0).count();
        if documents > self.most {
            return Err(DataError {
                what: format!("a sample has {documents} documents, and data.documents_per_sample = {}", self.most),
                fix: format!(
                    "set data.documents_per_sample to {documents} or more, at most {}, or a smaller model.seq_length",
                    Documents::MOST
                ),
            });
        }
        Ok(())
    }

    /// Makes a row of one document without targets that have a loss.
    pub(crate) fn clear(&self, seq: usize, row: &mut [i32]) {
        let (tokens, positions) = row.split_at_mut(2 * seq);
        tokens.fill(-1);
        positions.iter_mut().zip(0..).for_each(|(to, position)| *to = position);
    }

    /// The counts of a window, from the window's `seq` inputs.
    pub(crate) fn counts(&self, inputs: &[i32]) -> SampleCounts {
        let ends = inputs.iter().filter(|input| **input == self.end).count() as u64;
        let tokens = inputs.len() as u64;
        let after_last = u64::from(inputs.last().is_some_and(|last| *last != self.end));
        SampleCounts {
            targets: if self.masks_loss { tokens - ends } else { tokens },
            tokens,
            documents: ends + after_last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row of a window of `tokens`, in which 0 ends a document.
    fn row(tokens: &[i32], reset_position_ids: bool, eod_mask_loss: bool) -> Vec<i32> {
        let data = DataConfig { reset_position_ids, eod_mask_loss, ..DataConfig::for_tests() };
        let (ends, seq) = (DocumentEnds::new(&data, 0), tokens.len() - 1);
        let mut row = vec![7; ends.width(seq)];
        row[..=seq].copy_from_slice(tokens);
        ends.divide(seq, &mut row).unwrap();
        row
    }

    #[test]
    fn an_end_belongs_to_the_document_that_it_ends_and_predicts_nothing() {
        let tokens = [5, 6, 0, 0, 8, 9, 0];
        let (inputs, targets, masked) = ([5, 6, 0, 0, 8, 9], [6, 0, 0, 8, 9, 0], [6, 0, -1, -1, 9, 0]);
        assert_eq!(row(&tokens, true, false), [inputs, targets, [0, 1, 2, 0, 0, 1]].concat());
        assert_eq!(row(&tokens, true, true), [inputs, masked, [0, 1, 2, 0, 0, 1]].concat());
        assert_eq!(row(&tokens, false, true), [inputs, masked].concat());
    }

    #[test]
    fn counts_are_those_of_the_row() {
        let data = DataConfig { reset_attention_mask: true, ..DataConfig::for_tests() };
        let all = DocumentEnds::new(&data, 0);
        let masked = DocumentEnds::new(&DataConfig { eod_mask_loss: true, ..data }, 0);
        let inputs = [5, 6, 0, 0, 8, 9];
        assert_eq!(all.counts(&inputs), SampleCounts { targets: 6, tokens: 6, documents: 3 });
        assert_eq!(masked.counts(&inputs), SampleCounts { targets: 4, tokens: 6, documents: 3 });
        assert_eq!(all.counts(&inputs[..3]).documents, 1);
    }

    #[test]
    fn a_window_of_too_many_documents_is_refused() {
        let data = DataConfig { reset_attention_mask: true, documents_per_sample: 3, ..DataConfig::for_tests() };
        let ends = DocumentEnds::new(&data, 0);
        let divide = |tokens: [i32; 5]| {
            let mut row = tokens.to_vec();
            row.resize(ends.width(4), 7);
            ends.divide(4, &mut row)
        };
        divide([5, 0, 0, 6, 0]).unwrap();
        let error = divide([0, 0, 0, 6, 0]).unwrap_err();
        assert_eq!(error.what, "a sample has 4 documents, and data.documents_per_sample = 3");
    }
}
