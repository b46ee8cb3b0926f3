//! Work that runs only if a flag says so, in steps: recorded, planned, captured, replayed, verified, and refused.

use device::ops::{Accesses, Add, ClipScale, Control, Rule, SquareSum, Status, Update, UpdateTensors, When};
use device::{DType, Device, HostOptions, Tensor};
use graph_manager::{
    CudaGraphManager, EagerMemory, Error, ManagerOptions, Mempool, Result, TrainingPolicy, TrainingRegion,
    Verification, Verified,
};

use crate::named::{Bench, Manager, StepContext, bench, copy, fill};
use crate::toy::{assert_refused, checked_device};

/// A bench with flags that are 0.
struct Flags {
    bench: Bench,
    first: Tensor,
    second: Tensor,
}

fn flags() -> Flags {
    let bench = bench();
    let [first, second] = ["first", "second"].map(|name| bench.flag(name, 0));
    Flags { bench, first, second }
}

impl Flags {
    fn set(&self, values: [i32; 2]) {
        self.bench.device.upload(&self.first, &values[..1]).unwrap();
        self.bench.device.upload(&self.second, &values[1..]).unwrap();
    }

    /// In a graph: `y = 2 (x + 1)` if the first flag says so, and then `z += y` if the second does too. The next region
    /// counts in `x`.
    fn step(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let Bench { x, y, z, one, .. } = self.bench;
        cx.region("choose", (), |cx, ()| {
            let before = cx.tensor("before", [4], DType::F32)?;
            cx.run(copy(x, before))?;
            cx.when(self.first, |body| {
                let sum = body.tensor("sum", [4], DType::F32)?;
                body.run(Add { a: before, b: one, output: sum })?;
                body.run(Add { a: sum, b: sum, output: y })?;
                body.when(self.second, |body| {
                    let same = body.tensor("same", [4], DType::F32)?;
                    body.run(copy(y, same))?;
                    body.run(Add { a: z, b: same, output: z })
                })
            })
        })?;
        cx.region("count", (), |cx, ()| cx.run(self.bench.count()))
    }
}

const FLAGS: [[i32; 2]; 8] = [[1, 1], [0, 1], [1, 0], [0, 0], [-1, 7], [0, 0], [1, 1], [0, 1]];

#[test]
fn a_body_runs_in_the_steps_whose_flag_says_so_with_graphs_and_without_in_any_order_of_replay() {
    for (enable, poison, mempool) in
        [(false, false, Mempool::Single), (true, true, Mempool::Single), (true, false, Mempool::PerMicrobatch)]
    {
        let flags = flags();
        let mut manager = flags.bench.manager(ManagerOptions { enable, poison, mempool, ..ManagerOptions::default() });
        let (mut y, mut z) = (0.0, 0.0);
        for (number, values) in FLAGS.into_iter().enumerate() {
            flags.bench.device.shuffle_replays(Some(1 + number as u64));
            flags.set(values);
            manager.step("step", 1, &mut |cx| flags.step(cx)).unwrap();
            if values[0] != 0 {
                y = 2.0 * (number as f32 + 1.0);
                z += if values[1] != 0 { y } else { 0.0 };
            }
            let found = [flags.bench.x, flags.bench.y, flags.bench.z].map(|tensor| flags.bench.value(tensor));
            assert_eq!(found, [number as f32 + 1.0, y, z], "step {number}, graphs {enable}");
        }
        assert_eq!(manager.report().graphs.len(), if enable { 2 } else { 0 });
    }
}

#[test]
fn a_step_with_a_when_is_verified_whatever_the_flags_are() {
    let flags = flags();
    let mut manager = flags.bench.manager(ManagerOptions::default());
    for (number, values) in FLAGS.into_iter().enumerate() {
        flags.set(values);
        for memory in [EagerMemory::Apart, EagerMemory::Shared] {
            let how = Verification { memory, ..Verification::default() };
            let found = manager.verify("step", 1, &how, &mut |cx| flags.step(cx)).unwrap();
            // `x`, `y` and `z`.
            let same = Verified::Same { tensors: 3, bytes: 3 * 16 };
            assert_eq!(found, if number < 2 { Verified::NotYet } else { same }, "step {number}");
        }
        manager.step("step", 1, &mut |cx| flags.step(cx)).unwrap();
    }
}

#[test]
fn the_list_has_one_entry_for_it_with_the_names_of_its_body_and_reads_what_it_may_leave_alone() {
    let flags = flags();
    let mut manager = flags.bench.manager(ManagerOptions::default());
    manager.record("step", 1, &mut |cx| flags.step(cx)).unwrap();
    let line = "  1 compute when (add, add, when (copy, add)); reads first (1) i32, before (4) f32, one (4) f32, \
                y (4) f32, second (1) i32, z (4) f32; writes sum (4) f32, y (4) f32, same (4) f32, z (4) f32";
    assert!(manager.lists().lines().any(|found| found == line), "{}", manager.lists());
    let mut entries = Vec::new();
    manager.list("step", 1, |entry| entries.push((entry.name, entry.accesses)));
    assert_eq!(entries.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["copy", "when", "add"]);
    let Bench { y, z, one, .. } = flags.bench;
    let Accesses { reads, writes } = &entries[1].1;
    assert!([flags.first, flags.second, y, z, one].iter().all(|tensor| reads.contains(tensor)));
    assert!([y, z].iter().all(|tensor| writes.contains(tensor)));
}

#[test]
fn the_memory_of_what_a_body_may_leave_alone_is_kept_from_its_first_write_on() {
    // `kept` is written, then many others live and die, then a body may write it, then it is read.
    let flags = flags();
    let Bench { x, y, .. } = flags.bench;
    let step = &mut |cx: &mut StepContext<'_>| {
        let kept = cx.region("begin", (), |cx, ()| {
            let kept = cx.tensor("kept", [4], DType::F32)?;
            cx.run(fill(kept, 5.0))?;
            Ok(kept)
        })?;
        for (name, user) in [("a", "use a"), ("b", "use b"), ("c", "use c")] {
            let other = cx.region(name, (), |cx, ()| {
                let other = cx.tensor("other", [4], DType::F32)?;
                cx.run(fill(other, 7.0))?;
                Ok(other)
            })?;
            cx.region(user, other, |cx, other| cx.run(copy(other, x)))?;
        }
        cx.region("end", kept, |cx, kept| {
            cx.when(flags.first, |body| body.run(fill(kept, 9.0)))?;
            cx.run(copy(kept, y))
        })
    };
    let mut manager = flags.bench.manager(ManagerOptions { poison: true, ..ManagerOptions::default() });
    for number in 0..6 {
        flags.set([number % 2, 0]);
        manager.step("step", 1, step).unwrap();
        assert_eq!(flags.bench.value(y), if number % 2 == 0 { 5.0 } else { 9.0 }, "step {number}");
    }
}

/// The error of a step's first run.
fn refusal(flags: &Flags, mut step: impl FnMut(&mut StepContext<'_>) -> Result<()>) -> (Error, String) {
    let mut manager: Manager = flags.bench.manager(ManagerOptions::default());
    let error = manager.step("step", 1, &mut step).unwrap_err();
    let text = error.to_string();
    (error, text)
}

#[test]
fn a_buffer_of_a_body_is_refused_outside_of_it() {
    let flags = flags();
    let y = flags.bench.y;
    let inside = |cx: &mut StepContext<'_>, nested: bool| {
        let mut own = None;
        cx.when(flags.first, |body| {
            if nested {
                return body.when(flags.second, |body| {
                    let buffer = body.tensor("own", [4], DType::F32)?;
                    own = Some(buffer);
                    body.run(fill(buffer, 1.0))
                });
            }
            let buffer = body.tensor("own", [4], DType::F32)?;
            own = Some(buffer);
            body.run(fill(buffer, 1.0))
        })?;
        Ok::<Tensor, Error>(own.unwrap())
    };
    for nested in [false, true] {
        let (error, text) = refusal(&flags, |cx| {
            cx.region("choose", (), |cx, ()| {
                let own = inside(cx, nested)?;
                cx.run(copy(own, y))
            })
        });
        assert!(matches!(error, Error::Usage { .. }), "{error:?}");
        for words in ["choose: copy uses `choose/own`", "belongs to the body of a `when`", "StepContext::tensor"] {
            assert!(text.contains(words), "`{words}` is missing from: {text}");
        }
        // A body of its own is no other's.
        let (_, text) = refusal(&flags, |cx| {
            cx.region("choose", (), |cx, ()| {
                let own = inside(cx, nested)?;
                cx.when(flags.second, |body| body.run(copy(own, y)))
            })
        });
        assert!(text.contains("choose: when uses `choose/own`"), "{text}");
    }
    // Nor is it a result of the step.
    let mut manager = flags.bench.manager(ManagerOptions::default());
    let step = &mut |cx: &mut StepContext<'_>| cx.region("choose", (), |cx, ()| inside(cx, false));
    assert_refused(manager.step("step", 1, step), "the code outside of the step uses `choose/own`");
}

#[test]
fn a_when_may_come_again_in_a_step_with_the_buffers_that_it_has_for_itself() {
    let flags = flags();
    let Bench { x, y, one, .. } = flags.bench;
    let step = |cx: &mut StepContext<'_>, leaves: bool| {
        cx.region("choose", (), |cx, ()| {
            let own = cx.tensor("own", [4], DType::F32)?;
            let inner = When { flag: flags.second, body: vec![fill(own, 3.0).into()], own: vec![own] };
            let body = vec![copy(one, own).into(), Add { a: x, b: own, output: x }.into(), inner.into()];
            let twice = When { flag: flags.first, body, own: vec![own] };
            cx.run(twice.clone())?;
            if leaves {
                cx.run(copy(own, y))?;
            }
            cx.run(twice)
        })
    };
    let mut manager = flags.bench.manager(ManagerOptions { poison: true, ..ManagerOptions::default() });
    flags.set([1, 1]);
    for number in 1..5 {
        manager.step("step", 1, &mut |cx| step(cx, false)).unwrap();
        assert_eq!(flags.bench.value(x), 2.0 * number as f32);
    }
    let (_, text) = refusal(&flags, |cx| step(cx, true));
    assert!(text.contains("choose: copy uses `choose/own`, which belongs to the body of a `when`"), "{text}");
}

#[test]
fn a_result_that_only_a_body_writes_is_refused_when_the_step_is_recorded_also_without_a_checker() {
    let unchecked = Device::host(HostOptions::default()).unwrap();
    for device in [checked_device(), unchecked] {
        let bench = Bench::on(device);
        let (flag, y) = (bench.flag("flag", 0), bench.y);
        let mut manager = bench.manager(ManagerOptions::default());
        let mut step = |before: bool| {
            manager.step("step", 1, &mut |cx| {
                cx.region("choose", (), |cx, ()| {
                    let result = cx.tensor("result", [4], DType::F32)?;
                    if before {
                        cx.run(fill(result, 0.0))?;
                    }
                    cx.when(flag, |body| body.run(fill(result, 1.0)))?;
                    cx.run(copy(result, y))
                })
            })
        };
        let text = step(false).unwrap_err().to_string();
        for words in ["choose: when writes `choose/result`", "nothing has written before", "WhenBody::tensor"] {
            assert!(text.contains(words), "`{words}` is missing from: {text}");
        }
        step(true).unwrap();
    }
}

#[test]
fn mistakes_in_a_body_are_refused_where_they_are_made_with_the_region() {
    let flags = flags();
    let Bench { x, y, .. } = flags.bench;
    let first = flags.first;
    let in_region = |work: &dyn Fn(&mut StepContext<'_>) -> Result<()>| {
        refusal(&flags, |cx| cx.region("choose", (), |cx, ()| work(cx))).1
    };
    let text = in_region(&|cx| cx.when(x, |body| body.run(fill(y, 1.0))));
    assert!(text.contains("choose") && text.contains("when: `flag` is (4) f32, needs one i32"), "{text}");
    let text = in_region(&|cx| cx.when(first, |_| Ok(())));
    assert!(text.contains("choose") && text.contains("when: its body is empty"), "{text}");
    let text = in_region(&|cx| {
        cx.when(first, |body| {
            let error = body.run(Add { a: x, b: first, output: y });
            assert!(error.is_err(), "at the call");
            error
        })
    });
    assert!(text.contains("choose") && text.contains("add: `b` is i32"), "{text}");
    let text = in_region(&|cx| {
        cx.when(first, |body| {
            let own = body.tensor("own", [4], DType::F32)?;
            body.run(copy(own, y))
        })
    });
    assert!(text.contains("reads a tensor (4) of the body's own that nothing has written"), "{text}");
    // Outside of all regions there are no buffers, and a `when` may be there all the same.
    let (_, text) = refusal(&flags, |cx| cx.when(first, |body| body.tensor("own", [4], DType::F32).map(drop)));
    assert!(text.contains("`own` was taken outside of any region"), "{text}");
    let mut manager = flags.bench.manager(ManagerOptions::default());
    flags.set([1, 0]);
    manager.step("step", 1, &mut |cx| cx.when(first, |body| body.run(fill(y, 3.0)))).unwrap();
    assert_eq!(flags.bench.value(y), 3.0);
}

#[test]
fn a_status_that_a_body_makes_is_there_for_the_body_alone() {
    let flags = flags();
    let (bench, mut areas) = (&flags.bench, Vec::new());
    let mut block = |name, bytes| bench.device.allocate_tensor(&mut areas, name, [bytes], DType::U8).unwrap();
    let (status, control) = (block("status", size_of::<Status>()), block("control", size_of::<Control>()));
    bench.device.zero(&status).unwrap();
    bench.device.zero(&control).unwrap();
    let make = ClipScale { square_sum: bench.z.narrow(0, 1), control, status };
    let tensors = UpdateTensors {
        master: bench.x,
        compute: None,
        grad: bench.one,
        state: [].into(),
        weight_decay: 0.0,
        lr_multiplier: 1.0,
    };
    let update = Update { rule: Rule::Sgd { momentum: 0.0 }, tensors: [tensors].into(), control, status };
    let sum = SquareSum { inputs: [bench.one].into(), total: bench.z.narrow(0, 1) };
    let (_, text) = refusal(&flags, |cx| {
        cx.region("update", (), |cx, ()| {
            cx.when(flags.first, |body| {
                body.run(sum.clone())?;
                body.run(make.clone())
            })?;
            cx.run(update.clone())
        })
    });
    assert!(text.contains("no clip_scale comes before it in the step"), "{text}");
    let (_, text) =
        refusal(&flags, |cx| cx.region("update", (), |cx, ()| cx.when(flags.first, |body| body.run(update.clone()))));
    assert!(text.contains("no clip_scale comes before it in the step"), "{text}");
    let mut manager = flags.bench.manager(ManagerOptions::default());
    manager
        .step("step", 1, &mut |cx| {
            cx.region("update", (), |cx, ()| {
                cx.when(flags.first, |body| {
                    body.run(sum.clone())?;
                    body.run(make.clone())?;
                    body.run(update.clone())
                })
            })
        })
        .unwrap();
}

#[test]
fn microbatches_share_a_graph_only_if_their_bodies_do_the_same() {
    let flags = flags();
    let Bench { x, one, .. } = flags.bench;
    let policy = TrainingPolicy::choosing(|_| Ok(()));
    let mut manager = CudaGraphManager::new(flags.bench.compute.clone(), ManagerOptions::default(), policy).unwrap();
    flags.set([1, 0]);
    for _ in 0..4 {
        manager
            .step("train", 3, &mut |cx| {
                (0..3).try_for_each(|microbatch| {
                    cx.region(TrainingRegion::forward(0, microbatch), (), |cx, ()| {
                        let output = cx.tensor("output", [4], DType::F32)?;
                        cx.run(copy(x, output))?;
                        cx.when(flags.first, |body| {
                            body.run(Add { a: x, b: one, output: if microbatch < 2 { x } else { output } })
                        })
                    })
                })
            })
            .unwrap();
    }
    assert_eq!(flags.bench.value(x), 8.0);
    // The first two, and the third.
    assert_eq!(manager.report().graphs.len(), 2);
}
