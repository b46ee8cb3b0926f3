//! Closures that submit work to a GPU, as operations.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use super::{Accesses, Custom, CustomOp};
use crate::cuda::{CudaTensors, CudaWork, GpuProperties};
use crate::{Op, Tensor};

/// The result of the code: its error is this crate's or another's.
type Submitted = std::result::Result<(), Box<dyn std::error::Error>>;

/// Code that submits work to a stream of a GPU, such as a launch by cudarc, under a name. [`Launcher::on`] makes operations
/// of it: they are recorded, captured, replayed and checked like the others.
///
/// Make it once, before the step whose code submits it: two launchers are different work, also those of one name. The code
/// follows the rules of [`CudaWork::call`], and does the same each time: a number that changes lies in a tensor. A host
/// device refuses its operations; a [`CustomOp`] has a side for both.
///
/// ```
/// use device::cuda::CudaTensors;
/// use device::ops::Launcher;
/// # use device::{Result, Stream, Tensor};
/// # fn launch(stream: *mut std::ffi::c_void, x: u64, y: u64) -> std::result::Result<(), std::fmt::Error> { Ok(()) }
/// # fn step(stream: &Stream, x: Tensor, y: Tensor) -> Result<()> {
/// let double = Launcher::new("double", |on: &CudaTensors<'_>| Ok(launch(on.stream().0, on.nth_read(0)?, on.nth_write(0)?)?));
/// stream.submit(double.on([x], [y]))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Launcher {
    name: &'static str,
    /// The launcher's number, which tells launchers of one name apart.
    number: u64,
    code: Rc<dyn Fn(&CudaTensors<'_>) -> Submitted>,
}

thread_local! {
    /// The launchers made so far on this thread.
    static MADE: Cell<u64> = const { Cell::new(0) };
}

impl Launcher {
    /// Work of that name.
    pub fn new(name: &'static str, code: impl Fn(&CudaTensors<'_>) -> Submitted + 'static) -> Launcher {
        let number = MADE.replace(MADE.get() + 1);
        Launcher { name, number, code: Rc::new(code) }
    }

    /// The launcher's work on given tensors, as an operation. One that is updated in place is read and written.
    pub fn on(&self, reads: impl IntoIterator<Item = Tensor>, writes: impl IntoIterator<Item = Tensor>) -> Op {
        Custom::new(Rc::new(Launched { launcher: self.clone(), accesses: Accesses::new(reads, writes) })).into()
    }
}

/// The work of a launcher on some tensors.
struct Launched {
    launcher: Launcher,
    accesses: Accesses,
}

impl fmt::Debug for Launched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launched { launcher: Launcher { name, number, .. }, accesses } = self;
        f.debug_struct(name).field("launcher", number).field("accesses", accesses).finish()
    }
}

impl CustomOp for Launched {
    fn name(&self) -> &'static str {
        self.launcher.name
    }

    fn accesses(&self) -> Accesses {
        self.accesses.clone()
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        Some(CudaWork::call(|on| (self.launcher.code)(on)))
    }
}
