//! Moves: copies of bytes between the device's memory and the host's.

use device::ops::{Copy, Fill, Move};
use device::{DType, Error, Home, Op};

use crate::common::checked_bench;

#[test]
fn a_move_takes_bytes_to_the_host_and_back_eagerly_and_in_a_graph() {
    let t = checked_bench();
    let area = t.device.allocate_in(Home::Host, "away", 1024).unwrap();
    assert_eq!((t.device.bytes_on_host(), area.bytes()), (1024, 1024));
    let away = area.tensor("away", 64, [5], DType::Bf16);
    let (x, y) = (t.put(&[5], DType::Bf16, &[1.0, -2.0, 0.5, 3.0, 9.0]), t.put(&[5], DType::Bf16, &[0.0; 5]));
    let out = || Op::from(Move { input: x, output: away });
    let back = || Op::from(Move { input: away, output: y });
    [out(), back()].into_iter().for_each(|op| t.stream.submit(op).unwrap());
    assert_eq!(t.get(&y), [1.0, -2.0, 0.5, 3.0, 9.0]);
    t.stream.begin_capture().unwrap();
    [out(), back()].into_iter().for_each(|op| t.stream.submit(op).unwrap());
    let graph = t.stream.end_capture("there and back").unwrap();
    t.stream.submit(Fill { output: x, value: 7.0 }).unwrap();
    graph.launch(&t.stream).unwrap();
    assert_eq!(t.get(&y), [7.0; 5]);
    drop(area);
    assert_eq!(t.device.bytes_on_host(), 0);
}

#[test]
fn other_operations_do_not_reach_the_host_s_memory() {
    let t = checked_bench();
    let area = t.device.allocate_in(Home::Host, "away", 64).unwrap();
    let away = area.tensor("away", 0, [4], DType::F32);
    let x = t.put(&[4], DType::F32, &[1.0; 4]);
    t.device.set_scope("forward");
    let wrong = [Op::from(Fill { output: away, value: 1.0 }), Op::from(Copy { input: away, output: x })];
    for op in wrong {
        let name = format!("forward/{}", op.name());
        let error = t.stream.submit(op).unwrap_err();
        assert!(matches!(error, Error::OnHost { .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("{name}: buffer `away` lies on the host. Rule: ")), "{error}");
    }
}

#[test]
fn a_move_changes_neither_shape_nor_type() {
    let t = checked_bench();
    let input = t.put(&[2, 4], DType::F32, &[1.0; 8]);
    for output in [t.put(&[8], DType::F32, &[0.0; 8]), t.put(&[2, 4], DType::Bf16, &[0.0; 8]), input] {
        assert!(Op::from(Move { input, output }).check().is_err(), "{output:?}");
    }
}
