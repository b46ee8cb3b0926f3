//! Operations are values: they can be mapped to other tensors, and compared. `device/src/trials/cases.rs` tests
//! that for an operation of every other kind.

use std::rc::Rc;

use crate::common::{Never, Probe};
use device::ops::{Collective, CollectiveKind, Custom, Fill, SquareSum};
use device::{BufferId, Communicator, DType, Op, Progress, Tensor};

fn tensor(address: u64) -> Tensor {
    Tensor { address, shape: [4].into(), dtype: DType::F32, buffer: BufferId::NOTHING }
}

fn moved(tensor: Tensor) -> Tensor {
    Tensor { address: tensor.address + 4096, ..tensor }
}

#[test]
fn a_constant_is_compared_by_its_bits() {
    let fill = |value| Op::from(Fill { output: tensor(256), value });
    assert_eq!(fill(f32::NAN), fill(f32::NAN));
    assert_ne!(fill(0.0), fill(-0.0));
}

#[test]
fn an_operation_that_is_mapped_leaves_the_slice_alone_that_it_shared() {
    let op = Op::from(SquareSum { inputs: [tensor(256), tensor(512)].into(), total: tensor(1024) });
    let there = op.clone().map(moved);
    assert_eq!(op.accesses().reads, [tensor(256), tensor(512)]);
    assert_eq!(there.accesses().reads, [tensor(256 + 4096), tensor(512 + 4096)]);
    assert_ne!(there, op);
}

#[test]
fn transfers_are_equal_on_one_communicator_alone() {
    let (group, twin): (Rc<dyn Communicator>, Rc<dyn Communicator>) = (Rc::new(Never), Rc::new(Never));
    let sum = |group: &Rc<dyn Communicator>| {
        Op::from(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), tensor(256)))
    };
    assert_eq!(sum(&group), sum(&group));
    assert_ne!(sum(&group), sum(&twin));
    assert_ne!(sum(&group), sum(&group).map(moved));
    let there = sum(&group).map(moved).accesses();
    assert_eq!((there.reads, there.writes), (vec![tensor(256 + 4096)], vec![tensor(256 + 4096)]));
}

#[test]
fn operations_of_a_caller_are_compared_by_identity_and_place() {
    let own = || Probe { reads: vec![tensor(256)], writes: vec![tensor(512)], body: Box::new(|_| Ok(())) };
    let op = Rc::new(own());
    let mine = || Op::from(Custom::new(op.clone()));
    assert_eq!(mine(), mine());
    assert_ne!(mine(), Op::from(own()));
    assert_ne!(mine(), mine().map(moved));
    assert_eq!(mine().map(moved), mine().map(moved));
}

#[test]
fn marks_are_equal_in_one_place_alone() {
    let (here, there) = (Progress::default(), Progress::default());
    let mark = |progress: &Progress, name| Op::from(progress.region(name));
    assert_eq!(mark(&here, "a"), mark(&here, "a"));
    assert_ne!(mark(&here, "a"), mark(&here, "b"));
    assert_ne!(mark(&here, "a"), mark(&there, "a"));
    assert_ne!(mark(&here, "a"), Op::from(here.step(0)));
}
