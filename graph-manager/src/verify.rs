//! A step run with its graphs and, from the same state, eagerly: both must leave the same bits.

use std::rc::Rc;

use device::{Device, Snapshot, Tensor};

use crate::binding::Binding;
use crate::context::StepContext;
use crate::difference::{Difference, DifferingValues};
use crate::error::Result;
use crate::keys::StepKey;
use crate::manager::CudaGraphManager;
use crate::policy::Policy;
use crate::program::{Program, Write};
use crate::results::Results;
use crate::state::Handover;
use crate::step::Body;
use crate::trial::Trial;

/// How a step is verified.
pub struct Verification<'a> {
    /// Where the buffers of the eager step lie.
    pub memory: EagerMemory,
    /// Whether any rank's answer is yes. All ranks verify the same step, and call it together.
    pub any: &'a dyn Fn(bool) -> bool,
}

impl Default for Verification<'_> {
    /// One rank, with memory apart.
    fn default() -> Self {
        Verification { memory: EagerMemory::Apart, any: &|differs| differs }
    }
}

/// Where the buffers of an eager step lie whose bits are compared with those of graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EagerMemory {
    /// Each has bytes of its own, which no other buffer of the step has. So a buffer that the plan gives to another too early
    /// shows as a difference. The memory is allocated for the verification.
    Apart,
    /// Where the plan has them. A plan that is wrong gives wrong bits with graphs and without, and is not found.
    Shared,
}

/// The memory that a verification needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerificationBytes {
    /// On the host, for the state that the step changes.
    pub host: usize,
    /// On the device, with [`EagerMemory::Apart`].
    pub device: usize,
}

/// What a verification found.
#[derive(Clone, Debug, PartialEq)]
pub enum Verified {
    /// Nothing was run: steps of this kind have no graphs yet.
    NotYet,
    /// Both steps left the same bits.
    Same {
        /// Tensors compared: all that the step writes and that outlive it.
        tensors: usize,
        /// Their size.
        bytes: usize,
    },
    /// They did not.
    Differs(Box<Difference>),
}

impl<P: Policy> CudaGraphManager<P> {
    /// Runs a step with its graphs and, from the same state, eagerly, and compares all that both leave. Then the state is as
    /// before: run the step itself with [`CudaGraphManager::step`].
    ///
    /// The state is what the step's operations write outside of its plan, such as weights, gradients and counters. It is put
    /// aside in the host's memory. What else the code of the step reads, such as host values, must be the same in both runs.
    ///
    /// If the bits differ, both steps run again, and the host waits after each region to look at what it leaves. So the first
    /// region is found that does something else as a graph. All ranks of a step call it together.
    ///
    /// # Errors
    /// As [`CudaGraphManager::step`]; out of memory.
    pub fn verify(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        how: &Verification<'_>,
        body: Body<'_, P>,
    ) -> Result<Verified> {
        if !self.options.enable || !self.is_settled(mode, microbatches) {
            return Ok(Verified::NotYet);
        }
        let key = self.prepare(mode, microbatches, body)?;
        if !self.states[&key].begun {
            return Ok(Verified::NotYet);
        }
        let device = self.pool.device().clone();
        let program = &self.states[&key].programs[&microbatches];
        let (_area, apart) = match how.memory {
            EagerMemory::Apart => {
                let (area, binding) = Binding::apart(&device, program)?;
                (Some(area), Some(Rc::new(binding)))
            }
            EagerMemory::Shared => (None, None),
        };
        let results = self.results_at_end(program);
        let before = device.snapshot(program.state())?;
        let mut pair = Pair { manager: self, mode, microbatches, key, device, before, apart, of_graphs: None, body };
        let found = pair.compare(&results, how.any);
        let restored = pair.device.restore(&pair.before);
        // Where both fail, why the step failed says more.
        let found = found?;
        restored?;
        Ok(found)
    }

    /// The memory that [`CudaGraphManager::verify`] needs for a step of this kind; 0 if it was not recorded.
    pub fn verification_bytes(&self, mode: P::Mode, microbatches: usize) -> VerificationBytes {
        let state = self.states.get(&self.step_key(mode, microbatches));
        let Some(program) = state.and_then(|state| state.programs.get(&microbatches)) else {
            return VerificationBytes::default();
        };
        let host = program.state().iter().map(Tensor::bytes).sum();
        VerificationBytes { host, device: Binding::bytes_apart(program) }
    }
}

/// A step that is run with graphs and eagerly, in turn, from the same state.
struct Pair<'p, 'b, P: Policy> {
    manager: &'p mut CudaGraphManager<P>,
    mode: P::Mode,
    microbatches: usize,
    key: StepKey<P::Mode>,
    device: Device,
    before: Snapshot,
    apart: Option<Rc<Binding>>,
    /// While the step runs eagerly: what the code of the graphs left.
    of_graphs: Option<Handover<P>>,
    body: Body<'b, P>,
}

/// Where the code of the step panics, the state goes back too.
impl<P: Policy> Drop for Pair<'_, '_, P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.hand_back();
            self.device.restore(&self.before).unwrap_or_else(|error| tracing::warn!("{error}"));
        }
    }
}

/// The two ways that a step is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Graphed,
    Eager,
}

impl<P: Policy> Pair<'_, '_, P> {
    fn compare(&mut self, at_end: &Results, any: &dyn Fn(bool) -> bool) -> Result<Verified> {
        let bytes = at_end.at_end.iter().map(|write| write.tensor.bytes()).sum();
        let same = Verified::Same { tensors: at_end.at_end.len(), bytes };
        let differs = self.first_difference(at_end)?;
        if !any(differs.is_some()) {
            return Ok(same);
        }
        // All ranks look, for each needs the others' transfers.
        let place = |tensor: &Tensor| self.place(tensor, Way::Graphed);
        let by_region = self.manager.results_by_region(self.program(), place);
        let visible = self.first_difference(&by_region)?;
        let (results, first) = if visible.is_some() { (&by_region, visible) } else { (at_end, differs) };
        let graphed = self.run(Way::Graphed, results, first)?.kept;
        let eager = self.run(Way::Eager, results, first)?.kept;
        let Some(first) = first else { return Ok(same) };
        let hidden_by_waits = visible.is_none();
        Ok(Verified::Differs(Box::new(self.difference(results, first, [&graphed, &eager], hidden_by_waits))))
    }

    /// The number of the first result that is another with graphs.
    fn first_difference(&mut self, results: &Results) -> Result<Option<usize>> {
        let graphed = self.run(Way::Graphed, results, None)?.digests;
        let eager = self.run(Way::Eager, results, None)?.digests;
        Ok(graphed.iter().zip(&eager).position(|(graphed, eager)| graphed != eager))
    }

    /// Runs the step, and notes these results.
    fn run(&mut self, way: Way, results: &Results, keeps: Option<usize>) -> Result<Trial> {
        self.device.restore(&self.before)?;
        let placed = |writes: &Vec<Write>| writes.iter().map(|write| self.place(&write.tensor, way)).collect();
        let after = results.after.iter().map(|(visit, writes)| (*visit, placed(writes))).collect();
        let apart = self.apart.clone().filter(|_| way == Way::Eager);
        let trial = Trial { apart, after, at_end: placed(&results.at_end), keeps, ..Trial::default() };
        // The code leaves addresses for later regions. Those of an eager step are for that step alone.
        if way == Way::Eager {
            self.of_graphs = Some(std::mem::take(&mut self.manager.state_mut(self.key).handover));
        }
        let Pair { manager, mode, microbatches, body, .. } = self;
        let result = manager.pass(*mode, *microbatches, way == Way::Graphed, |cx| {
            cx.trial = Some(Box::new(trial));
            body(cx)?;
            cx.check_complete()?;
            cx.note_end()
        });
        self.hand_back();
        result
    }

    fn hand_back(&mut self) {
        if let Some(of_graphs) = self.of_graphs.take() {
            self.manager.state_mut(self.key).handover = of_graphs;
        }
    }

    fn program(&self) -> &Program<P::Region> {
        &self.manager.states[&self.key].programs[&self.microbatches]
    }

    /// Where a tensor of the recording lies when the step is run that way.
    fn place(&self, tensor: &Tensor, way: Way) -> Tensor {
        let (program, state) = (self.program(), &self.manager.states[&self.key]);
        let placed = match self.apart.as_ref().filter(|_| way == Way::Eager) {
            None => state.bound(program, &self.manager.policy, *tensor).map(|bound| bound.address),
            Some(apart) => match program.taken(tensor.buffer) {
                None => Some(tensor.address),
                Some(index) => {
                    apart.address(index).map(|start| start + (tensor.address - program.buffers[index].address))
                }
            },
        };
        let address = placed.unwrap_or_else(|| unreachable!("a step that runs has memory for all its buffers"));
        Tensor { address, ..*tensor }
    }

    /// The result of that number, with its bytes in both steps.
    fn difference(&self, results: &Results, number: usize, bytes: [&[u8]; 2], hidden_by_waits: bool) -> Difference {
        let program = self.program();
        let mut noted = results.after.values().flatten().chain(&results.at_end);
        let Some(Write { position, op, tensor }) = noted.nth(number) else { unreachable!("it was noted") };
        let region = program.innermost(*position).map_or("step".into(), |at| program.visits[at].name.to_string());
        Difference {
            region,
            operation: op,
            tensor: self.device.buffer_name(tensor.buffer),
            address: self.place(tensor, Way::Graphed).address,
            dtype: tensor.dtype,
            elements: tensor.elements(),
            values: DifferingValues::between(bytes[0], bytes[1], tensor.dtype),
            hidden_by_waits,
        }
    }
}

impl<P: Policy> StepContext<'_, P> {
    /// After a region of a trial: notes what it leaves. The host waits for the region's stream alone: other streams may wait
    /// for what this rank has yet to send.
    pub(crate) fn note_results(&mut self, visit: usize) -> Result<()> {
        let Some(mut trial) = self.trial.take() else { return Ok(()) };
        let mut noted = Ok(());
        if let Some(tensors) = trial.after.remove(&visit) {
            noted = self.compute().synchronize().map_err(Into::into);
            noted = noted.and_then(|()| trial.note(self.manager.pool.device(), &tensors));
        }
        self.trial = Some(trial);
        noted
    }

    /// At the end of a trial: notes what the step leaves.
    pub(crate) fn note_end(&mut self) -> Result<Trial> {
        let mut trial = self.trial.take().unwrap_or_default();
        let device = self.manager.pool.device();
        device.synchronize()?;
        let tensors = std::mem::take(&mut trial.at_end);
        trial.note(device, &tensors)?;
        Ok(*trial)
    }
}
