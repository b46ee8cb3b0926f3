//! The work of a custom operation on a GPU: the launch of a kernel, or a call of code that submits work to a stream itself.

use super::{CudaLaunch, StreamHandle};
use crate::ops::{Custom, Operation};
use crate::{Error, Result, Tensor};

/// The result of a call. Its error is this crate's or another's.
type Called = std::result::Result<(), Box<dyn std::error::Error>>;

/// The work of a custom operation on a GPU.
pub enum CudaWork<'a> {
    /// The launch of a kernel.
    Launch(CudaLaunch),
    /// A call of code that submits the work itself. See [`CudaWork::call`].
    Call(CudaCall<'a>),
}

impl<'a> CudaWork<'a> {
    /// A call: `code` submits the work to the stream that it gets, with the addresses that it gets. It returns once the
    /// work is submitted.
    ///
    /// It runs each time that the operation runs outside of a graph, and once when it is captured; a replay repeats what
    /// it submitted. In a capture it may do nothing else than submit: see [`CaptureRule::Call`](crate::CaptureRule::Call).
    /// Modules that it loads, handles, and plans of libraries are made in its first run, or before. Errors of any type
    /// can be passed on with `?`.
    ///
    /// # Example
    /// ```
    /// use device::cuda::CudaWork;
    /// # use device::Tensor;
    /// # fn launch(stream: *mut std::ffi::c_void, from: u64, to: u64) -> Result<(), std::fmt::Error> { Ok(()) }
    /// # fn work(x: Tensor, y: Tensor) -> Option<CudaWork<'static>> {
    /// Some(CudaWork::call(move |on| Ok(launch(on.stream().0, on.read(&x)?, on.write(&y)?)?)))
    /// # }
    /// ```
    pub fn call(code: impl FnOnce(&CudaTensors<'_>) -> Called + 'a) -> CudaWork<'a> {
        CudaWork::Call(CudaCall(Box::new(code)))
    }
}

impl From<CudaLaunch> for CudaWork<'_> {
    fn from(launch: CudaLaunch) -> Self {
        CudaWork::Launch(launch)
    }
}

/// Code that submits an operation's work to a stream of CUDA: with another crate's launcher, with a library such as
/// cuBLAS, or with several launches.
pub struct CudaCall<'a>(Box<dyn FnOnce(&CudaTensors<'_>) -> Called + 'a>);

impl<'a> CudaCall<'a> {
    /// Runs the code. An error of another crate gets the operation's name.
    pub(crate) fn run(self, tensors: &CudaTensors<'_>) -> Result<()> {
        (self.0)(tensors).map_err(|error| match error.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => Error::operation(tensors.op.name(), other.to_string()),
        })
    }
}

/// The stream of a call, and the addresses of the tensors that its operation declared.
///
/// Both are those of this call. The same operation may be called again with its tensors elsewhere, for example when a
/// graph is verified: take addresses here in each call, and keep none.
pub struct CudaTensors<'a> {
    op: &'a Custom,
    stream: StreamHandle,
}

impl<'a> CudaTensors<'a> {
    pub(crate) fn new(op: &'a Custom, stream: StreamHandle) -> CudaTensors<'a> {
        CudaTensors { op, stream }
    }

    /// The driver's stream, a `CUstream`. All work of the call goes to it, or to streams that wait for it and that it waits
    /// for again before the call ends. It belongs to the GPU's primary context, which is current.
    pub fn stream(&self) -> StreamHandle {
        self.stream
    }

    /// The address, a `CUdeviceptr`, of a tensor that the operation declared to read, or of a part of one.
    ///
    /// # Errors
    /// The tensor is not declared so.
    pub fn read(&self, tensor: &Tensor) -> Result<u64> {
        let placed = self.op.placed_read(tensor).ok_or_else(|| self.op.undeclared(tensor, "read"))?;
        Ok(placed.address)
    }

    /// The address of the tensor of that number, counted from 0, that the operation declared to read.
    ///
    /// # Errors
    /// The operation declared fewer.
    pub fn nth_read(&self, number: usize) -> Result<u64> {
        self.nth("read", &self.op.declared().reads, number).and_then(|tensor| self.read(tensor))
    }

    /// The address of the tensor of that number, counted from 0, that the operation declared to write.
    ///
    /// # Errors
    /// The operation declared fewer.
    pub fn nth_write(&self, number: usize) -> Result<u64> {
        self.nth("write", &self.op.declared().writes, number).and_then(|tensor| self.write(tensor))
    }

    fn nth<'t>(&self, verb: &str, declared: &'t [Tensor], number: usize) -> Result<&'t Tensor> {
        declared.get(number).ok_or_else(|| {
            let problem = format!("took tensor {number} to {verb}, counted from 0, and declares {}", declared.len());
            Error::operation(self.op.name(), format!("{problem}. Fix: declare it, or take another"))
        })
    }

    /// The address, a `CUdeviceptr`, of a tensor that the operation declared to write, or of a part of one.
    ///
    /// # Errors
    /// The tensor is not declared so.
    pub fn write(&self, tensor: &Tensor) -> Result<u64> {
        let placed = self.op.placed_write(tensor).ok_or_else(|| self.op.undeclared(tensor, "write"))?;
        Ok(placed.address)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::ops::CustomOp;
    use crate::{Accesses, BufferId, DType, HostTensors, Op};

    #[derive(Debug)]
    struct Copies {
        from: Tensor,
        to: Tensor,
    }

    impl CustomOp for Copies {
        fn name(&self) -> &'static str {
            "copies"
        }

        fn accesses(&self) -> Accesses {
            Accesses::new([self.from], [self.to])
        }

        fn run_host(&self, _: &mut HostTensors<'_>) -> Result<()> {
            Ok(())
        }
    }

    fn tensor(address: u64) -> Tensor {
        Tensor { address, shape: [16].into(), dtype: DType::F32, buffer: BufferId::NOTHING }
    }

    /// An operation that was declared here and placed 1 MiB further on.
    fn placed(from: Tensor, to: Tensor) -> Custom {
        let op = Op::from(Custom::new(Rc::new(Copies { from, to })));
        let Op::Custom(op) = op.map(|tensor| Tensor { address: tensor.address + (1 << 20), ..tensor }) else {
            panic!("another kind")
        };
        op
    }

    #[test]
    fn a_call_gets_the_stream_and_the_addresses_of_declared_tensors_where_they_are_placed() {
        let (from, to) = (tensor(1024), tensor(4096));
        let op = placed(from, to);
        let stream = StreamHandle(std::ptr::without_provenance_mut(7));
        let call = CudaCall(Box::new(|on| {
            assert_eq!(on.stream().0.addr(), 7);
            assert_eq!(on.read(&from)?, (1 << 20) + 1024);
            assert_eq!(on.read(&from.narrow(2, 3))?, (1 << 20) + 1024 + 8);
            assert_eq!(on.write(&to)?, (1 << 20) + 4096);
            assert_eq!((on.nth_read(0)?, on.nth_write(0)?), ((1 << 20) + 1024, (1 << 20) + 4096));
            let none = on.nth_write(1).unwrap_err().to_string();
            assert!(none.contains("took tensor 1 to write, counted from 0, and declares 1. Fix: "), "{none}");
            Ok(())
        }));
        call.run(&CudaTensors::new(&op, stream)).unwrap();
    }

    #[test]
    fn a_call_gets_no_address_of_what_the_operation_does_not_declare_so() {
        let (from, to) = (tensor(1024), tensor(4096));
        let op = placed(from, to);
        let on = CudaTensors::new(&op, StreamHandle(std::ptr::null_mut()));
        for (refused, verb) in [
            (on.read(&to), "read"),
            (on.write(&from), "write"),
            (on.read(&tensor(8192)), "read"),
            // The place, which the operation does not know.
            (on.read(&tensor((1 << 20) + 1024)), "read"),
        ] {
            let message = refused.unwrap_err().to_string();
            assert!(message.starts_with("copies: took a tensor (16)"), "{message}");
            assert!(message.contains(&format!("declares to {verb}")) && message.contains("Fix:"), "{message}");
        }
    }

    #[test]
    fn an_error_of_another_crate_gets_the_operation_s_name_and_one_of_ours_stays() {
        let op = placed(tensor(1024), tensor(4096));
        let fails = |code: fn() -> Box<dyn std::error::Error>| {
            let on = CudaTensors::new(&op, StreamHandle(std::ptr::null_mut()));
            CudaCall(Box::new(move |_| Err(code()))).run(&on).unwrap_err()
        };
        assert_eq!(fails(|| "launch failed".into()).to_string(), "copies: launch failed");
        assert_eq!(fails(|| Error::operation("other", "no").into()), Error::operation("other", "no"));
    }
}
