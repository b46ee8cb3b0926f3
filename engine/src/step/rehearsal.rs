//! Steps before the first real one: recorded for the memory plan, and rehearsed before stages depend on each other.

use graph_manager::Result;

use super::{Stage, StepSettings};
use crate::passes::PassName;
use crate::regions::{Mode, Region};

impl Stage {
    /// Records a training step of `microbatches` microbatches, and with `evaluates` an evaluation step too. No
    /// operation runs. The recording says how much memory a step needs, and when.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn record(&mut self, microbatches: usize, evaluates: bool) -> Result<()> {
        self.graphs.record(Mode::Train, microbatches, &mut |cx| self.program.train(cx))?;
        if evaluates {
            self.graphs.record(Mode::Evaluate, microbatches, &mut |cx| self.program.evaluate(cx))?;
        }
        Ok(())
    }

    /// The list of a training step of `microbatches` microbatches before all passes and after each, in words. A pass
    /// that changes nothing is named alone.
    ///
    /// # Errors
    /// As [`Stage::record`].
    pub fn lists_by_pass(&mut self, microbatches: usize) -> Result<String> {
        let Stage { graphs, program, .. } = self;
        let left_out = program.timing.left_out.clone();
        let mut list = |without: &[PassName]| {
            program.timing.left_out = left_out.iter().chain(without).copied().collect();
            graphs.list_of(Mode::Train, microbatches, &mut |cx| program.train(cx))
        };
        let lists = (0..=PassName::ALL.len()).map(|count| list(&PassName::ALL[count..]));
        let lists = lists.collect::<Result<Vec<String>>>();
        program.timing.left_out = left_out;
        let lists = lists?;
        let mut text = format!("Before all passes\n{}", lists[0]);
        for (pass, pair) in PassName::ALL.iter().zip(lists.windows(2)) {
            match pair[0] == pair[1] {
                true => text += &format!("\nThe pass `{pass}` changes nothing\n"),
                false => text += &format!("\nAfter the pass `{pass}`\n{}", pair[1]),
            }
        }
        Ok(text)
    }

    /// Records an evaluation step of `microbatches` microbatches alone, for a stage that does not train.
    ///
    /// # Errors
    /// As [`Stage::evaluate`].
    pub fn record_evaluation(&mut self, microbatches: usize) -> Result<()> {
        self.graphs.record(Mode::Evaluate, microbatches, &mut |cx| self.program.evaluate(cx))
    }

    /// Records a step of `microbatches` microbatches that [measures](Stage::measured_step).
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn record_measured(&mut self, microbatches: usize) -> Result<()> {
        self.measures = true;
        self.graphs.record(Mode::Measure, microbatches, &mut |cx| self.program.train(cx))
    }

    /// Runs a step without sends and receives between stages, and without update, for each of these numbers of
    /// microbatches. With `evaluates` it also runs an evaluation step of the first number. Samples and receive buffers
    /// hold zeros.
    ///
    /// After it everything is loaded and captured. That must come before the first real step: a stage that loads a
    /// kernel or captures a graph while another stage waits for it could block both; see
    /// [`CudaGraphManager::rehearse`](graph_manager::CudaGraphManager::rehearse).
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn rehearse(&mut self, microbatches: &[usize], evaluates: bool) -> Result<()> {
        self.program.inputs.clear(self.device())?;
        // The samples are not real, so the scales that follow from them are forgotten.
        let device = self.device().clone();
        let scales = self.program.params.delayed_scales().map(|scales| scales.remember(&device)).transpose()?;
        for (at, &microbatches) in microbatches.iter().enumerate() {
            self.write_inputs(rehearsed(microbatches), None)?;
            let program = &self.program;
            self.graphs.rehearse(Mode::Train, microbatches, &mut |cx| program.train(cx), updates)?;
            if self.measures {
                self.graphs.rehearse(Mode::Measure, microbatches, &mut |cx| program.train(cx), updates)?;
            }
            if evaluates && at == 0 {
                self.graphs.rehearse(Mode::Evaluate, microbatches, &mut |cx| program.evaluate(cx), updates)?;
            }
        }
        match scales {
            Some(restore) => Ok(restore.restore(&device)?),
            None => Ok(()),
        }
    }

    /// As [`Stage::rehearse`], of an evaluation step alone.
    ///
    /// # Errors
    /// As [`Stage::evaluate`].
    pub fn rehearse_evaluation(&mut self, microbatches: usize) -> Result<()> {
        self.program.inputs.clear(self.device())?;
        self.write_inputs(rehearsed(microbatches), None)?;
        self.graphs.rehearse(Mode::Evaluate, microbatches, &mut |cx| self.program.evaluate(cx), updates)
    }
}

/// The region that a rehearsal leaves out: it changes weights.
fn updates(region: Region) -> bool {
    region == Region::Optimizer
}

/// The settings of a rehearsed step.
fn rehearsed(microbatches: usize) -> StepSettings {
    StepSettings { step: 0, microbatches, first_sample: 0, learning_rate: 0.0, clip: 0.0, targets: None }
}
