//! Moves: memory of the host in steps, tensors that passes move there and back, and wrong moves that are refused.

use device::ops::{Add, Copy, Fill, Move};
use device::{DType, Home, Tensor};
use graph_manager::{ManagerOptions, Mempool, Piece, PieceEntry, Result, StepPass};

use crate::toy::{Mode, Region, StepContext, Toy, WIDTH, assert_refused, toy};

/// A pass that is told the tensors which it has noted.
struct Moves<F> {
    noted: Vec<Tensor>,
    apply: F,
}

impl<F: FnMut(&mut Piece<Region>, &mut Vec<Tensor>)> StepPass<Region> for Moves<F> {
    fn name(&self) -> &'static str {
        "test"
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        (self.apply)(piece, &mut self.noted);
    }
}

type Apply = fn(&mut Piece<Region>, &mut Vec<Tensor>);
type Code = fn(&Toy, &mut StepContext<'_>) -> Result<()>;

fn forward(layer: usize) -> Region {
    Region::Forward { layer, microbatch: 0 }
}

/// A buffer with 3 in the first region, overwritten in the second if `changes` says so, and copied in the last.
fn saved(toy: &Toy, cx: &mut StepContext<'_>, changes: bool) -> Result<()> {
    let saved = cx.region(forward(0), (), |cx, ()| {
        let saved = cx.tensor("saved", [WIDTH], DType::F32)?;
        cx.run(Fill { output: saved, value: 3.0 })?;
        Ok(saved)
    })?;
    cx.region(forward(1), (), |cx, ()| {
        let large = cx.tensor("large", [4 * WIDTH], DType::F32)?;
        cx.run(Fill { output: large, value: 5.0 })?;
        if changes {
            cx.run(Fill { output: saved, value: 7.0 })?;
        }
        cx.run(Copy { input: large.view(0, [WIDTH]), output: toy.sums.at(2) })
    })?;
    cx.region(Region::Backward { layer: 0, microbatch: 0 }, (), |cx, ()| {
        cx.run(Copy { input: saved, output: toy.sums.at(1) })
    })
}

fn code(toy: &Toy, cx: &mut StepContext<'_>) -> Result<()> {
    saved(toy, cx, false)
}

/// The first region's buffer leaves in the second region, and comes back in the last.
fn there_and_back(piece: &mut Piece<Region>, noted: &mut Vec<Tensor>) {
    match piece.region() {
        Region::Forward { layer: 0, .. } => noted.push(piece.entries[0].accesses().writes[0]),
        Region::Forward { .. } => {
            let host = moves(piece, noted[0], Home::Host);
            noted.push(host);
        }
        _ => {
            let back = moves(piece, noted[1], Home::Device);
            piece.entries.iter_mut().for_each(|entry| entry.use_copy(&noted[0], &back));
        }
    }
}

/// Moves a tensor to a new buffer at the beginning of a piece.
fn moves(piece: &mut Piece<Region>, input: Tensor, home: Home) -> Tensor {
    let output = piece.buffer_like(&input, home, "copy");
    piece.entries.insert(0, PieceEntry::moves(Move { input, output }));
    output
}

fn recorded(code: Code, apply: Apply) -> Result<()> {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    manager.record(Mode::Train, 2, &mut |cx| {
        cx.set_passes(vec![Box::new(Moves { noted: Vec::new(), apply })]);
        code(&toy, cx)
    })
}

#[test]
fn a_tensor_leaves_for_the_host_and_comes_back_in_every_setting() {
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        for enable in [false, true] {
            let toy = toy();
            toy.device.zero(&toy.sums).unwrap();
            let options = ManagerOptions { mempool, enable, poison: true, ..ManagerOptions::default() };
            let mut manager = toy.manager(options);
            let (to, from) = (toy.side.clone(), graph_manager::SideStream::new(&toy.device, "from the host"));
            for seed in 0..6 {
                toy.device.shuffle_replays(Some(seed));
                let (to, from) = (to.clone(), from.clone());
                let mut step = |cx: &mut StepContext<'_>| {
                    let (to, from) = (to.clone(), from.clone());
                    let apply = move |piece: &mut Piece<Region>, noted: &mut Vec<Tensor>| {
                        there_and_back(piece, noted);
                        let queue = if matches!(piece.region(), Region::Forward { .. }) { &to } else { &from };
                        for entry in piece.entries.iter_mut().filter(|entry| entry.op().name() == "move") {
                            entry.put_on(queue);
                            piece.joins.push(queue.clone());
                        }
                    };
                    cx.set_passes(vec![Box::new(Moves { noted: Vec::new(), apply })]);
                    code(&toy, cx)
                };
                manager.step(Mode::Train, 1, &mut step).unwrap();
                let sums = toy.device.download::<f32>(&toy.sums).unwrap();
                assert_eq!([sums[WIDTH], sums[2 * WIDTH]], [3.0, 5.0], "{mempool:?}, graphs {enable}");
            }
            let host = manager.memory_in(Home::Host);
            assert_eq!((host.len(), host[0].bytes), (1, WIDTH * 4), "{host:?}");
            assert!(host[0].area.ends_with(" on the host"), "{host:?}");
            assert_eq!(toy.device.bytes_on_host(), WIDTH * 4);
        }
    }
}

#[test]
fn a_step_s_code_may_move_and_nothing_else_may_use_the_host_s_memory() {
    let step = |fills: bool| {
        let toy = toy();
        let mut manager = toy.manager(ManagerOptions::default());
        let stepped = manager.step(Mode::Train, 1, &mut |cx| {
            cx.region(forward(0), (), |cx, ()| {
                let host = cx.tensor_in(Home::Host, "away", [WIDTH], DType::F32)?;
                match fills {
                    true => cx.run(Fill { output: host, value: 1.0 })?,
                    false => cx.run(Move { input: toy.inputs.at(1), output: host })?,
                }
                cx.run(Move { input: host, output: toy.sum() })
            })
        });
        stepped.map(|()| toy.device.download::<f32>(&toy.sum()).unwrap()[0])
    };
    assert_eq!(step(false).unwrap(), (WIDTH as f32).sin());
    assert_refused(
        step(true),
        "forward of layer 0, microbatch 0: fill: buffer `forward of layer 0, microbatch 0/away`",
    );
}

#[test]
fn only_operations_that_the_pass_has_made_are_erased() {
    let own_move: Code =
        |toy, cx| cx.region(forward(0), (), |cx, ()| cx.run(Move { input: toy.inputs.at(0), output: toy.sum() }));
    // It takes the code's move for its own.
    let refused = recorded(own_move, |piece, _| {
        let accesses = piece.entries.remove(0).accesses().clone();
        piece.entries.push(PieceEntry::moves(Move { input: accesses.reads[0], output: accesses.writes[0] }));
    });
    assert_refused(refused, "the pass `test` moves a tensor to memory of the step's that it was not moved from");
    assert_refused(recorded(own_move, |piece, _| piece.entries.clear()), "the pass `test` kept `move`");
}

#[test]
fn a_copy_is_of_what_its_move_says() {
    let two: Code =
        |toy, cx| cx.region(forward(0), (), |cx, ()| cx.run(Copy { input: toy.inputs.at(1), output: toy.sum() }));
    let refused = recorded(two, |piece, _| {
        let used = piece.entries[0].accesses().reads[0];
        let other = Tensor { address: used.address - used.bytes() as u64, ..used };
        let copy = moves(piece, other, Home::Device);
        piece.entries[1].use_copy(&used, &copy);
    });
    assert_refused(refused, "the pass `test` has changed `copy`: it is not the code's operation on copies");
}

#[test]
fn a_copy_is_used_after_its_move_within_it_and_before_its_source_changes() {
    // Before its move.
    let refused = recorded(code, |piece, noted| {
        there_and_back(piece, noted);
        if matches!(piece.region(), Region::Backward { .. }) {
            piece.entries.swap(0, 1);
        }
    });
    assert_refused(refused, "the pass `test` has changed `copy`");
    // After its source has changed.
    let changing: Code = |toy, cx| saved(toy, cx, true);
    assert_refused(recorded(changing, there_and_back), "has `move` use a copy whose source `fill` has changed since");
    // Before its source has its values.
    let refused = recorded(code, |piece, noted| match piece.region() {
        Region::Forward { layer: 0, .. } => {
            noted.push(piece.entries[0].accesses().writes[0]);
            let host = moves(piece, noted[0], Home::Host);
            noted.push(host);
        }
        Region::Forward { .. } => {}
        _ => there_and_back(piece, noted),
    });
    assert_refused(refused, "has `move` use a copy whose source `fill` has changed since");
    // Beyond its bytes.
    let refused = recorded(code, |piece, noted| match piece.region() {
        Region::Forward { layer: 0, .. } => noted.push(piece.entries[0].accesses().writes[0]),
        Region::Forward { .. } => {}
        _ => {
            let half = moves(piece, noted[0].narrow(0, WIDTH / 2), Home::Device);
            piece.entries[1].use_copy(&noted[0], &half);
        }
    });
    assert_refused(refused, "has `copy` use bytes of a copy that were not moved there");
    // Filled twice.
    let refused = recorded(code, |piece, noted| {
        there_and_back(piece, noted);
        if matches!(piece.region(), Region::Forward { layer: 1, .. }) {
            piece.entries.push(PieceEntry::moves(Move { input: noted[0], output: noted[1] }));
        }
    });
    assert_refused(refused, "the pass `test` fills a buffer twice");
    // Not filled at all.
    let refused = recorded(code, |piece, noted| {
        if matches!(piece.region(), Region::Forward { layer: 0, .. }) {
            noted.push(piece.entries[0].accesses().writes[0]);
            let empty = piece.buffer_like(&noted[0], Home::Device, "empty");
            moves(piece, empty, Home::Host);
        }
    });
    assert_refused(refused, "the pass `test` moves a buffer that nothing has filled");
}

/// Two sums in place, and a use of the result.
fn update(toy: &Toy, cx: &mut StepContext<'_>) -> Result<()> {
    cx.region(Region::Optimizer, (), |cx, ()| {
        for at in 1..3 {
            cx.run(Add { a: toy.sum(), b: toy.inputs.at(at), output: toy.sum() })?;
        }
        cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) })
    })
}

/// The sum is updated in a copy, which is moved back before the operation of that number, from 1 on.
fn updates_copy(piece: &mut Piece<Region>, back_before: Option<usize>, copied: usize) {
    let sum = piece.entries[0].accesses().writes[0];
    let copy = moves(piece, sum, Home::Device);
    piece.entries[1..=copied].iter_mut().for_each(|entry| entry.use_copy(&sum, &copy));
    if let Some(at) = back_before {
        piece.entries.insert(at, PieceEntry::moves(Move { input: copy, output: sum }));
    }
}

#[test]
fn a_copy_that_is_written_goes_back_to_its_source() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    for _ in 0..4 {
        toy.device.upload(&toy.sums, &[1.0f32; 3 * WIDTH]).unwrap();
        let mut step = |cx: &mut StepContext<'_>| {
            let apply = |piece: &mut Piece<Region>, _: &mut Vec<Tensor>| updates_copy(piece, Some(3), 2);
            cx.set_passes(vec![Box::new(Moves { noted: Vec::new(), apply })]);
            update(&toy, cx)
        };
        manager.step(Mode::Train, 1, &mut step).unwrap();
        let sums = toy.device.download::<f32>(&toy.sums).unwrap();
        let sum = 1.0 + (WIDTH as f32).sin() + (2.0 * WIDTH as f32).sin();
        assert_eq!([sums[0], sums[WIDTH]], [sum; 2]);
    }
    // Never.
    let refused = recorded(update, |piece, _| updates_copy(piece, None, 3));
    assert_refused(refused, "makes a copy that `add` writes, and does not move it back");
    // After its first write, before its last.
    let refused = recorded(update, |piece, _| updates_copy(piece, Some(2), 3));
    assert_refused(refused, "makes a copy that `add` writes, and does not move it back");
    // The source is used before.
    let refused = recorded(update, |piece, _| updates_copy(piece, Some(4), 2));
    assert_refused(refused, "leaves the values of `add` in a copy, and `copy` uses the tensor itself");
    // Another copy is made before.
    let refused = recorded(update, |piece, _| {
        updates_copy(piece, Some(4), 3);
        let sum = piece.entries[4].accesses().writes[0];
        let output = piece.buffer_like(&sum, Home::Host, "other");
        piece.entries.insert(3, PieceEntry::moves(Move { input: sum, output }));
    });
    assert_refused(refused, "makes a copy of a tensor whose newest values, of `add`, lie in another copy");
}

#[test]
fn a_copy_is_of_one_microbatch() {
    let both: Code = |toy, cx| {
        for microbatch in 0..2 {
            cx.region(Region::Forward { layer: 0, microbatch }, (), |cx, ()| {
                cx.run(Copy { input: toy.inputs.at(0), output: toy.sums.at(microbatch) })
            })?;
        }
        Ok(())
    };
    let refused = recorded(both, |piece, noted| {
        let used = piece.entries[0].accesses().reads[0];
        if noted.is_empty() {
            let copy = moves(piece, used, Home::Device);
            noted.push(copy);
        }
        let code = piece.entries.iter_mut().filter(|entry| entry.op().name() == "copy");
        code.for_each(|entry| entry.use_copy(&used, &noted[0]));
    });
    assert_refused(refused, "has `copy` use a copy of another microbatch, made in forward of layer 0, microbatch 0");
}
