//! What a manager owns, and its steps work with.

use std::collections::BTreeMap;
use std::rc::Rc;

use device::{Area, Device, Stream};

use crate::area::AreaKind;
use crate::error::{Error, Result};
use crate::keys::StepKey;
use crate::options::{ManagerOptions, Mempool};
use crate::plan::Plan;
use crate::policy::Policy;
use crate::pool::Pool;
use crate::recording::Recording;
use crate::slots::in_flight;
use crate::state::State;

/// Fields drop in order: graphs before the memory they point into.
pub(crate) struct Resources<P: Policy> {
    pub(crate) states: BTreeMap<StepKey<P::Mode>, State<P>>,
    pub(crate) areas: BTreeMap<AreaKind, Rc<Area>>,
    pub(crate) pool: Pool,
    pub(crate) device: Device,
    pub(crate) compute: Stream,
    pub(crate) options: ManagerOptions,
    /// Steps begun.
    pub(crate) steps: u64,
    pub(crate) policy: P,
}

impl<P: Policy> Resources<P> {
    /// Whether the region at this index of the recorded order becomes a graph, or the reason why not.
    pub(crate) fn captured(
        &self,
        recording: &Recording<P::Region>,
        visit: usize,
    ) -> std::result::Result<(), &'static str> {
        if !self.options.enable {
            return Err("graphs are off");
        }
        let visit = &recording.order[visit];
        self.policy.captured(visit.region)?;
        if visit.start == visit.end { Err("it submits nothing") } else { Ok(()) }
    }

    /// A plan over the whole step is for one number of microbatches; slots hold any.
    pub(crate) fn step_key(&self, mode: P::Mode, microbatches: usize) -> StepKey<P::Mode> {
        (mode, (self.options.mempool == Mempool::Single).then_some(microbatches))
    }

    /// Files a recording: it is planned, or fits the plan of an earlier one.
    pub(crate) fn plan(&mut self, mode: P::Mode, recording: Recording<P::Region>) -> Result<()> {
        recording.check(&self.policy)?;
        let key = self.step_key(mode, recording.microbatches);
        let (policy, compute) = (&self.policy, self.compute.id());
        match self.states.get_mut(&key) {
            None => {
                let by_slot = self.options.mempool == Mempool::PerMicrobatch;
                let state = State::new(recording, by_slot, policy, compute)?;
                self.forget_oldest()?;
                self.states.insert(key, state);
            }
            Some(state) => {
                if self.areas.is_empty() {
                    state.make_room(&recording, policy, compute);
                }
                state.accept(&recording, policy)?;
                state.recordings.insert(recording.microbatches, recording);
            }
        }
        Ok(())
    }

    /// Bytes that the recorded modes need, by area. Modes share memory: one runs at a time.
    pub(crate) fn planned(&self) -> BTreeMap<AreaKind, usize> {
        let mut sizes: BTreeMap<AreaKind, usize> = BTreeMap::new();
        for state in self.states.values() {
            for (kind, bytes) in &state.plan.areas {
                let size = sizes.entry(*kind).or_default();
                *size = (*bytes).max(*size);
            }
        }
        sizes
    }

    /// Bytes that the recorded modes would need with that pool, by area.
    fn planned_as(&self, mempool: Mempool) -> BTreeMap<AreaKind, usize> {
        let mut sizes: BTreeMap<AreaKind, usize> = BTreeMap::new();
        let mut add = |recording: &Recording<P::Region>, slots| {
            for (kind, bytes) in Plan::new(recording, slots, &self.policy, self.compute.id()).areas {
                let size = sizes.entry(kind).or_default();
                *size = bytes.max(*size);
            }
        };
        let mut by_mode: BTreeMap<P::Mode, Vec<&Recording<P::Region>>> = BTreeMap::new();
        for (key, state) in &self.states {
            by_mode.entry(key.0).or_default().extend(state.recordings.values());
        }
        for recordings in by_mode.values() {
            if mempool == Mempool::Single {
                recordings.iter().for_each(|recording| add(recording, None));
                continue;
            }
            let mut slots: BTreeMap<usize, usize> = BTreeMap::new();
            for (chunk, needed) in recordings.iter().flat_map(|recording| in_flight(recording, &self.policy)) {
                let count = slots.entry(chunk).or_default();
                *count = needed.max(*count);
            }
            recordings
                .iter()
                .max_by_key(|recording| recording.microbatches)
                .iter()
                .for_each(|r| add(r, Some(slots.clone())));
        }
        sizes
    }

    /// Allocates what the recorded modes need and is not there.
    pub(crate) fn allocate(&mut self) -> Result<()> {
        for (kind, bytes) in self.planned() {
            if self.areas.get(&kind).is_some_and(|area| area.bytes() >= bytes) {
                continue;
            }
            let name = kind.to_string();
            let area = match kind {
                AreaKind::Scratch(stream) => self.pool.scratch(stream, &name, bytes),
                _ => self.device.allocate(&name, bytes).map(Rc::new).map_err(Error::from),
            };
            self.areas.insert(kind, area.map_err(|error| self.out_of_memory(error))?);
        }
        Ok(())
    }

    /// Says what the plan needs, and what the other pool would.
    fn out_of_memory(&self, error: Error) -> Error {
        let Error::Device { source: device::Error::OutOfMemory { name, bytes, available }, .. } = error else {
            return error;
        };
        let other = match self.options.mempool {
            Mempool::Single => Mempool::PerMicrobatch,
            Mempool::PerMicrobatch => Mempool::Single,
        };
        Error::OutOfMemory {
            area: name,
            bytes,
            available,
            planned: self.planned().values().sum(),
            other,
            with_other: self.planned_as(other).values().sum(),
        }
    }

    /// Makes sure that a step of that kind has its memory. Where it was recorded after memory was allocated and needs more,
    /// areas move, so all graphs are captured again.
    pub(crate) fn make_room(&mut self, key: StepKey<P::Mode>) -> Result<()> {
        let fits = |(kind, bytes): (&AreaKind, &usize)| self.areas.get(kind).is_some_and(|area| area.bytes() >= *bytes);
        if self.states[&key].plan.areas.iter().all(fits) {
            return Ok(());
        }
        if !self.areas.is_empty() {
            tracing::warn!(
                mode = ?key.0,
                "a step came that needs more memory than was planned: all graphs are captured again. \
                 Record every mode and number of microbatches before the first step to avoid this"
            );
            self.compute.synchronize()?;
            self.states.values_mut().for_each(State::forget_graphs);
            let planned = self.planned();
            self.areas.retain(|kind, area| planned.get(kind).is_none_or(|bytes| area.bytes() >= *bytes));
        }
        self.allocate()
    }

    /// Keeps the number of plans within its bound: the one that has not run for the longest time goes, with its graphs.
    fn forget_oldest(&mut self) -> Result<()> {
        if self.states.len() < self.options.plan_limit.get() {
            return Ok(());
        }
        let oldest = self.states.iter().min_by_key(|(_, state)| state.last_used).map(|(key, _)| *key);
        if let Some(key) = oldest {
            tracing::warn!(
                mode = ?key.0,
                limit = self.options.plan_limit,
                "more kinds of steps than plan_limit: the one that has not run for the longest time is forgotten, and is \
                 recorded and captured again if it comes back. Use fewer shapes, or raise plan_limit"
            );
            self.compute.synchronize()?;
            self.states.remove(&key);
        }
        Ok(())
    }

    /// Forgets everything and gives its memory back.
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.compute.synchronize()?;
        self.states.clear();
        self.areas.clear();
        Ok(())
    }
}
