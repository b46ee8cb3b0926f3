//! Steps before the first real one: recorded for the memory plan, and rehearsed before stages depend on each other.

use graph_manager::Result;

use super::{Stage, StepSettings};
use crate::passes::PassName;
use crate::regions::{Mode, Region};

impl Stage {
    /// Records a training step of `microbatches` microbatches, and with `evaluates` an evaluation step too, each for
    /// all lengths of samples. No operation runs. The recording says how much memory a step needs, and when.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn record(&mut self, microbatches: usize, evaluates: bool) -> Result<()> {
        for kind in self.program.kinds(Mode::Train) {
            self.graphs.record(kind, microbatches, &mut |cx| self.program.train(cx))?;
        }
        self.record_forwards(self.first_forwards(), microbatches)?;
        match evaluates {
            true => self.record_evaluation(microbatches),
            false => Ok(()),
        }
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
            graphs.list_of(Mode::Train.into(), microbatches, &mut |cx| program.train(cx))
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

    /// Records an evaluation step of `microbatches` microbatches alone, for all lengths of samples.
    ///
    /// # Errors
    /// As [`Stage::evaluate`].
    pub fn record_evaluation(&mut self, microbatches: usize) -> Result<()> {
        self.record_forwards([Mode::Evaluate], microbatches)
    }

    /// Records steps of `modes`, which have no backward, for all lengths of samples.
    fn record_forwards(&mut self, modes: impl IntoIterator<Item = Mode>, microbatches: usize) -> Result<()> {
        for kind in modes.into_iter().flat_map(|mode| self.program.kinds(mode)) {
            self.graphs.record(kind, microbatches, &mut |cx| self.program.evaluate(cx))?;
        }
        Ok(())
    }

    /// Records a step of `microbatches` microbatches that [measures](Stage::measured_step), for all lengths of samples.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn record_measured(&mut self, microbatches: usize) -> Result<()> {
        self.measures = true;
        for kind in self.program.kinds(Mode::Measure) {
            self.graphs.record(kind, microbatches, &mut |cx| self.program.train(cx))?;
        }
        Ok(())
    }

    /// Runs a step without sends and receives between stages, and without update, for each number of `microbatches` and
    /// each length of samples. With `evaluates` it also runs evaluation steps of the first number. Samples and receive
    /// buffers hold zeros.
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
            self.write_inputs(StepSettings { microbatches, ..StepSettings::default() }, None)?;
            self.rehearse_forwards(self.first_forwards(), microbatches)?;
            let program = &self.program;
            let measured = self.measures.then(|| program.kinds(Mode::Measure));
            for kind in program.kinds(Mode::Train).into_iter().chain(measured.into_iter().flatten()) {
                self.graphs.rehearse(kind, microbatches, &mut |cx| program.train(cx), updates)?;
            }
            if evaluates && at == 0 {
                self.rehearse_forwards([Mode::Evaluate], microbatches)?;
            }
        }
        match scales {
            Some(restore) => Ok(restore.restore(&device)?),
            None => Ok(()),
        }
    }

    /// As [`Stage::rehearse`], of evaluation steps alone.
    ///
    /// # Errors
    /// As [`Stage::evaluate`].
    pub fn rehearse_evaluation(&mut self, microbatches: usize) -> Result<()> {
        self.program.inputs.clear(self.device())?;
        self.write_inputs(StepSettings { microbatches, ..StepSettings::default() }, None)?;
        self.rehearse_forwards([Mode::Evaluate], microbatches)
    }

    fn rehearse_forwards(&mut self, modes: impl IntoIterator<Item = Mode>, microbatches: usize) -> Result<()> {
        for kind in modes.into_iter().flat_map(|mode| self.program.kinds(mode)) {
            self.graphs.rehearse(kind, microbatches, &mut |cx| self.program.evaluate(cx), updates)?;
        }
        Ok(())
    }
}

/// The region that a rehearsal leaves out: it changes weights.
fn updates(region: Region) -> bool {
    region == Region::Optimizer
}
