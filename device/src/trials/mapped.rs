//! All operations of the trials can be mapped to other tensors, and compared.

use std::collections::{BTreeSet, HashSet};
use std::mem::discriminant;

use super::cases::all;
use super::workbench::Workbench;
use crate::ops::{CrossEntropyJoin, CrossEntropyPart, NormBackward, NormKind, Poison, VocabPart, When, ZLoss};
use crate::{DType, Device, HostOptions, Op, Result, Tensor};

/// How far tensors are moved.
const SHIFT: u64 = 1 << 40;

/// Operations without a trial, or with trials that leave a tensor out.
fn others(b: &mut Workbench) -> Result<[Op; 5]> {
    let (logits, targets) = (b.output([4, 8], DType::F32)?, b.integers([4], &[1; 4])?);
    let (stats, losses) = (b.output([1, 3, 4], DType::F32)?, b.output([4], DType::F32)?);
    let z_loss = Some(ZLoss { multiplier: 0.1, losses: b.output([4], DType::F32)? });
    let (part, soft_cap) = (VocabPart { first_token: 0, vocab: 8 }, Some(30.0));
    let control = Some(b.output([32], DType::U8)?);
    Ok([
        CrossEntropyPart { logits, targets, stats, part, soft_cap }.into(),
        CrossEntropyJoin { logits, targets, stats, losses, part, soft_cap, z_loss, weights: Some(losses), control }
            .into(),
        Poison { output: losses }.into(),
        When {
            flag: b.integers([1], &[1])?,
            body: vec![Poison { output: targets }.into(), Poison { output: losses }.into()],
            own: vec![losses],
        }
        .into(),
        NormBackward {
            kind: NormKind::Layer,
            input: b.output([4, 8], DType::F32)?,
            weight: b.output([8], DType::F32)?,
            mean: Some(b.output([4], DType::F32)?),
            rstd: b.output([4], DType::F32)?,
            grad_output: b.output([4, 8], DType::F32)?,
            grad_residual: Some(b.output([4, 8], DType::F32)?),
            grad_input: b.output([4, 8], DType::F32)?,
            weight_parts: Some(b.output([2, 8], DType::F32)?),
            bias_parts: Some(b.output([2, 8], DType::F32)?),
            residual_parts: Some(b.output([2, 8], DType::F32)?),
        }
        .into(),
    ])
}

/// The numbers after each `label` in the operation's text. The text has all fields of the operation.
fn numbers(op: &Op, label: &str) -> Vec<u64> {
    let number = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|word| word.parse().ok());
    format!("{op:?}").split(label).skip(1).map(|rest| number(rest).unwrap()).collect()
}

/// The optional fields of each kind that no operation has.
fn left_out(ops: &[Op]) -> BTreeSet<String> {
    let (mut absent, mut present) = (BTreeSet::new(), BTreeSet::new());
    for op in ops {
        let text = format!("{op:?}");
        let (kind, fields) = text.split_once('(').unwrap();
        let parts: Vec<&str> = fields.split(": ").collect();
        for pair in parts.windows(2) {
            let field = format!("{kind}.{}", pair[0].rsplit(' ').next().unwrap());
            if pair[1].starts_with("None") {
                absent.insert(field)
            } else {
                present.insert(field)
            };
        }
    }
    &absent - &present
}

#[test]
fn an_operation_of_every_kind_is_mapped_and_compared_with_all_its_tensors() {
    let device = Device::host(HostOptions::default()).unwrap();
    let elsewhere = device.virtual_tensor("elsewhere", [1], DType::U8).buffer;
    let shift = |tensor: Tensor| Tensor { address: tensor.address + SHIFT, buffer: elsewhere, ..tensor };
    let shifted = |tensors: &[Tensor]| tensors.iter().copied().map(shift).collect::<Vec<_>>();
    let mut bench = Workbench::new(&device);
    let mut ops: Vec<Op> = others(&mut bench).unwrap().into();
    // A workbench looks at all its tensors after each run, so each trial has its own.
    ops.extend(all(true).iter().map(|case| (case.make)(&mut Workbench::new(&device)).unwrap()));
    let kinds: HashSet<_> = ops.iter().map(discriminant).collect();
    assert_eq!(kinds.len() + 3, Op::NAMES.len(), "collectives, callers' operations and marks are tested in `device`");
    assert_eq!(left_out(&ops), BTreeSet::new());
    for op in ops {
        let moved = op.clone().map(shift);
        let addresses: Vec<u64> = numbers(&op, "address: ").into_iter().map(|address| address + SHIFT).collect();
        assert_eq!(numbers(&moved, "address: "), addresses, "{op:?}");
        assert!(numbers(&moved, "BufferId(").windows(2).all(|pair| pair[0] == pair[1]), "{moved:?}");
        let (before, after) = (op.accesses(), moved.accesses());
        assert_eq!((after.reads, after.writes), (shifted(&before.reads), shifted(&before.writes)), "{op:?}");

        let mut tensors = Vec::new();
        op.clone().each_tensor(&mut |tensor| tensors.push(*tensor));
        let mut back = tensors.iter().copied();
        assert!(op == op.clone() && moved.map(|_| back.next().unwrap()) == op, "{op:?}");
        for changed in 0..tensors.len() {
            let mut at = 0..;
            let other = op.clone().map(|tensor| if at.next() == Some(changed) { shift(tensor) } else { tensor });
            assert!(other != op, "tensor {changed} of {op:?} is not compared");
        }
    }
}
