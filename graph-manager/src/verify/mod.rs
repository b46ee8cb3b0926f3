//! A step run with graphs and, from the same state, eagerly: both must leave the same bits.

mod difference;
mod results;

use std::rc::Rc;

use device::{Device, Home, Snapshot, Tensor};

use crate::error::Result;
use crate::keys::StepKey;
use crate::manager::CudaGraphManager;
use crate::memory::Binding;
use crate::policy::Policy;
use crate::program::{Program, Write};
use crate::steps::{Code, Keeps, Run, Trial};
use crate::tensor_tree::TensorTree;
pub use difference::{Difference, DifferingValues, Sameness};
use results::Results;

/// How a step is verified.
pub struct Verification<'a> {
    /// The memory for the buffers of the eager step.
    pub memory: EagerMemory,
    /// Whether any rank's answer is yes. All ranks verify the same step, and call it together.
    pub any: &'a dyn Fn(bool) -> bool,
    /// When a result counts as the same. Anything but [`Sameness::Bits`] keeps all results of both runs on the host.
    pub same: Sameness,
}

impl Default for Verification<'_> {
    /// One rank, with memory apart.
    fn default() -> Self {
        Verification { memory: EagerMemory::Apart, any: &|differs| differs, same: Sameness::Bits }
    }
}

/// The memory for the buffers of the eager step in a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EagerMemory {
    /// Separate bytes for each buffer. So if the plan gives a buffer's memory to another too early, that shows as a
    /// difference. The memory is allocated for the verification.
    Apart,
    /// The memory of the plan. A wrong plan gives the same wrong bits with graphs and without, and is not found.
    Shared,
}

/// The memory that a verification needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerificationBytes {
    /// On the host, for the state that the step changes, and with [`EagerMemory::Apart`] for buffers there.
    pub host: usize,
    /// On the device, with [`EagerMemory::Apart`].
    pub device: usize,
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq)]
pub enum Verified {
    /// Nothing was run: steps of this kind have no graphs yet, or another rank's code would make another list.
    NotYet,
    /// Both steps left the same results.
    Same {
        /// Tensors compared: all that the step writes and that outlive it, and the results of its code.
        tensors: usize,
        /// The size of the tensors compared.
        bytes: usize,
    },
    /// The steps left different results.
    Differs(Box<Difference>),
}

impl<P: Policy> CudaGraphManager<P> {
    /// Calls the code of a step once more, and fails if the code would make another list. Then runs the step with its
    /// graphs and, from the same state, by submitting its list, and compares the results of both. Afterwards the state
    /// is as before: run the step itself with [`CudaGraphManager::step`].
    ///
    /// The state is all memory outside of the plan that the step's operations write, such as weights, gradients and
    /// counters. It is saved in the host's memory, page-locked for a GPU, which stays for the next verification. Values that
    /// host calls read must be the same in both runs.
    ///
    /// If the results differ, both steps run again, and the host waits after each region to look at its results. This
    /// finds the first region that does something else as a graph. All ranks of a step call it together.
    ///
    /// # Errors
    /// As [`CudaGraphManager::step`]; out of memory; [`Error::Frozen`](crate::Error::Frozen), or an out-of-order error,
    /// if the code would now make another list.
    pub fn verify<O: TensorTree>(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        how: &Verification<'_>,
        code: Code<'_, P, O>,
    ) -> Result<Verified> {
        self.verify_from(mode, microbatches, how, code, &|_, _, recorded| recorded)
    }

    /// As [`CudaGraphManager::verify`], with other tensors in place of the recorded inputs that regions copy.
    pub(crate) fn verify_from<O: TensorTree>(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        how: &Verification<'_>,
        code: Code<'_, P, O>,
        input: &dyn Fn(usize, usize, Tensor) -> Tensor,
    ) -> Result<Verified> {
        if !self.options.enable || !self.is_settled(mode, microbatches) {
            return Ok(Verified::NotYet);
        }
        let key = self.prepare(mode, microbatches, &mut *code)?;
        if !self.states[&key].begun {
            return Ok(Verified::NotYet);
        }
        // A rank alone would wait for the others' transfers for ever.
        let frozen = self.compare(key, microbatches, code).err();
        if (how.any)(frozen.is_some()) {
            return frozen.map_or(Ok(Verified::NotYet), Err);
        }
        self.verify_list(key, microbatches, how, input, Looks::AtEnd)
    }

    /// As [`CudaGraphManager::verify_from`], without a look at the code.
    pub(crate) fn verify_list(
        &mut self,
        key: StepKey<P::Mode>,
        microbatches: usize,
        how: &Verification<'_>,
        input: &dyn Fn(usize, usize, Tensor) -> Tensor,
        looks: Looks,
    ) -> Result<Verified> {
        let device = self.pool.device().clone();
        let program = self.states[&key].programs[&microbatches].clone();
        // Dropped in the other order: an area outlives what shares it.
        let (_areas, _shared, apart) = match how.memory {
            EagerMemory::Apart => {
                let (areas, binding) = Binding::apart(&device, &program)?;
                let with = program.communicators_of_rows().into_iter();
                let shared = with.map(|with| with.share(areas[0].addresses())).collect::<device::Result<Vec<_>>>()?;
                (Some(areas), shared, Some(Rc::new(binding)))
            }
            EagerMemory::Shared => (None, Vec::new(), None),
        };
        let planned = self.binding(key, microbatches);
        let results = match looks {
            Looks::AtEnd => self.results_at_end(&program),
            Looks::AfterEachRegion => self.results_by_region(&program, |tensor| Tensor {
                buffer: tensor.buffer,
                ..planned.bound(&program, *tensor)
            }),
        };
        let mut before = std::mem::take(&mut self.put_aside);
        device.snapshot(&mut before, program.state())?;
        let same = how.same;
        let mut pair = Pair { manager: self, program, key, device, before, planned, apart, input, same };
        let found = pair.compare(&results, how.any);
        let restored = pair.device.restore(&pair.before);
        pair.manager.put_aside = std::mem::take(&mut pair.before);
        // If both fail, the error of the step says more.
        let found = found?;
        restored?;
        Ok(found)
    }

    /// The memory that [`CudaGraphManager::verify`] needs for a step of this kind; 0 if the step was not recorded.
    pub fn verification_bytes(&self, mode: P::Mode, microbatches: usize) -> VerificationBytes {
        let state = self.states.get(&self.step_key(mode, microbatches));
        let Some(program) = state.and_then(|state| state.programs.get(&microbatches)) else {
            return VerificationBytes::default();
        };
        let state: usize = program.state().iter().map(Tensor::bytes).sum();
        let [device, host] = [Home::Device, Home::Host].map(|home| Binding::bytes_apart(program, home));
        VerificationBytes { host: state + host, device }
    }
}

/// When the results of a verified step are compared. If they differ at its end, they are also compared after each region.
pub(crate) enum Looks {
    AtEnd,
    /// The host waits after each region.
    AfterEachRegion,
}

/// A step that is run with graphs and eagerly, in turn, from the same state.
struct Pair<'p, P: Policy> {
    manager: &'p mut CudaGraphManager<P>,
    program: Rc<Program<P::Region>>,
    key: StepKey<P::Mode>,
    device: Device,
    before: Snapshot,
    planned: Rc<Binding>,
    apart: Option<Rc<Binding>>,
    /// See [`Run::input`].
    input: &'p dyn Fn(usize, usize, Tensor) -> Tensor,
    same: Sameness,
}

/// The state is also restored if a host call of the step panics.
impl<P: Policy> Drop for Pair<'_, P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.device.restore(&self.before).unwrap_or_else(|error| tracing::warn!("{error}"));
        }
    }
}

/// The two ways to run a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Graphed,
    Eager,
}

impl<P: Policy> Pair<'_, P> {
    fn compare(&mut self, results: &Results, any: &dyn Fn(bool) -> bool) -> Result<Verified> {
        let bytes = results.all().map(|write| write.tensor.bytes()).sum();
        let same = Verified::Same { tensors: results.all().count(), bytes };
        let differs = self.first_difference(results)?;
        if !any(differs.is_some()) {
            return Ok(same);
        }
        // All ranks look, for each needs the others' transfers.
        let place = |tensor: &Tensor| self.bound(tensor, Way::Graphed);
        let by_region = self.manager.results_by_region(&self.program, place);
        let visible = self.first_difference(&by_region)?;
        let (results, first) = if visible.is_some() { (&by_region, visible) } else { (results, differs) };
        let keeps = first.map_or(Keeps::None, Keeps::One);
        let [graphed, eager] = [self.run(Way::Graphed, results, keeps)?, self.run(Way::Eager, results, keeps)?];
        // Another rank differs, and this one does not.
        let Some(first) = first else { return Ok(same) };
        let hidden_by_waits = visible.is_none();
        let bytes = [&graphed, &eager].map(|trial| &*trial.kept[0]);
        Ok(Verified::Differs(Box::new(self.difference(results, first, bytes, hidden_by_waits))))
    }

    /// The number of the first result that differs with graphs.
    fn first_difference(&mut self, results: &Results) -> Result<Option<usize>> {
        let keeps = if self.same == Sameness::Bits { Keeps::None } else { Keeps::All };
        let [graphed, eager] = [self.run(Way::Graphed, results, keeps)?, self.run(Way::Eager, results, keeps)?];
        if self.same == Sameness::Bits {
            return Ok(graphed.digests.iter().zip(&eager.digests).position(|(graphed, eager)| graphed != eager));
        }
        let mut noted = results.all().zip(graphed.kept.iter().zip(&eager.kept));
        Ok(noted.position(|(write, (graphed, eager))| {
            DifferingValues::between(graphed, eager, write.tensor.dtype, self.same).is_some()
        }))
    }

    /// Runs the step, and notes `results`.
    fn run(&mut self, way: Way, results: &Results, keeps: Keeps) -> Result<Trial> {
        self.device.restore(&self.before)?;
        let placed = |writes: &Vec<Write>| writes.iter().map(|write| self.bound(&write.tensor, way)).collect();
        let after = results.after.iter().map(|(visit, writes)| (*visit, placed(writes))).collect();
        let mut trial = Trial { after, at_end: placed(&results.at_end), keeps, ..Trial::default() };
        let apart = self.apart.clone().filter(|_| way == Way::Eager);
        let run = Run { apart, input: self.input, ..Run::all(way == Way::Graphed) };
        self.manager.run(self.key, self.program.microbatches, &run, Some(&mut trial))?;
        self.device.synchronize()?;
        let at_end = std::mem::take(&mut trial.at_end);
        trial.note(&self.device, &at_end)?;
        Ok(trial)
    }

    /// The tensor of the recording at the tensor's address when the step is run that way.
    fn bound(&self, tensor: &Tensor, way: Way) -> Tensor {
        let binding = self.apart.as_ref().filter(|_| way == Way::Eager).unwrap_or(&self.planned);
        // Under the name of its own microbatch.
        Tensor { buffer: tensor.buffer, ..binding.bound(&self.program, *tensor) }
    }

    /// The difference in the result `number`, with the result's bytes in both steps.
    fn difference(&self, results: &Results, number: usize, bytes: [&[u8]; 2], hidden_by_waits: bool) -> Difference {
        let program = &self.program;
        let Some(Write { position, op, tensor, .. }) = results.all().nth(number) else { unreachable!("it was noted") };
        let region = program.innermost(*position).map_or("step".into(), |at| program.visits[at].name.to_string());
        Difference {
            region,
            operation: op,
            tensor: self.device.buffer_name(tensor.buffer),
            address: self.bound(tensor, Way::Graphed).address,
            dtype: tensor.dtype,
            elements: tensor.elements(),
            same: self.same,
            values: DifferingValues::between(bytes[0], bytes[1], tensor.dtype, self.same),
            hidden_by_waits,
        }
    }
}

#[cfg(test)]
mod tests {
    use device::ops::{Copy, Fill};
    use device::{DType, Device, HostOptions};

    use super::{EagerMemory, Verification, Verified};
    use crate::manager::CudaGraphManager;
    use crate::options::ManagerOptions;
    use crate::policy::CaptureAll;

    /// Verifies a step with a wrong plan: it gives the memory of a buffer to another too early.
    fn found(memory: EagerMemory) -> Verified {
        let device = Device::host(HostOptions { check: false, ..HostOptions::default() }).unwrap();
        let area = device.allocate("totals", 512).unwrap();
        let totals = area.tensor("totals", 0, [2, 64], DType::F32);
        let policy = CaptureAll::<&'static str>::default();
        let mut manager = CudaGraphManager::new(device.stream("compute"), ManagerOptions::default(), policy).unwrap();
        let step = &mut |cx: &mut crate::StepContext<'_, CaptureAll<&'static str>>| {
            let early = cx.region("first", (), |cx, ()| {
                let early = cx.tensor("early", [64], DType::F32)?;
                cx.run(Fill { output: early, value: 1.0 })?;
                Ok(early)
            })?;
            let late = cx.region("second", (), |cx, ()| {
                let late = cx.tensor("late", [64], DType::F32)?;
                cx.run(Fill { output: late, value: 2.0 })?;
                Ok(late)
            })?;
            cx.region("third", early, |cx, input| cx.run(Copy { input, output: totals.at(0) }))?;
            cx.region("fourth", late, |cx, input| cx.run(Copy { input, output: totals.at(1) }))
        };
        manager.record("step", 1, step).unwrap();
        manager.states.values_mut().for_each(|state| state.plan.misplace(1, 0));
        (0..3).for_each(|_| manager.step("step", 1, step).unwrap());
        manager.verify("step", 1, &Verification { memory, ..Verification::default() }, step).unwrap()
    }

    #[test]
    fn a_buffer_that_the_plan_gives_back_early_is_found_in_memory_apart() {
        let Verified::Differs(difference) = found(EagerMemory::Apart) else { panic!("nothing was found") };
        let words = "third: `totals` (64 x f32, written by `copy`) has other bits with graphs: 64 elements differ, the first at \
                     index 0: 2.0 with graphs, 1.0 without";
        assert_eq!(difference.to_string(), words);
        // A wrong plan gives the same wrong bits in both ways.
        assert!(matches!(found(EagerMemory::Shared), Verified::Same { .. }));
    }
}
