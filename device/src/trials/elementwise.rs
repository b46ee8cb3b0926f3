//! Trials of operations on each element, alone or with its neighbour.

use super::case::Trials;
use super::sizes::{Sizes, site};
use crate::DType;
use crate::ops::{
    Activation, ActivationBackward, ActivationKind, Add, Condition, Copy, Dropout, Fill, Gate, Glu, GluBackward, Move,
    Multiply, Poison, ReluDropout, ReluDropoutBackward, Select, SoftCap, When,
};

pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    let shape = [s.batch, s.seq, s.ffn];
    plain(shape, dtype, to);
    activations(shape, dtype, to);
    to.add("soft_cap", move |b| Ok(SoftCap { values: b.scaled(shape, dtype, 3.0)?, cap: 2.0 }));
    dropout(shape, dtype, to);
}

fn plain(shape: [usize; 3], dtype: DType, to: &mut Trials) {
    to.add("add", move |b| {
        Ok(Add { a: b.input(shape, dtype)?, b: b.input(shape, dtype)?, output: b.output(shape, dtype)? })
    });
    to.add("add in place", move |b| {
        let output = b.input(shape, dtype)?;
        Ok(Add { a: output, b: b.input(shape, dtype)?, output })
    });
    to.add("move", move |b| Ok(Move { input: b.input(shape, dtype)?, output: b.output(shape, dtype)? }));
    for in_place in [false, true] {
        to.add(if in_place { "multiply in place" } else { "multiply" }, move |b| {
            let (input, factor) = (b.input(shape, dtype)?, b.between([1], 0.5, 2.0)?);
            let output = if in_place { input } else { b.output(shape, dtype)? };
            Ok(Multiply { input, factor, output })
        });
    }
    for value in [0, 1] {
        to.add(&format!("select, flag {value}"), move |b| {
            let condition = Condition::Flag(b.integers([1], &[value])?);
            let (a, other, output) = (b.input(shape, dtype)?, b.input(shape, dtype)?, b.output(shape, dtype)?);
            Ok(Select { condition, a, b: other, output })
        });
    }
    for value in [0, 1] {
        to.add(&format!("when, flag {value}"), move |b| {
            let (flag, a, x) = (b.integers([1], &[value])?, b.input(shape, dtype)?, b.input(shape, dtype)?);
            let own = b.output_in_part(shape, dtype)?;
            let body = vec![Copy { input: a, output: own }.into(), Add { a: x, b: own, output: x }.into()];
            Ok(When { flag, body, own: vec![own] })
        });
    }
    to.add("select by mask", move |b| {
        let mask = b.mask(shape)?;
        let (a, other, output) = (b.input(shape, dtype)?, b.input(shape, dtype)?, b.output(shape, dtype)?);
        Ok(Select { condition: Condition::Mask(mask), a, b: other, output })
    });
    to.add("select by mask in place", move |b| {
        let (mask, output) = (b.mask(shape)?, b.input(shape, dtype)?);
        Ok(Select { condition: Condition::Mask(mask), a: output, b: b.input(shape, dtype)?, output })
    });
    to.add("poison", move |b| Ok(Poison { output: b.output(shape, DType::I32)? }));
    for output in [DType::F32, DType::Bf16] {
        to.add(&format!("copy to {output}"), move |b| {
            Ok(Copy { input: b.input(shape, dtype)?, output: b.output(shape, output)? })
        });
    }
    to.add("fill", move |b| Ok(Fill { output: b.output(shape, dtype)?, value: 0.3 }));
}

fn activations(shape: [usize; 3], dtype: DType, to: &mut Trials) {
    for kind in [ActivationKind::Gelu, ActivationKind::Relu] {
        let name = if kind == ActivationKind::Gelu { "gelu" } else { "relu" };
        to.add(name, move |b| {
            Ok(Activation { kind, input: b.scaled(shape, dtype, 4.0)?, output: b.output(shape, dtype)? })
        });
        to.add(&format!("{name} backward"), move |b| {
            let (input, grad_output) = (b.scaled(shape, dtype, 4.0)?, b.input(shape, dtype)?);
            Ok(ActivationBackward { kind, input, grad_output, grad_input: b.output(shape, dtype)? })
        });
    }
    let [batch, seq, ffn] = shape;
    let wide = [batch, seq, 2 * ffn];
    for (gate, name) in [(Gate::Silu, "swiglu"), (Gate::Gelu, "geglu"), (Gate::ClampedSilu, "clamped_swiglu")] {
        to.add(name, move |b| Ok(Glu { gate, input: b.scaled(wide, dtype, 3.0)?, output: b.output(shape, dtype)? }));
        for again in [false, true] {
            to.add(&format!("{name} backward{}", if again { ", values again" } else { "" }), move |b| {
                let (input, grad_output) = (b.scaled(wide, dtype, 3.0)?, b.input(shape, dtype)?);
                let output = if again { Some(b.output(shape, dtype)?) } else { None };
                Ok(GluBackward { gate, input, grad_output, grad_input: b.output(wide, dtype)?, output })
            });
        }
    }
}

fn dropout(shape: [usize; 3], dtype: DType, to: &mut Trials) {
    to.add("dropout", move |b| {
        let (input, site) = (b.input(shape, dtype)?, site(b)?);
        Ok(Dropout { input, output: b.output(shape, dtype)?, site })
    });
    to.add("dropout in place", move |b| {
        let (values, site) = (b.input(shape, dtype)?, site(b)?);
        Ok(Dropout { input: values, output: values, site })
    });
    to.add("relu and dropout", move |b| {
        let (input, site) = (b.input(shape, dtype)?, site(b)?);
        Ok(ReluDropout { input, output: b.output(shape, dtype)?, site })
    });
    to.add("relu and dropout backward", move |b| {
        let (output, grad_output) = (b.input(shape, dtype)?, b.input(shape, dtype)?);
        Ok(ReluDropoutBackward { output, grad_output, grad_input: b.output(shape, dtype)?, scale: 1.25 })
    });
}
