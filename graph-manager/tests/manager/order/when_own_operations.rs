//! Operations of a caller's own in the body of a `when`, on buffers that a region takes.

use std::cell::Cell;

use device::cuda::{CudaCode, CudaKernel, CudaLaunch, CudaWork, GpuProperties};
use device::ops::{Accesses, CustomOp};
use device::{DType, HostTensors, Tensor};
use graph_manager::{
    CudaGraphManager, EagerMemory, Error, ManagerOptions, Result, TrainingPolicy, TrainingRegion, Verification,
    Verified,
};

use crate::named::{Bench, StepContext, bench, compared, copy};

/// `y += factor * x`, of four numbers.
#[derive(Debug)]
struct Axpy {
    factor: f32,
    x: Tensor,
    y: Tensor,
}

impl CustomOp for Axpy {
    fn name(&self) -> &'static str {
        "axpy"
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.x, self.y], [self.y])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> device::Result<()> {
        let x = tensors.read::<f32>(&self.x)?;
        let y = tensors.write::<f32>(&self.y)?;
        y.iter_mut().zip(x).for_each(|(y, x)| *y += self.factor * x);
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let code = "extern \"C\" __global__ void axpy(float a, const float* x, float* y) { y[threadIdx.x] += a * x[threadIdx.x]; }";
        let kernel = CudaKernel { file: "axpy.cu", code: CudaCode::Source(code), function: "axpy" };
        let arguments = vec![self.factor.into(), self.x.into(), self.y.into()];
        Some(CudaLaunch { kernel, blocks: (1, 1, 1), threads: (4, 1, 1), shared_bytes: 0, arguments }.into())
    }
}

/// `y += factor`, by way of a buffer that the region takes and one that the inner of two bodies takes.
fn step(bench: &Bench, flag: Tensor, cx: &mut StepContext<'_>, factor: f32) -> Result<()> {
    let Bench { y, one, .. } = *bench;
    cx.region("choose", (), |cx, ()| {
        let x = cx.tensor("x", [4], DType::F32)?;
        cx.run(copy(one, x))?;
        cx.when(flag, |body| {
            body.run(Axpy { factor: 0.0, x, y })?;
            body.when(flag, |body| {
                let own = body.tensor("own", [4], DType::F32)?;
                body.run(copy(x, own))?;
                body.run(Axpy { factor, x: own, y })
            })
        })
    })
}

#[test]
fn a_step_with_one_is_compared_before_each_replay_and_verified() {
    let bench = bench();
    let flag = bench.flag("flag", 1);
    let mut manager = bench.manager(compared());
    for number in 0..5 {
        for memory in [EagerMemory::Apart, EagerMemory::Shared] {
            let how = Verification { memory, ..Verification::default() };
            let found = manager.verify("step", 1, &how, &mut |cx| step(&bench, flag, cx, 2.0)).unwrap();
            let same = Verified::Same { tensors: 1, bytes: bench.y.bytes() };
            assert_eq!(found, if number < 2 { Verified::NotYet } else { same }, "step {number}");
        }
        manager.step("step", 1, &mut |cx| step(&bench, flag, cx, 2.0)).unwrap();
        assert_eq!(bench.value(bench.y), 2.0 * (number as f32 + 1.0));
    }
}

#[test]
fn a_field_of_one_that_froze_is_named() {
    let bench = bench();
    let flag = bench.flag("flag", 1);
    let (mut manager, factor) = (bench.manager(ManagerOptions::default()), Cell::new(2.0));
    manager.record("step", 1, &mut |cx| step(&bench, flag, cx, factor.get())).unwrap();
    (0..3).for_each(|_| manager.step("step", 1, &mut |cx| step(&bench, flag, cx, factor.get())).unwrap());
    factor.set(3.0);
    let verified = manager.verify("step", 1, &Verification::default(), &mut |cx| step(&bench, flag, cx, factor.get()));
    let error = verified.unwrap_err();
    let words = "choose: operation 1, `when`: `factor` was 2.0 when recorded and is now 3.0. Rule:";
    assert!(matches!(error, Error::Frozen { .. }) && error.to_string().starts_with(words), "{error}");
}

#[test]
fn microbatches_share_a_graph_if_they_do_the_same() {
    let bench = bench();
    let flag = bench.flag("flag", 1);
    let Bench { y, one, .. } = bench;
    let policy = TrainingPolicy::choosing(|_| Ok(()));
    let mut manager = CudaGraphManager::new(bench.compute.clone(), ManagerOptions::default(), policy).unwrap();
    for number in 1..5 {
        manager
            .step("train", 3, &mut |cx| {
                (0..3).try_for_each(|microbatch| {
                    cx.region(TrainingRegion::forward(0, microbatch), (), |cx, ()| {
                        let x = cx.tensor("x", [4], DType::F32)?;
                        cx.run(copy(one, x))?;
                        let factor = if microbatch < 2 { 1.0 } else { 5.0 };
                        cx.when(flag, |body| body.run(Axpy { factor, x, y }))
                    })
                })
            })
            .unwrap();
        assert_eq!(bench.value(y), 7.0 * number as f32);
    }
    // The first two, and the third.
    assert_eq!(manager.report().graphs.len(), 2);
}
