//! What a manager owns, and its steps work with.

use std::collections::BTreeMap;
use std::rc::Rc;

use device::{Area, Device, Stream};

use crate::area::AreaKind;
use crate::error::{Error, Result};
use crate::keys::StepKey;
use crate::options::{ManagerOptions, Mempool};
use crate::policy::Policy;
use crate::recording::Recording;
use crate::side_stream::SideStream;
use crate::state::State;

/// Fields drop in order: graphs before the memory they point into.
pub(crate) struct Resources<P: Policy> {
    pub(crate) states: BTreeMap<StepKey<P::Mode>, State<P>>,
    pub(crate) areas: BTreeMap<AreaKind, Area>,
    pub(crate) device: Device,
    pub(crate) compute: Stream,
    pub(crate) side: Rc<SideStream>,
    pub(crate) options: ManagerOptions,
    pub(crate) policy: P,
}

impl<P: Policy> Resources<P> {
    /// Whether the region becomes a graph, or the reason why not.
    pub(crate) fn captured(&self, region: P::Region) -> std::result::Result<(), &'static str> {
        if self.options.enable { self.policy.captured(region) } else { Err("graphs are off") }
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
                self.states.insert(key, State::new(recording, by_slot, policy, compute)?);
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

    /// Allocates what the recorded modes need.
    pub(crate) fn allocate(&mut self) -> Result<()> {
        for (kind, bytes) in self.planned() {
            let area = self.device.allocate(&kind.to_string(), bytes)?;
            self.areas.insert(kind, area);
        }
        Ok(())
    }

    /// Fails when a mode was recorded after memory was allocated and needs more.
    pub(crate) fn check_room(&self, key: StepKey<P::Mode>) -> Result<()> {
        let fits = |(kind, bytes): (&AreaKind, &usize)| self.areas.get(kind).is_some_and(|area| area.bytes() >= *bytes);
        if self.states[&key].plan.areas.iter().all(fits) {
            return Ok(());
        }
        Err(Error::Usage {
            problem: format!("a {:?} step came after memory was allocated, and needs more than there is", key.0),
            fix: "record every mode, and every number of microbatches, that will run before the first step",
        })
    }
}
