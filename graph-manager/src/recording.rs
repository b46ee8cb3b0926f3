//! A recorded step: its regions in order, the buffers they take, and when these are in use.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use device::{BufferId, Op, StreamId, Tensor, TraceEvent};

use crate::error::{Error, Result};
use crate::lifetimes::{Lifetime, lifetimes};
use crate::policy::Policy;

/// One pass over a step in which nothing ran.
pub(crate) struct Recording<R> {
    pub(crate) microbatches: usize,
    pub(crate) order: Vec<Visit<R>>,
    /// Operations of the whole step.
    pub(crate) operations: usize,
    pub(crate) buffers: Vec<RecordedBuffer>,
    /// What operations write, in the order of submission.
    pub(crate) writes: Vec<Write>,
    /// A buffer that no operation uses has none.
    pub(crate) lifetimes: HashMap<BufferId, Lifetime>,
    /// Buffers that code outside of the step reads, each with the position in the trace until which it does.
    pub(crate) kept: Vec<(BufferId, usize)>,
    /// What `clip_scale` has written.
    pub(crate) clipped: RefCell<Vec<BufferId>>,
}

/// A tensor that an operation writes. In a buffer that a region took it has an address of the recording's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    /// Position in the trace.
    pub(crate) position: usize,
    /// The operation's name.
    pub(crate) op: &'static str,
    pub(crate) tensor: Tensor,
}

/// One region of the recorded order.
#[derive(Clone, Debug)]
pub(crate) struct Visit<R> {
    pub(crate) region: R,
    /// The region in words.
    pub(crate) name: Rc<str>,
    /// Index of the visit that this one is directly inside of.
    pub(crate) outer: Option<usize>,
    /// Index of the first visit after this one that is not inside it.
    pub(crate) next: usize,
    /// Positions in the trace of what was submitted.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Operations among these.
    pub(crate) operations: usize,
    /// The stream that the region runs on.
    pub(crate) stream: StreamId,
    /// Which of the recorded buffers the region and those inside it take.
    pub(crate) taken: Range<usize>,
}

/// A buffer that a region took.
#[derive(Clone, Debug)]
pub(crate) struct RecordedBuffer {
    /// Index in `order` of the region that took it.
    pub(crate) visit: usize,
    /// How many the region had taken before.
    pub(crate) index: usize,
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    pub(crate) buffer: BufferId,
    /// Where it begins among the recording's own addresses.
    pub(crate) address: u64,
    /// Position in the trace.
    pub(crate) taken_at: usize,
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Recording<R> {
    pub(crate) fn new(microbatches: usize) -> Recording<R> {
        Recording {
            microbatches,
            order: Vec::new(),
            operations: 0,
            buffers: Vec::new(),
            writes: Vec::new(),
            lifetimes: HashMap::new(),
            kept: Vec::new(),
            clipped: RefCell::default(),
        }
    }

    /// Refuses an update before which nothing has written its status: on the device it would skip every step in silence.
    pub(crate) fn check_clipped(&self, op: &Op) -> device::Result<()> {
        let status = match op {
            Op::ClipScale(clip) => {
                self.clipped.borrow_mut().push(clip.status.buffer);
                return Ok(());
            }
            Op::AdamW(update) => update.status.buffer,
            Op::Lion(update) => update.status.buffer,
            Op::Sgd(update) => update.status.buffer,
            Op::NesterovMomentum(update) => update.status.buffer,
            Op::DecayedStep(update) => update.status.buffer,
            _ => return Ok(()),
        };
        if self.clipped.borrow().contains(&status) {
            return Ok(());
        }
        let problem = "no clip_scale comes before it in the step, so it would never update. Fix: submit square_sum and \
                       clip_scale with this status first, also without clipping";
        Err(device::Error::operation(op.name(), problem))
    }

    /// Adds a region of that stream that begins at this position; returns its index in `order`.
    pub(crate) fn begin(&mut self, region: R, outer: Option<usize>, position: usize, stream: StreamId) -> usize {
        let name = region.to_string().into();
        let taken = self.buffers.len()..self.buffers.len();
        let visit =
            Visit { region, name, outer, next: 0, start: position, end: position, operations: 0, stream, taken };
        self.order.push(visit);
        self.order.len() - 1
    }

    /// Ends a region at this position.
    pub(crate) fn end(&mut self, visit: usize, position: usize) {
        let (next, taken) = (self.order.len(), self.buffers.len());
        let visit = &mut self.order[visit];
        (visit.next, visit.end, visit.taken.end) = (next, position, taken);
    }

    /// The end of the step, with what was submitted.
    pub(crate) fn finish(mut self, trace: &[TraceEvent], compute: StreamId) -> Recording<R> {
        self.lifetimes = lifetimes(trace, compute);
        let count =
            |events: &[TraceEvent]| events.iter().filter(|event| matches!(event, TraceEvent::Operation { .. })).count();
        self.order.iter_mut().for_each(|visit| visit.operations = count(&trace[visit.start..visit.end]));
        self.operations = count(trace);
        for (position, event) in trace.iter().enumerate() {
            if let TraceEvent::Operation { name: op, writes, .. } | TraceEvent::HostCopy { name: op, writes, .. } =
                event
            {
                self.writes.extend(writes.iter().map(|&tensor| Write { position, op, tensor }));
            }
        }
        for (buffer, until) in &self.kept {
            if let Some(used) = self.lifetimes.get_mut(buffer) {
                used.keep_until(*until);
            }
        }
        self
    }

    /// Whether a region has others inside it.
    pub(crate) fn is_composite(&self, visit: usize) -> bool {
        self.order[visit].next > visit + 1
    }

    /// Bytes of the buffers that a region takes, those of the regions inside it included.
    pub(crate) fn bytes(&self, visit: usize) -> usize {
        self.buffers[self.order[visit].taken.clone()].iter().map(|buffer| buffer.bytes).sum()
    }

    /// When a buffer is in use. One that no operation uses is there where it was taken.
    pub(crate) fn used(&self, buffer: &RecordedBuffer, compute: StreamId) -> Lifetime {
        let at = buffer.taken_at;
        let taken = Lifetime { first: at, last: at, stream: Some(compute), in_stream: (at, at) };
        self.lifetimes.get(&buffer.buffer).copied().unwrap_or(taken)
    }

    /// Index of the innermost region that contains a position.
    pub(crate) fn innermost(&self, position: usize) -> Option<usize> {
        let begun = self.order.partition_point(|visit| visit.start <= position);
        let mut at = begun.checked_sub(1)?;
        while position >= self.order[at].end {
            at = self.order[at].outer?;
        }
        Some(at)
    }

    /// Whether the step can be planned: each region comes once, and belongs to a microbatch that the step has.
    pub(crate) fn check(&self, policy: &impl Policy<Region = R>) -> Result<()> {
        let mut seen = HashSet::new();
        for Visit { region, name, .. } in &self.order {
            if !seen.insert(*region) {
                let problem = format!("region `{name}` comes twice in a step");
                let fix = "give each visit a region of its own, for buffers and graphs belong to the region";
                return Err(Error::usage(problem, fix));
            }
            let (microbatch, of) = (policy.instance(*region).map(|instance| instance.microbatch), self.microbatches);
            if let Some(microbatch) = microbatch.filter(|microbatch| *microbatch >= of) {
                let problem =
                    format!("region `{name}` is of microbatch {microbatch}, counted from 0, in a step of {of}");
                return Err(Error::usage(problem, "pass the number of microbatches to the manager's step"));
            }
        }
        Ok(())
    }
}
