//! Custom operations.

use crate::cuda::graph::{CapturePoint, CaptureState, judge};
use crate::cuda::kernels::not_loaded_in_capture;
use crate::cuda::{
    Arg, CudaCall, CudaDevice, CudaLaunch, CudaOperation, CudaTensors, CudaWork, GpuProperties, KernelArgument,
    KernelFile, Queue, StreamHandle,
};
use crate::ops::{Custom, Operation};
use crate::submitted::Submitted;
use crate::{Error, Result, calling};

/// The work of a custom operation.
///
/// # Errors
/// It has no CUDA side.
fn work_of<'a>(op: &'a Custom, gpu: &GpuProperties) -> Result<CudaWork<'a>> {
    calling::run(op.name(), || op.op().cuda_work(gpu)).ok_or_else(|| {
        let problem = "has no CUDA side, and its stream is a GPU's. Rule: an operation runs where its tensors are. Fix: \
                       implement CustomOp::cuda_work, or use the host device";
        Error::operation(op.name(), problem)
    })
}

/// Fails if the operation's work cannot be in the body of a `when`.
///
/// # Errors
/// It has no CUDA side, or is a call.
pub(super) fn accept_in_body(op: &Custom, cuda: &CudaDevice) -> Result<()> {
    match work_of(op, &cuda.gpu.properties)? {
        CudaWork::Launch(_) => Ok(()),
        CudaWork::Call(_) => {
            let rule = "Rule: a body has kernels, memory sets and copies alone, and a call may submit anything. Fix: \
                        give it a CudaLaunch, or use Select on its result";
            Err(Error::operation("when", format!("`{}` cannot be in its body: it is a call. {rule}", op.name())))
        }
    }
}

impl CudaOperation for Custom {
    fn files() -> &'static [KernelFile] {
        &[]
    }

    fn launch(&self, cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
        match work_of(self, queue.gpu())? {
            CudaWork::Launch(launch) => {
                let arguments = arguments(self, &launch)?;
                cuda.custom_kernels.load(&launch.kernel, queue.gpu())?;
                cuda.custom_kernels.launch(queue.stream, &launch, &arguments)
            }
            CudaWork::Call(call) => submit(self, call, queue),
        }
    }

    /// # Errors
    /// The operation has no CUDA side, or the stream captures and the kernel is not loaded yet.
    fn accept(&self, submitted: Submitted, cuda: &CudaDevice) -> Result<()> {
        let CudaWork::Launch(launch) = work_of(self, &cuda.gpu.properties)? else { return Ok(()) };
        if submitted == Submitted::ToCapture && !cuda.custom_kernels.has(&launch.kernel) {
            return Err(not_loaded_in_capture(self.name(), launch.kernel.function));
        }
        Ok(())
    }

    /// Compiles and loads the kernel, unless that was done before. A call prepares itself when it first runs.
    fn prepare(&self, cuda: &CudaDevice) -> Result<()> {
        let gpu = &cuda.gpu.properties;
        match work_of(self, gpu)? {
            CudaWork::Launch(launch) => cuda.custom_kernels.load(&launch.kernel, gpu),
            CudaWork::Call(_) => Ok(()),
        }
    }
}

/// Makes a call, and looks at what it did to the stream's capture.
///
/// # Errors
/// The call's; [`CaptureRule::Call`](crate::CaptureRule::Call).
fn submit(op: &Custom, call: CudaCall<'_>, queue: &Queue<'_>) -> Result<()> {
    let before = CapturePoint::of(queue.stream)?;
    if before.state == CaptureState::Invalidated {
        return judge(op.name(), before.state, Ok(()), before.state);
    }
    let tensors = CudaTensors::new(op, StreamHandle(queue.stream.handle().cast()));
    let called = calling::run(op.name(), || call.run(&tensors));
    match before.after_call(queue.stream) {
        Ok(after) => judge(op.name(), before.state, called, after),
        // The driver says nothing more after an error of the GPU. The call's own error says what it did.
        Err(error) => called.and(Err(error)),
    }
}

/// The arguments, with the addresses of tensors. Every tensor among them must have been declared.
fn arguments(op: &Custom, launch: &CudaLaunch) -> Result<Vec<Arg>> {
    let argument = |(at, argument): (usize, &KernelArgument)| match *argument {
        KernelArgument::Tensor(tensor) => {
            let Some(placed) = op.placed_read(&tensor).or_else(|| op.placed_write(&tensor)) else {
                let rule = "Rule: a kernel gets the tensors that CustomOp::accesses declares. Fix: declare it";
                let shape = tensor.shape;
                let problem = format!("argument {at} is an undeclared tensor {shape:?}. {rule}");
                return Err(Error::operation(op.name(), problem));
            };
            Ok(Arg::Pointer(placed.address))
        }
        KernelArgument::Null => Ok(Arg::Pointer(0)),
        KernelArgument::U32(value) => Ok(Arg::U32(value)),
        KernelArgument::I32(value) => Ok(Arg::U32(value.cast_unsigned())),
        KernelArgument::U64(value) => {
            op.refuse_address(value, || format!("argument {at} is")).map(|()| Arg::U64(value))
        }
        KernelArgument::I64(value) => Ok(Arg::U64(value.cast_unsigned())),
        KernelArgument::F32(value) => Ok(Arg::F32(value)),
    };
    launch.arguments.iter().enumerate().map(argument).collect()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::cuda::{CudaCode, CudaKernel};
    use crate::ops::CustomOp;
    use crate::{Accesses, BufferId, DType, HostTensors, Op, Tensor};

    #[derive(Debug)]
    struct HostOnly(Accesses);

    impl CustomOp for HostOnly {
        fn name(&self) -> &'static str {
            "host_only"
        }

        fn accesses(&self) -> Accesses {
            self.0.clone()
        }

        fn run_host(&self, _tensors: &mut HostTensors<'_>) -> Result<()> {
            Ok(())
        }
    }

    fn host_only(reads: impl IntoIterator<Item = Tensor>, writes: impl IntoIterator<Item = Tensor>) -> Custom {
        Custom::new(Rc::new(HostOnly(Accesses::new(reads, writes))))
    }

    #[test]
    fn an_operation_without_a_cuda_side_is_refused_with_its_name_the_rule_and_the_fix() {
        let gpu = GpuProperties {
            ordinal: 0,
            name: "GPU".into(),
            uuid: "0".into(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 1 << 30,
            shared_bytes: 1 << 17,
            driver_version: 13000,
        };
        let message = work_of(&host_only([], []), &gpu).err().unwrap().to_string();
        assert!(message.starts_with("host_only: has no CUDA side"), "{message}");
        assert!(message.contains("Rule:") && message.contains("Fix: implement CustomOp::cuda_work"), "{message}");
    }

    fn tensor(address: u64, elements: usize) -> Tensor {
        Tensor { address, shape: [elements].into(), dtype: DType::F32, buffer: BufferId::NOTHING }
    }

    /// The values that a kernel gets for `arguments`.
    fn given(op: &Custom, arguments: impl IntoIterator<Item = KernelArgument>) -> Result<Vec<Arg>> {
        let kernel = CudaKernel { file: "k.cu", code: CudaCode::Source(""), function: "k" };
        let arguments = arguments.into_iter().collect();
        let launch = CudaLaunch { kernel, blocks: (1, 1, 1), threads: (1, 1, 1), shared_bytes: 0, arguments };
        super::arguments(op, &launch)
    }

    #[test]
    fn a_kernel_gets_declared_tensors_and_parts_of_them_alone() {
        let (x, y) = (tensor(1024, 16), tensor(4096, 16));
        let op = host_only([x], [y]);
        let given = |argument: KernelArgument| given(&op, [y.into(), argument]);
        assert_eq!(given(x.into()).unwrap(), [Arg::Pointer(4096), Arg::Pointer(1024)]);
        assert_eq!(given(x.narrow(4, 8).into()).unwrap(), [Arg::Pointer(4096), Arg::Pointer(1024 + 16)]);
        assert_eq!(given(None.into()).unwrap(), [Arg::Pointer(4096), Arg::Pointer(0)]);
        assert_eq!(given((-1).into()).unwrap(), [Arg::Pointer(4096), Arg::U32(u32::MAX)]);
        assert_eq!(given((-1i64).into()).unwrap(), [Arg::Pointer(4096), Arg::U64(u64::MAX)]);
        let recorded = given(((1 << 60) + 256_u64).into()).unwrap_err().to_string();
        assert!(recorded.starts_with("host_only: argument 1 is an address of a recording as a number"), "{recorded}");
        for undeclared in [tensor(2048, 1), tensor(1024, 17), tensor(1020, 4)] {
            let message = given(undeclared.into()).unwrap_err().to_string();
            assert!(
                message.contains("argument 1") && message.contains("Rule:") && message.contains("Fix:"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_kernel_gets_tensors_where_they_are_placed() {
        let (x, y) = (tensor(1024, 16), tensor(4096, 16));
        let op =
            Op::from(host_only([x, y], [y])).map(|tensor| Tensor { address: tensor.address + (1 << 20), ..tensor });
        let Op::Custom(op) = op else { panic!("another kind") };
        let arguments = given(&op, [y.narrow(2, 3).into(), x.into()]).unwrap();
        assert_eq!(arguments, [Arg::Pointer((1 << 20) + 4096 + 8), Arg::Pointer((1 << 20) + 1024)]);
        let message = given(&op, [tensor((1 << 20) + 1024, 16).into()]).unwrap_err().to_string();
        assert!(message.contains("argument 0 is an undeclared tensor"), "{message}");
    }
}
