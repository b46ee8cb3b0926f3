//! What the code of one region leaves for another.

use std::any::Any;
use std::collections::HashMap;

use device::Op;

use crate::keys::CodeKey;
use crate::policy::Policy;

type Code<P> = CodeKey<<P as Policy>::Region, <P as Policy>::Variant>;

/// Values saved for backward and deferred operations. A replayed region runs no code, so what its capture left stays.
pub(crate) struct Handover<P: Policy> {
    /// By the region that saved it, and the part of that region.
    pub(crate) saved: HashMap<(Code<P>, Option<usize>), Box<dyn Any>>,
    /// By the region that deferred them, in the order of submission.
    pub(crate) deferred: HashMap<Code<P>, Vec<Op>>,
}

impl<P: Policy> Default for Handover<P> {
    fn default() -> Handover<P> {
        Handover { saved: HashMap::new(), deferred: HashMap::new() }
    }
}
