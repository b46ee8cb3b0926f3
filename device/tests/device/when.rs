//! Work that runs only if a flag says so: eagerly, in graphs, and the mistakes that are refused.

use std::rc::Rc;

use crate::common::{Bench, Never, checked_bench};
use device::cuda::{CudaCode, CudaKernel, CudaLaunch, CudaWork, GpuProperties, KernelArgument};
use device::ops::{
    Add, Attention, Collective, CollectiveKind, Condition, Copy, CustomOp, Epilogue, Fill, Gemm, Mask, Poison, Scores,
    Select, When,
};
use device::{Accesses, CheckError, DType, Error, HostTensors, Op, Result, Tensor};

const N: usize = 64;

fn floats(t: &Bench, value: f64) -> Tensor {
    t.put(&[N], DType::F32, &[value; N])
}

/// Adds `step` to `x` if the flag says so.
fn count(flag: Tensor, step: Tensor, x: Tensor) -> When {
    When { flag, body: vec![Add { a: x, b: step, output: x }.into()], own: Vec::new() }
}

/// Sets the flag as a step would: on the stream, without a wait for what it did before.
fn set(t: &Bench, flag: Tensor, value: i32) {
    t.stream.write(&flag, &[value]).unwrap();
}

#[test]
fn a_body_runs_if_the_flag_is_not_0_when_its_turn_comes_eagerly_and_in_every_replay() {
    let t = checked_bench();
    let (flag, one, x) = (t.ints(&[1], &[0]), floats(&t, 1.0), floats(&t, 0.0));
    let mut expected = 0.0;
    let flags = [0, 1, 0, 0, -7, 1, i32::MIN, 0];
    for value in flags {
        set(&t, flag, value);
        t.run(count(flag, one, x));
        expected += f64::from(value != 0);
        assert_eq!(t.get(&x), [expected; N], "eager, flag {value}");
    }
    // Beside work before and after it.
    let (before, after) = (floats(&t, 0.0), floats(&t, 0.0));
    t.stream.begin_capture().unwrap();
    t.run(Add { a: before, b: one, output: before });
    t.run(count(flag, one, x));
    t.run(Add { a: x, b: before, output: after });
    let graph = t.stream.end_capture("count").unwrap();
    for (replay, value) in flags.into_iter().enumerate() {
        set(&t, flag, value);
        graph.launch(&t.stream).unwrap();
        expected += f64::from(value != 0);
        assert_eq!(t.get(&x), [expected; N], "replay, flag {value}");
        assert_eq!(t.get(&after), [expected + replay as f64 + 1.0; N]);
    }
}

#[test]
fn work_in_a_graph_may_set_the_flag_that_decides_later_in_the_same_replay() {
    let t = checked_bench();
    let (flag, one, x) = (t.ints(&[1], &[0]), floats(&t, 1.0), floats(&t, 0.0));
    let (yes, no, choice) = (t.ints(&[1], &[1]), t.ints(&[1], &[0]), t.ints(&[1], &[0]));
    let choose = Select { condition: Condition::Flag(choice), a: yes, b: no, output: flag };
    t.run(count(flag, one, x)); // warms up
    t.stream.begin_capture().unwrap();
    t.run(choose);
    t.run(count(flag, one, x));
    let graph = t.stream.end_capture("count").unwrap();
    for (value, expected) in [(1, 1.0), (0, 1.0), (1, 2.0)] {
        set(&t, choice, value);
        graph.launch(&t.stream).unwrap();
        assert_eq!(t.get(&x), [expected; N]);
    }
}

#[test]
fn a_body_has_products_copies_constants_and_tensors_of_its_own() {
    let t = checked_bench();
    let (rows, columns) = (16, 32);
    let values = crate::common::numbers(1, rows * columns, DType::Bf16);
    let input = t.put(&[rows, columns], DType::Bf16, &values);
    let weight = t.put(&[8, columns], DType::Bf16, &crate::common::numbers(2, 8 * columns, DType::Bf16));
    let product = |out| Op::from(Gemm::linear(input, weight, out, Epilogue::None));
    let (always, maybe) = (t.empty(&[rows, 8], DType::F32), t.put(&[rows, 8], DType::F32, &[0.0; 128]));
    let own = t.put(&[rows, 8], DType::F32, &[0.0; 128]);
    let flag = t.ints(&[1], &[0]);
    let body = vec![
        Fill { output: own, value: 0.0 }.into(), // a memory set
        Op::from(Gemm { accumulate: true, ..Gemm::linear(input, weight, own, Epilogue::None) }),
        Copy { input: own, output: maybe }.into(),
    ];
    let when = When { flag, body, own: vec![own] };
    t.prepare(product(always));
    t.prepare(when.clone());
    t.run(product(always));
    t.stream.begin_capture().unwrap();
    t.run(when.clone());
    let graph = t.stream.end_capture("product").unwrap();
    graph.launch(&t.stream).unwrap();
    assert_eq!(t.get(&maybe), [0.0; 128], "the flag is 0");
    set(&t, flag, 1);
    graph.launch(&t.stream).unwrap();
    let (replayed, expected) = (t.get(&maybe), t.get(&always));
    crate::common::assert_close("in a body", DType::F32, &replayed, &expected);
    t.run(Fill { output: maybe, value: 0.0 });
    t.run(when);
    assert_eq!(t.get(&maybe), replayed, "eagerly");
}

#[test]
fn a_when_within_a_when_runs_if_both_flags_say_so() {
    let t = checked_bench();
    let (outer, inner) = (t.ints(&[1], &[0]), t.ints(&[1], &[0]));
    let (one, x, y) = (floats(&t, 1.0), floats(&t, 0.0), floats(&t, 0.0));
    let add = || Op::from(Add { a: x, b: one, output: x });
    let within = || Op::from(count(inner, one, y));
    let body = vec![add(), within(), within(), add(), add(), within()];
    let when = When { flag: outer, body, own: Vec::new() };
    t.run(when.clone()); // warms up
    t.stream.begin_capture().unwrap();
    t.run(when.clone());
    let graph = t.stream.end_capture("nested").unwrap();
    let (mut expected_x, mut expected_y) = (0.0, 0.0);
    for replayed in [false, true] {
        for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            set(&t, outer, a);
            set(&t, inner, b);
            if replayed {
                graph.launch(&t.stream).unwrap()
            } else {
                t.run(when.clone())
            }
            expected_x += f64::from(3 * a);
            expected_y += f64::from(3 * a * b);
            assert_eq!((t.get(&x), t.get(&y)), (vec![expected_x; N], vec![expected_y; N]), "{a} {b} {replayed}");
        }
    }
}

#[test]
fn what_a_body_writes_is_read_too_but_for_what_is_its_own() {
    let t = checked_bench();
    let (flag, a, b, own) = (t.ints(&[1], &[1]), floats(&t, 1.0), floats(&t, 2.0), floats(&t, 0.0));
    let body = vec![Add { a, b: a, output: own }.into(), Add { a: own, b: a, output: b }.into()];
    let when = Op::from(When { flag, body, own: vec![own] });
    assert_eq!(when.accesses(), Accesses::new([flag, a, b], [own, b]));
    assert_eq!((when.name(), when.flops()), ("when", 0.0));
}

#[test]
fn a_tensor_without_values_that_a_body_may_leave_alone_is_refused() {
    let t = checked_bench();
    let mut areas = Vec::new();
    let fresh = t.device.allocate_tensor(&mut areas, "fresh", [N], DType::F32).unwrap();
    let when =
        When { flag: t.ints(&[1], &[0]), body: vec![Fill { output: fresh, value: 1.0 }.into()], own: Vec::new() };
    match t.stream.submit(when.clone()).unwrap_err() {
        Error::Check(CheckError::Uninitialized { reader, buffer }) => {
            assert_eq!((&*reader, &*buffer), ("when", "fresh"))
        }
        error => panic!("{error}"),
    }
    t.run(When { own: vec![fresh], ..when });
}

#[test]
fn two_streams_that_race_by_way_of_a_body_are_found_whatever_the_flag_is() {
    let t = checked_bench();
    let (flag, one, x) = (t.ints(&[1], &[0]), floats(&t, 1.0), floats(&t, 0.0));
    t.run(count(flag, one, x));
    let error = t.device.stream("side").submit(Fill { output: x, value: 0.0 }).unwrap_err().to_string();
    assert!(error.contains("race") && error.contains("`when`"), "{error}");
}

/// Adds 1 to each of `N` numbers.
#[derive(Debug)]
struct Bump {
    x: Tensor,
    by_call: bool,
}

impl CustomOp for Bump {
    fn name(&self) -> &'static str {
        "bump"
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.x], [self.x])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        tensors.write::<f32>(&self.x)?.iter_mut().for_each(|x| *x += 1.0);
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        if self.by_call {
            return Some(CudaWork::call(|_| Ok(())));
        }
        let code = CudaCode::Source("extern \"C\" __global__ void bump(float* x) { x[threadIdx.x] += 1; }");
        let kernel = CudaKernel { file: "bump.cu", code, function: "bump" };
        let arguments = vec![KernelArgument::Tensor(self.x)];
        Some(CudaLaunch { kernel, blocks: (1, 1, 1), threads: (N as u32, 1, 1), shared_bytes: 0, arguments }.into())
    }
}

#[test]
fn flags_and_bodies_that_cannot_be_are_refused_with_the_rule_and_the_fix() {
    let t = checked_bench();
    let (flag, x, own) = (t.ints(&[1], &[1]), floats(&t, 0.0), floats(&t, 0.0));
    let fill = Op::from(Fill { output: x, value: 1.0 });
    let good = When { flag, body: vec![fill.clone()], own: Vec::new() };
    let transfer = Collective::in_place(CollectiveKind::AllReduceSum, Rc::new(Never), x);
    let inner = When { body: vec![transfer.clone().into()], ..good.clone() };
    let reads_own = Add { a: x, b: own, output: x };
    let misfit = Add { a: x, b: flag, output: x };
    for (op, words) in [
        (When { flag: t.ints(&[2], &[1, 1]), ..good.clone() }, "when: `flag` is (2) i32, needs one i32"),
        (When { flag: x.narrow(0, 1), ..good.clone() }, "when: `flag` is (1) f32, needs one i32"),
        (When { body: Vec::new(), ..good.clone() }, "when: its body is empty. Fix: leave it out"),
        (
            When { body: vec![fill.clone(), transfer.into()], ..good.clone() },
            "when: `all_reduce` cannot be in its body. Rule:",
        ),
        (When { body: vec![inner.into()], ..good.clone() }, "when: `all_reduce` cannot be in its body. Rule:"),
        (When { body: vec![misfit.into()], ..good.clone() }, "add: `b` is i32, needs f32"),
        (
            When { body: vec![reads_own.into()], own: vec![own], ..good.clone() },
            "when: `add` in its body reads a tensor (64) of the body's own that nothing has written. Rule:",
        ),
    ] {
        let message = t.refusal(op);
        assert!(message.starts_with(words), "`{words}` is missing from: {message}");
    }
    t.run(good);
}

#[test]
fn a_graph_with_a_when_is_no_child_of_another_graph() {
    let t = checked_bench();
    let (flag, one, x) = (t.ints(&[1], &[1]), floats(&t, 1.0), floats(&t, 0.0));
    t.run(count(flag, one, x));
    t.stream.begin_capture().unwrap();
    t.run(count(flag, one, x));
    let graph = t.stream.end_capture("inner").unwrap();
    t.stream.begin_capture().unwrap();
    let error = graph.launch(&t.stream).unwrap_err().to_string();
    t.stream.abandon_capture();
    for words in ["when: graph `inner`, which contains `when`", "Rule: CUDA takes no child graph", "Fix:"] {
        assert!(error.contains(words), "`{words}` is missing from: {error}");
    }
    graph.launch(&t.stream).unwrap();
    assert_eq!(t.get(&x), [2.0; N]);
}

#[test]
fn a_freed_tensor_in_a_body_spoils_a_capture_and_the_stream_works_afterwards() {
    let t = checked_bench();
    let (flag, one, x) = (t.ints(&[1], &[1]), floats(&t, 1.0), floats(&t, 0.0));
    t.run(count(flag, one, x));
    let freed = {
        let mut areas = Vec::new();
        t.device.allocate_tensor(&mut areas, "gone", [N], DType::F32).unwrap()
    };
    t.stream.begin_capture().unwrap();
    let poison = When { flag, body: vec![Poison { output: freed }.into()], own: vec![freed] };
    assert!(t.refusal(poison).contains("gone"));
    assert!(t.stream.end_capture("spoiled").is_err());
    t.run(count(flag, one, x));
    assert_eq!(t.get(&x), [2.0; N]);
}

/// An operation that fails: on the host when it runs, on a GPU when it is launched, for no block has so many threads.
#[derive(Debug)]
struct TooWide(Tensor);

impl CustomOp for TooWide {
    fn name(&self) -> &'static str {
        "too_wide"
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.0], [self.0])
    }

    fn run_host(&self, _: &mut HostTensors<'_>) -> Result<()> {
        Err(Error::operation("too_wide", "it always fails"))
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let code = CudaCode::Source("extern \"C\" __global__ void too_wide(float* x) { x[threadIdx.x] += 1; }");
        let kernel = CudaKernel { file: "too_wide.cu", code, function: "too_wide" };
        let arguments = vec![KernelArgument::Tensor(self.0)];
        Some(CudaLaunch { kernel, blocks: (1, 1, 1), threads: (2000, 1, 1), shared_bytes: 0, arguments }.into())
    }
}

#[test]
fn a_body_that_fails_half_way_names_the_operation_and_the_stream_works_afterwards_eagerly_and_in_captures() {
    let t = checked_bench();
    let (flag, one, x, y) = (t.ints(&[1], &[1]), floats(&t, 1.0), floats(&t, 0.0), floats(&t, 0.0));
    let fails = |nested: bool| {
        let body = vec![Add { a: y, b: one, output: y }.into(), TooWide(y).into()];
        let when = When { flag, body, own: Vec::new() };
        if nested { When { body: vec![when.clone().into()], ..when } } else { when }
    };
    let mut expected = 0.0;
    let mut works = || {
        t.run(count(flag, one, x));
        t.stream.begin_capture().unwrap();
        t.run(count(flag, one, x));
        t.stream.end_capture("sound").unwrap().launch(&t.stream).unwrap();
        expected += 2.0;
        assert_eq!(t.get(&x), [expected; N]);
    };
    for nested in [false, true] {
        let message = t.refusal(fails(nested));
        assert!(message.contains("too_wide"), "eagerly: {message}");
        works();
        t.stream.begin_capture().unwrap();
        t.run(count(flag, one, y));
        let message = match t.device.gpu() {
            Some(_) => {
                // The driver refuses it when the body is captured.
                let message = t.refusal(fails(nested));
                assert!(t.stream.end_capture("spoiled").is_err());
                message
            }
            None => {
                t.run(fails(nested));
                let graph = t.stream.end_capture("fails").unwrap();
                set(&t, flag, 0);
                graph.launch(&t.stream).unwrap();
                set(&t, flag, 1);
                graph.launch(&t.stream).unwrap_err().to_string()
            }
        };
        assert!(message.contains("too_wide"), "in a capture: {message}");
        works();
    }
}

#[test]
fn what_a_body_has_for_itself_is_no_value_of_the_body_around_it() {
    let t = checked_bench();
    let (flag, inner, x, own) = (t.ints(&[1], &[1]), t.ints(&[1], &[0]), floats(&t, 0.0), floats(&t, 5.0));
    let fill = |value| Op::from(Fill { output: own, value });
    let copy = Op::from(Copy { input: own, output: x });
    let inside = Op::from(When { flag: inner, body: vec![fill(1.0), copy.clone()], own: vec![own] });
    for of_outer in [Vec::new(), vec![own]] {
        let message = t.refusal(When { flag, body: vec![inside.clone(), copy.clone()], own: of_outer });
        let words = "when: `copy` in its body reads a tensor (64) of the body's own that nothing has written. Rule:";
        assert!(message.starts_with(words), "{message}");
    }
    // The body around it writes it, and two bodies have it, one after the other.
    t.run(When { flag, body: vec![fill(2.0), inside.clone(), copy.clone()], own: vec![own] });
    assert_eq!(t.get(&x), [2.0; N]);
    t.run(When { flag, body: vec![inside.clone(), inside], own: Vec::new() });
    assert_eq!(t.get(&x), [2.0; N]);
}

#[test]
fn a_custom_operation_runs_in_a_body_and_is_not_kept_by_the_stream() {
    let t = checked_bench();
    let (flag, x) = (t.ints(&[1], &[1]), floats(&t, 3.0));
    let op = Rc::new(Bump { x, by_call: false });
    let kept = Rc::downgrade(&op);
    let when = When { flag, body: vec![device::ops::Custom::new(op).into()], own: Vec::new() };
    for value in [1, 0, 1] {
        set(&t, flag, value);
        t.run(when.clone());
    }
    assert_eq!(t.get(&x), [5.0; N]);
    drop(when);
    assert!(kept.upgrade().is_none());
}

#[test]
fn on_a_gpu_a_call_cannot_be_in_a_body() {
    let t = checked_bench();
    let (flag, x) = (t.ints(&[1], &[1]), floats(&t, 3.0));
    let when = When { flag, body: vec![Bump { x, by_call: true }.into()], own: Vec::new() };
    if t.device.gpu().is_none() {
        t.run(when);
        return assert_eq!(t.get(&x), [4.0; N]);
    }
    let message = t.refusal(when);
    for words in ["when: `bump` cannot be in its body: it is a call", "Rule:", "Fix: give it a CudaLaunch"] {
        assert!(message.contains(words), "`{words}` is missing from: {message}");
    }
}

#[test]
fn a_gpu_that_first_meets_a_when_in_a_capture_asks_for_a_warm_up() {
    let t = checked_bench();
    let (flag, one, x) = (t.ints(&[1], &[1]), floats(&t, 1.0), floats(&t, 0.0));
    t.stream.begin_capture().unwrap();
    let submitted = t.stream.submit(count(flag, one, x));
    t.stream.abandon_capture();
    match t.device.gpu() {
        None => submitted.unwrap(),
        Some(_) => {
            let message = submitted.unwrap_err().to_string();
            assert!(
                message.contains("`set_condition` is not loaded") && message.contains("Fix: a warm-up"),
                "{message}"
            );
        }
    }
}

#[test]
fn a_product_and_an_attention_that_no_other_work_warms_up_run_in_a_body() {
    // Without timing, so nothing has launched the library's kernels before.
    let t = checked_bench();
    let values = |seed, count| crate::common::numbers(seed, count, DType::Bf16);
    let (tokens, heads, dim) = (128, 2, 64);
    let qkv = t.put(&[1, tokens, 3 * heads * dim], DType::Bf16, &values(1, 3 * tokens * heads * dim));
    let weight = t.put(&[48, heads * dim], DType::Bf16, &values(2, 48 * heads * dim));
    let zeros = |shape: &[usize], dtype| t.put(shape, dtype, &vec![0.0; shape.iter().product()]);
    let (output, stats) = (zeros(&[1, tokens, heads * dim], DType::Bf16), zeros(&[1, heads, tokens], DType::F32));
    let product = zeros(&[tokens, 48], DType::F32);
    let input = output.reshape([tokens, heads * dim]);
    let attention = Attention {
        qkv,
        keys: None,
        output,
        stats,
        heads,
        kv_heads: heads,
        scores: Scores { scale: None, soft_cap: None },
        mask: Mask::CAUSAL,
        documents: None,
        dropout: None,
    };
    let flag = t.ints(&[1], &[1]);
    let body = vec![attention.clone().into(), Gemm::linear(input, weight, product, Epilogue::None).into()];
    let when = When { flag, body, own: Vec::new() };
    t.prepare(when.clone());
    t.run(when.clone());
    let eager = t.get(&product);
    t.stream.begin_capture().unwrap();
    t.run(when);
    let graph = t.stream.end_capture("attention").unwrap();
    t.run(Fill { output: product, value: 0.0 });
    graph.launch(&t.stream).unwrap();
    assert_eq!(t.get(&product), eager);
    t.run(attention);
    t.run(Gemm::linear(input, weight, product, Epilogue::None));
    assert_eq!(t.get(&product), eager, "without a `when`");
    assert!(eager.iter().any(|value| *value != 0.0));
}
