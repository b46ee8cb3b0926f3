//! The results of a recorded step: the tensors written after each of its regions, and at its end.

use std::collections::{BTreeMap, HashMap};

use device::Tensor;

use crate::manager::CudaGraphManager;
use crate::policy::Policy;
use crate::program::{Program, Write};

/// The tensors that a verification compares, in groups. Each is compared as its last operation left it.
pub(crate) struct Results {
    /// By visit: the results of its region, unless it is part of a larger region's graph.
    pub(crate) after: BTreeMap<usize, Vec<Write>>,
    /// Results at the end of the step: outside of the plan, and those that its code returned.
    pub(crate) at_end: Vec<Write>,
}

impl Results {
    /// All results, in the order of a run's notes.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Write> {
        self.after.values().flatten().chain(&self.at_end)
    }
}

impl<P: Policy> CudaGraphManager<P> {
    /// The results of a recorded step at the step's end.
    pub(crate) fn results_at_end(&self, program: &Program<P::Region>) -> Results {
        let is_there =
            |write: &Write| program.taken(write.tensor.buffer).is_none_or(|taken| program.is_returned(taken));
        let mut at_end = last_of_each(program.writes().into_iter().filter(is_there).collect());
        at_end.retain(|write| !write.is_own);
        Results { after: BTreeMap::new(), at_end }
    }

    /// The results of a recorded step after each region. A result is left out if its memory is used again within the
    /// region: its values are gone at the region's end. So is what a body has for itself: without a run of the body its
    /// memory holds whatever was there before. `place` gives a recorded tensor its address in the plan.
    pub(crate) fn results_by_region(&self, program: &Program<P::Region>, place: impl Fn(&Tensor) -> Tensor) -> Results {
        let all = program.writes();
        let mut after = BTreeMap::new();
        for (visit, eager) in self.submitted(program) {
            let positions = program.visits[visit].positions();
            let first = all.partition_point(|write| write.position < positions.start);
            let end = all.partition_point(|write| write.position < positions.end);
            // The regions inside an eager one are submitted on their own.
            let own = |write: &&Write| eager.is_none() || program.innermost(write.position) == Some(visit);
            let writes = last_of_each(all[first..end].iter().filter(own).copied().collect());
            let placed: Vec<Tensor> = writes.iter().map(|write| place(&write.tensor)).collect();
            let survives = |at: &usize| {
                let mut later = placed[at + 1..].iter();
                let overwritten = later.any(|later| later.buffer != placed[*at].buffer && overlap(later, &placed[*at]));
                let taken = program.taken(writes[*at].tensor.buffer);
                let is_over = |buffer| program.used(buffer).last < positions.end;
                let poisoned = self.options.poison && taken.is_some_and(is_over);
                !overwritten && !poisoned && !writes[*at].is_own
            };
            after.insert(visit, (0..writes.len()).filter(survives).map(|at| writes[at]).collect());
        }
        Results { after, ..self.results_at_end(program) }
    }
}

fn overlap(a: &Tensor, b: &Tensor) -> bool {
    a.range().start < b.range().end && b.range().start < a.range().end
}

/// The last write of each tensor, in order.
fn last_of_each(writes: Vec<Write>) -> Vec<Write> {
    let last: HashMap<_, usize> =
        writes.iter().enumerate().map(|(at, write)| ((write.tensor.address, write.tensor.bytes()), at)).collect();
    let is_last = |(at, write): &(usize, &Write)| last[&(write.tensor.address, write.tensor.bytes())] == *at;
    writes.iter().enumerate().filter(is_last).map(|(_, write)| *write).collect()
}
