//! The lists of recorded steps, for readers outside of this crate.

use super::step::Code;
use crate::error::{Error, Result};
use crate::finally::Finally;
use crate::manager::CudaGraphManager;
use crate::policy::Policy;
use crate::program::{ListedEntry, Program};
use crate::tensor_tree::TensorTree;

impl<P: Policy> CudaGraphManager<P> {
    /// The list of a recorded step with so many microbatches. Empty if it was not recorded.
    pub fn list(&self, mode: P::Mode, microbatches: usize, mut each: impl FnMut(ListedEntry)) {
        let state = self.states.get(&self.step_key(mode, microbatches));
        if let Some(program) = state.and_then(|state| state.programs.get(&microbatches)) {
            program.list(|entry| each(ListedEntry { graph: self.graph_of(program, entry.visit), ..entry }));
        }
    }

    /// The visit that is a graph and contains a visit.
    fn graph_of(&self, program: &Program<P::Region>, visit: Option<usize>) -> Option<usize> {
        let outwards = std::iter::successors(visit, |visit| program.visits[*visit].outer());
        outwards.filter(|visit| self.why_eager(program, *visit).is_none()).last()
    }

    /// As [`CudaGraphManager::list`], with tensors at planned addresses.
    ///
    /// # Errors
    /// [`Error::Usage`] before the step has memory.
    pub fn bound_list(&mut self, mode: P::Mode, microbatches: usize, mut each: impl FnMut(ListedEntry)) -> Result<()> {
        let key = self.step_key(mode, microbatches);
        let Some(state) = self.states.get(&key) else { return Ok(()) };
        let Some(program) = state.programs.get(&microbatches).cloned() else { return Ok(()) };
        let planned = &state.plan.areas;
        if !planned.iter().all(|(kind, bytes)| self.areas.get(kind).is_some_and(|area| area.bytes() >= *bytes)) {
            let problem = "a list was bound before its step has memory";
            return Err(Error::usage(problem, "call allocate, or run a step, first"));
        }
        let binding = self.binding(key, microbatches);
        program.list(|entry| {
            let op = entry.op.map(|op| op.map(|tensor| binding.bound(&program, tensor)));
            let mut accesses = entry.accesses;
            for tensor in accesses.reads.iter_mut().chain(&mut accesses.writes) {
                *tensor = binding.bound(&program, *tensor);
            }
            each(ListedEntry { op, accesses, ..entry });
        });
        Ok(())
    }

    /// The list that the code of a step makes, in words as in [`CudaGraphManager::lists`]. The step need not be
    /// recorded, and nothing is planned.
    ///
    /// # Errors
    /// Errors of `code`; a mistake in the list.
    pub fn list_of<O: TensorTree>(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        code: Code<'_, P, O>,
    ) -> Result<String> {
        let device = self.pool.device().clone();
        let made = device.buffers_made();
        let _forgotten = Finally(|| device.forget_buffers_since(made));
        let (program, _) = self.recorded(microbatches, mode, code)?;
        let mut text = String::new();
        program.write(&mode, &device, &mut text);
        Ok(text)
    }

    /// The lists of all recorded steps in words. A line for each entry has its number, its queue, its name, the other
    /// entries that it waits for, and the tensors that it reads and writes. A region that does the same as an earlier
    /// one, on other buffers, has one line that names the earlier one.
    pub fn lists(&self) -> String {
        let mut text = String::new();
        for (kind, state) in &self.states {
            state.programs.values().for_each(|program| program.write(&kind.0, self.pool.device(), &mut text));
        }
        text
    }
}
