//! Work that runs only if a flag in device memory says so.

use device::ops::When;
use device::{DType, Op, Shape, Tensor};

use super::context::StepContext;
use crate::error::Result;
use crate::policy::Policy;

/// The body of a [`StepContext::when`] while the body's code runs. It takes operations and nothing else: a body has no
/// host calls, no side streams and no regions.
pub struct WhenBody<'c, 'm, P: Policy> {
    cx: &'c mut StepContext<'m, P>,
    ops: Vec<Op>,
    own: Vec<Tensor>,
}

impl<P: Policy> WhenBody<'_, '_, P> {
    /// Adds an operation to the body, after the others.
    ///
    /// # Errors
    /// Shapes and types that do not fit; an operation that cannot be in a body: see [`When`].
    pub fn run(&mut self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        When::check_inside(&op)?;
        op.check()?;
        self.ops.push(op);
        Ok(())
    }

    /// A buffer of the body. Its memory is planned like that of [`StepContext::tensor`]. Only the body may use it: if
    /// the flag is 0, it has no values.
    ///
    /// # Errors
    /// As [`StepContext::tensor`].
    pub fn tensor(&mut self, name: &'static str, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let tensor = self.cx.tensor(name, shape, dtype)?;
        self.own.push(tensor);
        Ok(tensor)
    }

    /// As [`StepContext::when`], within the body: it runs if both flags say so.
    ///
    /// # Errors
    /// As [`StepContext::when`].
    pub fn when(&mut self, flag: Tensor, body: impl FnOnce(&mut WhenBody<'_, '_, P>) -> Result<()>) -> Result<()> {
        let inner = WhenBody::collect(self.cx, flag, body)?;
        self.run(inner)
    }

    /// Runs the code of a body, and returns the body's operations as one.
    fn collect<'m>(
        cx: &mut StepContext<'m, P>,
        flag: Tensor,
        body: impl FnOnce(&mut WhenBody<'_, '_, P>) -> Result<()>,
    ) -> Result<When> {
        let mut inside = WhenBody { cx, ops: Vec::new(), own: Vec::new() };
        body(&mut inside)?;
        Ok(When { flag, body: inside.ops, own: inside.own })
    }
}

impl<P: Policy> StepContext<'_, P> {
    /// Has operations run only if a flag is not 0: `(1)`, i32, in device memory. It is read each time that their turn
    /// comes, in every replay too, and the host does not look at it. `body` runs once, while the step is recorded. In
    /// the list its operations are one entry, `when`.
    ///
    /// The body writes to tensors that have values before: these stay if the flag is 0. So a tensor that the body writes
    /// counts as read. To choose between two results use [`Select`](device::ops::Select).
    ///
    /// ```
    /// use device::ops::{Add, Fill};
    /// use device::{DType, Device, HostOptions};
    /// use graph_manager::{CaptureAll, CudaGraphManager, ManagerOptions};
    ///
    /// let device = Device::host(HostOptions::default())?;
    /// let mut areas = Vec::new();
    /// let flag = device.allocate_tensor(&mut areas, "flag", [1], DType::I32)?;
    /// let total = device.allocate_tensor(&mut areas, "total", [4], DType::F32)?;
    /// device.zero(&total)?;
    /// let policy = CaptureAll::<&str>::default();
    /// let mut manager = CudaGraphManager::new(device.stream("compute"), ManagerOptions::default(), policy)?;
    /// for step in 0..6 {
    ///     device.upload(&flag, &[i32::from(step % 2 == 0)])?;
    ///     manager.step("count", 1, &mut |cx| {
    ///         cx.region("count", (), |cx, ()| {
    ///             cx.when(flag, |body| {
    ///                 let one = body.tensor("one", [4], DType::F32)?;
    ///                 body.run(Fill { output: one, value: 1.0 })?;
    ///                 body.run(Add { a: total, b: one, output: total })
    ///             })
    ///         })
    ///     })?;
    /// }
    /// assert_eq!(device.download::<f32>(&total)?, [3.0; 4]);
    /// # Ok::<(), graph_manager::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of `body`; a flag of another shape or type, and an empty body; as [`StepContext::run`].
    pub fn when(&mut self, flag: Tensor, body: impl FnOnce(&mut WhenBody<'_, '_, P>) -> Result<()>) -> Result<()> {
        let when = WhenBody::collect(self, flag, body)?;
        self.run(when)
    }
}
