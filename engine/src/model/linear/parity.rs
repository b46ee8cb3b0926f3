//! One linear layer in 8 bits against PyTorch: see `engine/tests/parity/fp8.py`.

use std::collections::HashMap;

use common::Choice;
use device::{Area, DType, Device, HostOptions, Tensor, bf16};

use super::{Linear, LinearSpec};
use parallel::{Axes, Ranks};

use crate::fp8::{Copies, Fp8, Fp8Format, Fp8Recipe};
use crate::graph_options::GraphOptions;
use crate::model::tensor_parallel::{Packed, TensorParallel};
use crate::params::{Init, Params};
use crate::precision::Precision;
use crate::regions::{Mode, Region};
use crate::step_policy::{StepPolicy, StepShape};
use device::ops::Epilogue;
use exchange::{Arrays, reference, relative_l2};

#[path = "../../../tests/parity/exchange.rs"]
mod exchange;

const ROWS: usize = 48;
const INPUT: usize = 64;
const OUTPUT: usize = 80;

/// Of outputs in bf16, relative L2: half a unit of 8 bits of precision in the worst case for the few sums that lie
/// beside the middle of two numbers, and go to the other one because the sum was in another order.
const BF16: f64 = 1e-4;
/// Of outputs in f32: rounding of sums of 48 to 80 terms. A single factor that went to another 8-bit number would be
/// 1e-4.
const F32: f64 = 2e-6;

/// The results of a layer: output `(rows, out)`, gradients of input `(rows, in)`, weight `(out, in)` and bias `(out)`.
struct Results {
    output: Tensor,
    grad_input: Tensor,
    linear: Linear,
}

impl Results {
    fn all(&self) -> [(&'static str, Tensor); 4] {
        let (weight, bias) = (self.linear.weight.grad.unwrap(), self.linear.bias.unwrap().grad.unwrap());
        [("output", self.output), ("grad_input", self.grad_input), ("grad_weight", weight), ("grad_bias", bias)]
    }
}

/// Numbers that bf16 has, of all sizes: a few are 16 times as large as most.
fn numbers(count: usize, seed: u64, unit: f32) -> Vec<f32> {
    let number = |i: usize| {
        let bits = (i as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let outlier = if bits.is_multiple_of(97) { 16.0 } else { 1.0 };
        bf16::from_f32(((bits >> 8) as f32 / (1u64 << 40) as f32 * 2.0 - 1.0) * outlier * unit).to_f32()
    };
    (0..count).map(number).collect()
}

fn download(device: &Device, tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype {
        DType::Bf16 => {
            device.download::<bf16>(tensor).unwrap().into_iter().map(|x| f64::from(x.to_f32())).collect::<Vec<_>>()
        }
        _ => device.download::<f32>(tensor).unwrap().into_iter().map(f64::from).collect(),
    }
}

/// Compares a linear layer with separate scales, or with `given` scales, of the layer's input and output gradient.
fn compare(recipe: Fp8Recipe, format: Fp8Format, given: Option<[f32; 2]>) {
    let fp8 = Fp8 { recipe, format, ..Fp8::default() };
    let name = format!("{recipe} {format}");
    let device = Device::host(HostOptions { threads: 1, check: true, dry: false }).unwrap();
    let spec =
        LinearSpec::column_parallel("layer".into(), INPUT, vec![Packed::channels(OUTPUT)], Init::Normal(0.05), true);
    let spec = spec.in_8_bits(Some(fp8));
    let specs = Precision::Bf16.apply(spec.params(&TensorParallel::alone(), 0));
    let params = Params::new(&device, specs, Some(7), 1 << 20, Ranks::alone(), Axes::NONE).unwrap();
    let linear = spec.build(&params, Precision::Bf16);

    let mut areas: Vec<Area> = Vec::new();
    let mut tensor = |name, width| device.allocate_tensor(&mut areas, name, [ROWS, width], DType::Bf16).unwrap();
    let (input, grad_output) = (tensor("input", INPUT), tensor("grad_output", OUTPUT));
    let results = Results { output: tensor("output", OUTPUT), grad_input: tensor("grad_input", INPUT), linear };
    let values = [
        ("input", input, numbers(ROWS * INPUT, 3, 1.0)),
        ("grad_output", grad_output, numbers(ROWS * OUTPUT, 11, 1e-3)),
    ];
    let mut arrays = Arrays::default();
    for (name, tensor, values) in &values {
        let rounded: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
        device.upload(tensor, &rounded).unwrap();
        arrays.f32((*name).into(), tensor.shape.sizes(), values);
    }
    for (index, (name, unit)) in [("weight", 0.1), ("bias", 0.5)].into_iter().enumerate() {
        let shape = params.specs[index].shape;
        let values = numbers(shape.elements(), 5 + index as u64, unit);
        params.set(&device, index, &values).unwrap();
        arrays.f32(name.into(), shape.sizes(), &values);
    }
    let cells = linear.weight.fp8.map(|fp8| [fp8.input, fp8.grad_output]).unwrap();
    for ((name, cell), scale) in ["scale.input", "scale.grad_output"].iter().zip(cells).zip(given.unwrap_or_default()) {
        if let Some(cell) = cell {
            device.upload(&cell.scale, &[scale]).unwrap();
        }
        arrays.f32((*name).into(), &[1], &[scale]);
    }

    let shape = StepShape { layers: 1, ..StepShape::default() };
    let compute = device.stream("compute");
    let mut graphs = StepPolicy::manager(compute, &GraphOptions::default(), shape).unwrap();
    let mut first = None;
    // Warm-up, capture, replay.
    for step in 0..3 {
        graphs
            .step(Mode::Train.into(), 1, &mut |cx| {
                cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                    let input = linear.input(cx, input, Copies::Both)?;
                    linear.forward(cx, &input, results.output, None)?;
                    let grad_output = linear.grad_output(cx, grad_output)?;
                    linear.dgrad(cx, &grad_output, results.grad_input, Epilogue::None, None)?;
                    linear.weight_gradients(cx, input, grad_output, None)
                })
            })
            .unwrap();
        let found = results.all().map(|(_, tensor)| download(&device, &tensor));
        assert_eq!(&found, first.get_or_insert_with(|| found.clone()), "{name}: step {step} has other bits");
    }
    check(&device, &name, &results, &arrays, fp8);
}

fn check(device: &Device, name: &str, results: &Results, arrays: &Arrays, fp8: Fp8) {
    let of_type = |dtype: DType| if dtype == DType::F8E5M2 { "e5m2" } else { "e4m3" };
    let (input, grad) = (of_type(fp8.input()), of_type(fp8.grad_output()));
    let case = serde_json::json!({ "kind": "linear", "input_type": input, "grad_type": grad });
    let file = format!("linear-{}", name.replace(' ', "-"));
    let theirs: HashMap<String, Vec<f64>> = reference("fp8.py", &file, &case, arrays);
    for (what, tensor) in results.all() {
        let within = if tensor.dtype == DType::Bf16 { BF16 } else { F32 };
        let ours = download(device, &tensor);
        assert!(ours.iter().filter(|x| **x != 0.0).count() > ours.len() / 2, "{name}: {what} is mostly 0");
        // As bf16, if ours is.
        let round = |x: &f64| f64::from(bf16::from_f64(*x).to_f32());
        let theirs: Vec<f64> = match tensor.dtype {
            DType::Bf16 => theirs[what].iter().map(round).collect(),
            _ => theirs[what].clone(),
        };
        let apart = relative_l2(&ours, &theirs);
        println!("{name}: {what} {apart:.1e}");
        assert!(apart < within, "{name}: {what} is {apart:.1e} from PyTorch's");
    }
}

#[test]
fn a_layer_with_scales_of_its_tensors_agrees_with_pytorch() {
    for format in Fp8Format::ALL {
        compare(Fp8Recipe::Tensorwise, *format, None);
    }
}

#[test]
fn a_layer_with_given_scales_agrees_with_pytorch_saturated_values_among_them() {
    // The largest magnitudes are about 16 and 0.016. E4M3 reaches 448, E5M2 57344.
    compare(Fp8Recipe::Delayed, Fp8Format::Hybrid, Some([0.02, 1e-7]));
    compare(Fp8Recipe::Delayed, Fp8Format::E4m3, Some([0.02, 2e-5]));
    // Scales that are not known yet are made from the first tensors.
    compare(Fp8Recipe::Delayed, Fp8Format::Hybrid, None);
}
