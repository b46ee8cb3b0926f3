//! Trials of operations on each element, alone or with its neighbour.

use super::sizes::{Sizes, site};
use super::workbench::AddTrial;
use crate::DType;
use crate::ops::{
    Activation, ActivationBackward, ActivationKind, Add, Condition, Copy, Dropout, Fill, Gate, Glu, GluBackward, Move,
    Multiply, Poison, ReluDropout, ReluDropoutBackward, Select, SoftCap, When,
};

pub(super) fn trials(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let shape = [s.batch, s.seq, s.ffn];
    plain(shape, dtype, &mut *add);
    activations(shape, dtype, &mut *add);
    add("soft_cap", Box::new(move |b| Ok(SoftCap { values: b.scaled(shape, dtype, 3.0)?, cap: 2.0 }.into())));
    dropout(shape, dtype, &mut *add);
}

fn plain(shape: [usize; 3], dtype: DType, add: AddTrial<'_>) {
    add(
        "add",
        Box::new(move |b| {
            Ok(Add { a: b.input(shape, dtype)?, b: b.input(shape, dtype)?, output: b.output(shape, dtype)? }.into())
        }),
    );
    add(
        "add in place",
        Box::new(move |b| {
            let output = b.input(shape, dtype)?;
            Ok(Add { a: output, b: b.input(shape, dtype)?, output }.into())
        }),
    );
    add("move", Box::new(move |b| Ok(Move { input: b.input(shape, dtype)?, output: b.output(shape, dtype)? }.into())));
    for in_place in [false, true] {
        add(
            if in_place { "multiply in place" } else { "multiply" },
            Box::new(move |b| {
                let (input, factor) = (b.input(shape, dtype)?, b.between([1], 0.5, 2.0)?);
                let output = if in_place { input } else { b.output(shape, dtype)? };
                Ok(Multiply { input, factor, output }.into())
            }),
        );
    }
    for value in [0, 1] {
        add(
            &format!("select, flag {value}"),
            Box::new(move |b| {
                let condition = Condition::Flag(b.integers([1], &[value])?);
                let (a, other, output) = (b.input(shape, dtype)?, b.input(shape, dtype)?, b.output(shape, dtype)?);
                Ok(Select { condition, a, b: other, output }.into())
            }),
        );
    }
    for value in [0, 1] {
        add(
            &format!("when, flag {value}"),
            Box::new(move |b| {
                let (flag, a, x) = (b.integers([1], &[value])?, b.input(shape, dtype)?, b.input(shape, dtype)?);
                let own = b.output_in_part(shape, dtype)?;
                let body = vec![Copy { input: a, output: own }.into(), Add { a: x, b: own, output: x }.into()];
                Ok(When { flag, body, own: vec![own] }.into())
            }),
        );
    }
    add(
        "select by mask",
        Box::new(move |b| {
            let mask = b.mask(shape)?;
            let (a, other, output) = (b.input(shape, dtype)?, b.input(shape, dtype)?, b.output(shape, dtype)?);
            Ok(Select { condition: Condition::Mask(mask), a, b: other, output }.into())
        }),
    );
    add(
        "select by mask in place",
        Box::new(move |b| {
            let (mask, output) = (b.mask(shape)?, b.input(shape, dtype)?);
            Ok(Select { condition: Condition::Mask(mask), a: output, b: b.input(shape, dtype)?, output }.into())
        }),
    );
    add("poison", Box::new(move |b| Ok(Poison { output: b.output(shape, DType::I32)? }.into())));
    for to in [DType::F32, DType::Bf16] {
        add(
            &format!("copy to {to}"),
            Box::new(move |b| Ok(Copy { input: b.input(shape, dtype)?, output: b.output(shape, to)? }.into())),
        );
    }
    add("fill", Box::new(move |b| Ok(Fill { output: b.output(shape, dtype)?, value: 0.3 }.into())));
}

fn activations(shape: [usize; 3], dtype: DType, add: AddTrial<'_>) {
    for kind in [ActivationKind::Gelu, ActivationKind::Relu] {
        let name = if kind == ActivationKind::Gelu { "gelu" } else { "relu" };
        add(
            name,
            Box::new(move |b| {
                Ok(Activation { kind, input: b.scaled(shape, dtype, 4.0)?, output: b.output(shape, dtype)? }.into())
            }),
        );
        add(
            &format!("{name} backward"),
            Box::new(move |b| {
                let (input, grad_output) = (b.scaled(shape, dtype, 4.0)?, b.input(shape, dtype)?);
                Ok(ActivationBackward { kind, input, grad_output, grad_input: b.output(shape, dtype)? }.into())
            }),
        );
    }
    let [batch, seq, ffn] = shape;
    let wide = [batch, seq, 2 * ffn];
    for (gate, name) in [(Gate::Silu, "swiglu"), (Gate::Gelu, "geglu"), (Gate::ClampedSilu, "clamped_swiglu")] {
        add(
            name,
            Box::new(move |b| {
                Ok(Glu { gate, input: b.scaled(wide, dtype, 3.0)?, output: b.output(shape, dtype)? }.into())
            }),
        );
        for again in [false, true] {
            add(
                &format!("{name} backward{}", if again { ", values again" } else { "" }),
                Box::new(move |b| {
                    let (input, grad_output) = (b.scaled(wide, dtype, 3.0)?, b.input(shape, dtype)?);
                    let output = if again { Some(b.output(shape, dtype)?) } else { None };
                    Ok(GluBackward { gate, input, grad_output, grad_input: b.output(wide, dtype)?, output }.into())
                }),
            );
        }
    }
}

fn dropout(shape: [usize; 3], dtype: DType, add: AddTrial<'_>) {
    add(
        "dropout",
        Box::new(move |b| {
            let (input, site) = (b.input(shape, dtype)?, site(b)?);
            Ok(Dropout { input, output: b.output(shape, dtype)?, site }.into())
        }),
    );
    add(
        "dropout in place",
        Box::new(move |b| {
            let (values, site) = (b.input(shape, dtype)?, site(b)?);
            Ok(Dropout { input: values, output: values, site }.into())
        }),
    );
    add(
        "relu and dropout",
        Box::new(move |b| {
            let (input, site) = (b.input(shape, dtype)?, site(b)?);
            Ok(ReluDropout { input, output: b.output(shape, dtype)?, site }.into())
        }),
    );
    add(
        "relu and dropout backward",
        Box::new(move |b| {
            let (output, grad_output) = (b.input(shape, dtype)?, b.input(shape, dtype)?);
            Ok(ReluDropoutBackward { output, grad_output, grad_input: b.output(shape, dtype)?, scale: 1.25 }.into())
        }),
    );
}
