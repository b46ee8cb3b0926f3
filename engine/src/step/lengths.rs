//! The lengths that the samples of a step may have.

use graph_manager::{Error, Result};

use super::StageOptions;
use super::program::StepProgram;
use crate::model::Architecture;
use crate::regions::{Mode, Room, StepKind};

impl StepProgram {
    /// The kind of a step on samples of that length: `None` for the whole one.
    ///
    /// # Errors
    /// A length that the stage was not made for.
    pub(super) fn kind(&self, mode: Mode, length: Option<usize>) -> Result<StepKind> {
        match length.filter(|length| !self.shorter_lengths.contains(length)) {
            None => Ok(StepKind { mode, length, room: self.first_room(mode) }),
            Some(unknown) => Err(Error::Usage {
                problem: format!("a step on samples of {unknown} tokens, and the stage was not made for that length"),
                fix: "name it in StageOptions::shorter_lengths, or leave StepSettings::length unset",
            }),
        }
    }

    /// The room that a step has at first. If its rows need more, the step is run again.
    fn first_room(&self, mode: Mode) -> Room {
        if mode.trains() && self.numbers.beyond.is_some() { Room::Budget } else { Room::Whole }
    }

    /// The kinds of steps of a mode, for each length of samples and each room. The largest comes first.
    pub(super) fn kinds(&self, mode: Mode) -> Vec<StepKind> {
        let shorter = self.shorter_lengths.iter().rev().map(|length| Some(*length));
        let in_budget = (self.first_room(mode) == Room::Budget).then_some(Room::Budget);
        let rooms = [Room::Whole].into_iter().chain(in_budget);
        let of_length = |length| rooms.clone().map(move |room| StepKind { mode, length, room });
        [None].into_iter().chain(shorter).flat_map(of_length).collect()
    }
}

/// Fails if the model takes no samples of that length, if shorter lengths do not ascend below that length, or if losses
/// are kept of samples of several lengths.
pub(super) fn check_lengths(options: &StageOptions, architecture: &Architecture) -> Result<()> {
    let (whole, most, shorter) = (architecture.sample.length(), architecture.max_seq_len, &options.shorter_lengths);
    let refuse = |problem: String, fix: &'static str| Err(Error::Usage { problem, fix });
    if whole > most {
        let problem = format!("samples of {whole} tokens, and the model takes up to {most}");
        return refuse(problem, "give the model a larger max_seq_len, or samples with fewer tokens");
    }
    let all: Vec<usize> = [0].into_iter().chain(shorter.iter().copied()).chain([whole]).collect();
    if all.windows(2).any(|pair| pair[0] >= pair[1]) {
        let problem = format!("shorter lengths {shorter:?} of samples of {whole} tokens");
        return refuse(problem, "give StageOptions::shorter_lengths that ascend from above 0 to below that length");
    }
    if options.keeps_losses && !shorter.is_empty() {
        let problem = "evaluations keep the loss of each target, and samples have several lengths".into();
        return refuse(problem, "leave out StageOptions::keeps_losses, or StageOptions::shorter_lengths");
    }
    Ok(())
}
