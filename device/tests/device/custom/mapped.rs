//! Operations of a caller's own that are mapped to other tensors: they go on to name the tensors that they declared, and
//! reach the memory that they were mapped to.

use std::rc::Rc;

use device::cuda::{CudaCode, CudaKernel, CudaLaunch, CudaWork, GpuProperties};
use device::ops::{Accesses, Custom, CustomOp, Fill};
use device::{BufferId, CheckError, DType, Error, HostTensors, Op, Result, Tensor};

use crate::common::{Bench, bench, checked_bench};

/// `y = a * x + y`, half of it at a time, in place.
#[derive(Debug)]
struct Axpy {
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

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let half = self.x.elements() / 2;
        for start in [0, half] {
            let x = tensors.read::<f32>(&self.x.narrow(start, half))?;
            let y = tensors.write::<f32>(&self.y.narrow(start, half))?;
            y.iter_mut().zip(x).for_each(|(y, x)| *y += 0.5 * x);
        }
        Ok(())
    }

    fn cuda_work(&self, _gpu: &GpuProperties) -> Option<CudaWork<'_>> {
        let code = CudaCode::Source(include_str!("../../../examples/axpy.cu"));
        let launch = CudaLaunch {
            kernel: CudaKernel { file: "axpy.cu", code, function: "axpy" },
            blocks: (self.y.elements().div_ceil(128) as u32, 1, 1),
            threads: (128, 1, 1),
            shared_bytes: 0,
            arguments: vec![0.5f32.into(), self.x.into(), self.y.into(), (self.y.elements() as u64).into()],
        };
        Some(launch.into())
    }
}

const N: usize = 64;

/// A pair of tensors `x` and `y`, and another pair.
fn pairs(t: &Bench) -> [(Tensor, Tensor); 2] {
    let filled = |value: f64| t.put(&[N], DType::F32, &[value; N]);
    [(filled(2.0), filled(10.0)), (filled(4.0), filled(100.0))]
}

#[test]
fn a_mapped_operation_reads_and_writes_where_it_was_mapped_and_leaves_the_declared_memory_alone() {
    let t = checked_bench();
    let [(x, y), (other_x, other_y)] = pairs(&t);
    let place = |tensor: Tensor| if tensor == x { other_x } else { other_y };
    let op = || Op::from(Axpy { x, y }).map(place);
    let holds = |elsewhere: f64, declared: f64| {
        assert_eq!((t.get(&other_y), t.get(&other_x)), (vec![elsewhere; N], vec![4.0; N]));
        assert_eq!((t.get(&y), t.get(&x)), (vec![declared; N], vec![2.0; N]));
    };
    t.stream.submit(op()).unwrap();
    holds(102.0, 10.0);
    t.stream.begin_capture().unwrap();
    t.stream.submit(op()).unwrap();
    t.stream.submit(Axpy { x, y }).unwrap();
    let graph = t.stream.end_capture("both").unwrap();
    holds(102.0, 10.0);
    graph.launch(&t.stream).unwrap();
    graph.launch(&t.stream).unwrap();
    holds(106.0, 12.0);
}

#[test]
fn what_a_mapped_operation_declared_needs_no_memory() {
    let t = bench(1);
    let [_, (x, y)] = pairs(&t);
    let declared = ["x", "y"].map(|name| t.device.virtual_tensor(name, [N], DType::F32));
    let op = Op::from(Axpy { x: declared[0], y: declared[1] });
    t.stream.submit(op.map(|tensor| if tensor == declared[0] { x } else { y })).unwrap();
    assert_eq!(t.get(&y), [102.0; N]);
}

#[test]
fn a_mapped_operation_is_checked_where_it_was_mapped() {
    let t = bench(1);
    let [(x, y), (other_x, other_y)] = pairs(&t);
    let side = t.device.stream("side");
    let submit = || t.stream.submit(Op::from(Axpy { x, y }).map(|tensor| if tensor == x { other_x } else { other_y }));
    side.submit(Fill { output: x, value: 2.0 }).unwrap();
    submit().unwrap();
    side.submit(Fill { output: other_x, value: 4.0 }).unwrap_err();
    t.device.synchronize().unwrap();
    side.submit(Fill { output: other_x, value: 4.0 }).unwrap();
    let error = submit().unwrap_err();
    assert!(matches!(&error, Error::Check(CheckError::Race { second, .. }) if second == "axpy"), "{error}");
}

/// An operation that declares `x` twice and takes slices of it by `take`.
struct Takes<F>(Tensor, F);

impl<F> std::fmt::Debug for Takes<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Takes")
    }
}

impl<F: Fn(&mut HostTensors<'_>) -> Result<()>> CustomOp for Takes<F> {
    fn name(&self) -> &'static str {
        "takes"
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.0], [self.0])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        (self.1)(tensors)
    }
}

#[test]
fn a_mapped_operation_is_refused_what_it_did_not_declare_and_what_it_takes_twice() {
    let t = bench(1);
    let [(x, _), (other, _)] = pairs(&t);
    let refusal = |take: fn(&mut HostTensors<'_>, Tensor, Tensor) -> Result<()>| {
        let op = Takes(x, move |tensors: &mut HostTensors<'_>| take(tensors, x, other));
        t.stream.submit(Op::from(op).map(|_| other)).unwrap_err().to_string()
    };
    let undeclared = refusal(|tensors, _, other| tensors.read::<f32>(&other).map(|_| ()));
    assert!(undeclared.starts_with("takes: took a tensor (64) to read. Rule:"), "{undeclared}");
    let beyond = refusal(|tensors, x, _| tensors.read::<f32>(&Tensor { shape: [N + 1].into(), ..x }).map(|_| ()));
    assert!(beyond.starts_with("takes: took a tensor (65) to read. Rule:"), "{beyond}");
    let twice = refusal(|tensors, x, _| tensors.write::<f32>(&x).and(tensors.read::<f32>(&x).map(|_| ())));
    assert!(twice.contains("took its memory before"), "{twice}");
}

#[test]
fn a_mapped_operation_keeps_shapes_and_types() {
    let t = bench(1);
    let [(x, y), _] = pairs(&t);
    let op = Op::from(Custom::new(Rc::new(Axpy { x, y })));
    let shorter = t.stream.submit(op.map(|tensor| tensor.narrow(0, 3))).unwrap_err().to_string();
    let rule =
        "declared a tensor (64) of f32, which was placed in one (3) of f32: a placed tensor keeps shape and type";
    assert_eq!(shorter, format!("axpy: {rule}"));
}

#[test]
fn what_a_custom_operation_declared_is_known_after_it_was_mapped() {
    let t = bench(1);
    let [(x, y), _] = pairs(&t);
    let moved = Op::from(Axpy { x, y }).map(|tensor| Tensor { address: 256, buffer: BufferId::NOTHING, ..tensor });
    let Op::Custom(custom) = &moved else { panic!("another kind") };
    assert_eq!(*custom.declared(), Accesses::new([x, y], [y]));
    assert!(moved.accesses().reads.iter().all(|tensor| tensor.address == 256));
}
