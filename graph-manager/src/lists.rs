//! The lists of recorded steps, for those who read them.

use crate::error::{Error, Result};
use crate::manager::CudaGraphManager;
use crate::policy::Policy;
use crate::program::ListedEntry;

impl<P: Policy> CudaGraphManager<P> {
    /// The list of a recorded step with so many microbatches. Empty if it was not recorded.
    pub fn list(&self, mode: P::Mode, microbatches: usize, each: impl FnMut(ListedEntry)) {
        let state = self.states.get(&self.step_key(mode, microbatches));
        if let Some(program) = state.and_then(|state| state.programs.get(&microbatches)) {
            program.list(each);
        }
    }

    /// As [`CudaGraphManager::list`], with each tensor at its planned address.
    ///
    /// # Errors
    /// [`Error::Usage`] before the step has memory.
    pub fn bound_list(&self, mode: P::Mode, microbatches: usize, mut each: impl FnMut(ListedEntry)) -> Result<()> {
        let state = self.states.get(&self.step_key(mode, microbatches));
        let Some((state, program)) = state.and_then(|state| Some((state, state.programs.get(&microbatches)?))) else {
            return Ok(());
        };
        let mut unbound = false;
        program.list(|entry| {
            let mut place = |tensor| {
                state.bound(program, &self.policy, tensor).unwrap_or_else(|| {
                    unbound = true;
                    tensor
                })
            };
            let op = entry.op.map(|op| op.map(&mut place));
            let mut accesses = entry.accesses;
            accesses.reads.iter_mut().chain(&mut accesses.writes).for_each(|tensor| *tensor = place(*tensor));
            each(ListedEntry { op, accesses, ..entry });
        });
        match unbound {
            true => {
                Err(Error::usage("a list was bound before its step has memory", "call allocate, or run a step, first"))
            }
            false => Ok(()),
        }
    }

    /// The lists of all recorded steps in words. A line for each entry: its number, its queue, what it is called, the other
    /// entries that it waits for, what it reads and what it writes. A region that does what another does on other buffers has
    /// one line that names the other.
    pub fn lists(&self) -> String {
        let mut text = String::new();
        for (kind, state) in &self.states {
            state.programs.values().for_each(|program| program.write(&kind.0, self.pool.device(), &mut text));
        }
        text
    }
}
