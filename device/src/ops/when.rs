//! Work that runs only if a flag in device memory says so.

use super::select::check_flag;
use super::{Accesses, HasTensors, Operation, ensure, tensors};
use crate::{Op, Result, Tensor};

/// Runs operations, one after the other, if a flag in device memory is not 0 when their turn comes. The host does not
/// look at the flag.
///
/// In a graph it is a conditional node: a replay reads the flag anew. Outside of a graph, on a GPU, it is a small graph
/// of its own. A stream keeps 256 such graphs for later runs of the same operation. If a 257th comes, the one that was
/// longest not used goes, with a warning. A body with a custom operation is captured anew in every such run.
///
/// A tensor that the body writes keeps its values if the flag is 0. So the operation counts as a reader of it too: it
/// must have values before. A tensor in `own` does not: only the body uses it, and its values mean nothing afterwards.
///
/// A body may contain further `When`s. It contains no collective: the other ranks would wait for this one. And no mark
/// of progress, which every step makes. On a GPU a custom operation in it is a launch
/// ([`CudaLaunch`](crate::cuda::CudaLaunch)), not a call.
#[derive(Clone, Debug, PartialEq)]
pub struct When {
    /// `(1)`, i32. The body may write it; this run has already been decided.
    pub flag: Tensor,
    /// At least one operation.
    pub body: Vec<Op>,
    /// The tensors that only the body uses. It writes each before it reads it. Those of a body inside it have no values
    /// after that body.
    pub own: Vec<Tensor>,
}

impl When {
    /// Fails if an operation cannot be in a body.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) with the operation's name, the rule and the fix.
    pub fn check_inside(op: &Op) -> Result<()> {
        let rule = match op {
            Op::Collective(_) => {
                "Rule: all ranks of a communicator make the same transfers, and flags may differ. Fix: make the transfer \
                 before or after, in every step"
            }
            Op::ProgressMark(_) => {
                "Rule: a watchdog expects every mark in every step. Fix: leave the mark before or after"
            }
            _ => return Ok(()),
        };
        ensure(Self::NAME, false, || format!("`{}` cannot be in its body. {rule}", op.name()))
    }

    /// The tensors that only the body uses, and those of bodies inside it.
    pub fn all_own(&self) -> Vec<Tensor> {
        let inner = self.body.iter().filter_map(|op| if let Op::When(inner) = op { Some(inner) } else { None });
        self.own.iter().copied().chain(inner.flat_map(When::all_own)).collect()
    }

    /// Whether a tensor lies within one of [`When::all_own`]: its values mean nothing afterwards.
    pub fn is_own(&self, tensor: &Tensor) -> bool {
        is_part(tensor, &self.all_own())
    }

    /// Whether a custom operation is in the body, or in one inside it.
    pub(crate) fn has_custom(&self) -> bool {
        self.body.iter().any(|op| match op {
            Op::Custom(_) => true,
            Op::When(inner) => inner.has_custom(),
            _ => false,
        })
    }

    /// Fails if the body reads a tensor of its own that it has not written yet. A body inside it may not run, so what is
    /// that one's own does not count as written.
    fn check_own(&self) -> Result<()> {
        let own = self.all_own();
        let mut written: Vec<Tensor> = Vec::new();
        for op in &self.body {
            let Accesses { reads, writes } = op.accesses();
            let mut unwritten = reads.iter().filter(|read| is_part(read, &own) && !is_part(read, &written));
            if let Some(read) = unwritten.next() {
                let shape = read.shape;
                let problem = format!("`{}` in its body reads a tensor {shape:?} of the body's own", op.name());
                let rule = "Rule: the body writes what is its own before it reads it, whole, and what a body inside it \
                            has for itself stays there. Fix: write it first, or take a tensor that has values";
                return ensure(Self::NAME, false, || format!("{problem} that nothing has written. {rule}"));
            }
            match op {
                Op::When(inner) => written.extend(writes.into_iter().filter(|write| !inner.is_own(write))),
                _ => written.extend(writes),
            }
        }
        Ok(())
    }
}

/// Whether a tensor lies within one of some others of its buffer.
fn is_part(tensor: &Tensor, of: &[Tensor]) -> bool {
    of.iter().any(|whole| whole.buffer == tensor.buffer && whole.contains(tensor))
}

impl Operation for When {
    const NAME: &'static str = "when";

    fn check(&self) -> Result<()> {
        check_flag(Self::NAME, &self.flag)?;
        ensure(Self::NAME, !self.body.is_empty(), || "its body is empty. Fix: leave it out".into())?;
        for op in &self.body {
            When::check_inside(op)?;
            op.check()?;
        }
        self.check_own()
    }

    /// The body's, and the flag. What the body may leave as it was is read.
    fn accesses(&self) -> Accesses {
        let own = self.all_own();
        let mut all = Accesses::new([self.flag], []);
        for op in &self.body {
            let Accesses { reads, writes } = op.accesses();
            for tensor in reads.iter().chain(&writes).filter(|tensor| !is_part(tensor, &own)) {
                add(&mut all.reads, tensor);
            }
            writes.iter().for_each(|tensor| add(&mut all.writes, tensor));
        }
        all
    }

    tensors! { flag, body, own }

    /// Floating-point operations of the body, as if the body ran.
    fn flops(&self) -> f64 {
        self.body.iter().map(Op::flops).sum()
    }

    fn bytes(&self) -> f64 {
        self.flag.bytes() as f64 + self.body.iter().map(Op::bytes).sum::<f64>()
    }
}

fn add(tensors: &mut Vec<Tensor>, tensor: &Tensor) {
    if !tensors.contains(tensor) {
        tensors.push(*tensor);
    }
}

impl HasTensors for Op {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        Op::each_tensor(self, each);
    }
}
