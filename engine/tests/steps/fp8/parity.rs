//! A whole block in 8 bits against PyTorch. PyTorch casts to its own 8-bit types and multiplies in f32: see `fp8.py`
//! beside `reference.py`. One linear layer alone is compared in `engine/src/model/linear/parity.rs`.

use device::{Device, HostValues};
use engine::fp8::{Fp8, Fp8Format, Fp8Recipe, ScaleCell};
use engine::graph_options::GraphOptions;
use engine::model::{FeedForward, GptShape};
use engine::precision::Precision;
use engine::step::{Stage, StepSettings};

use crate::exchange::{Arrays, reference, relative_l2};
use crate::models::{Kind, MICRO_BATCH, Run, SEQ, VOCAB, batch, tiny_gpt};

/// The loss, relative. Rounding to bf16 at other moments moves it by 1e-4.
const LOSS: f64 = 1e-3;

/// How many times closer a gradient is to PyTorch's in 8 bits than that is to PyTorch's in f32.
///
/// Both sides round at the same places: to 8 bits, and stored 16-bit values to bf16. They may add in another order.
/// That moves a few values to another bf16 number, and a few of these to another 8-bit number. If both add alike, most
/// gradients have the same bits, and none is further than 1e-3. A wrong scale, type or layout, or a value that does not
/// saturate, makes the distance as large as that to f32, or larger.
const CLOSER: f64 = 4.0;

/// One block, with widths that tell rows from columns.
fn shape(feed_forward: FeedForward, fp8: Fp8) -> GptShape {
    GptShape { layers: 1, ffn: 96, feed_forward, fp8: Some(fp8), ..tiny_gpt(0.0, Precision::Bf16) }
}

/// The cells of delayed scales of all 8-bit weights, by names.
fn cells(stage: &Stage) -> Vec<(String, Option<ScaleCell>)> {
    let eight = stage.params().iter().filter_map(|(spec, param)| Some((&spec.name, param.fp8?)));
    eight
        .flat_map(|(name, fp8)| {
            [(format!("scale.{name}.input"), fp8.input), (format!("scale.{name}.grad_output"), fp8.grad_output)]
        })
        .collect()
}

/// Scales that a step of delayed scaling finds: half as large as needed, so that the largest values saturate.
fn give_scales(stage: &Stage, device: &Device) {
    for (name, cell) in cells(stage) {
        let cell = cell.unwrap();
        let scale = device.download::<f32>(&cell.scale).unwrap()[0];
        assert!(scale > 0.0, "{name} has no scale after a step");
        device.upload(&cell.scale, &[scale / 2.0]).unwrap();
    }
}

fn f64s(values: Vec<f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}

fn compare(feed_forward: FeedForward, recipe: Fp8Recipe, format: Fp8Format) {
    let fp8 = Fp8 { recipe, format, ..Fp8::default() };
    let name = format!("{feed_forward:?} {recipe} {format}");
    let shape = shape(feed_forward, fp8);
    let options = GraphOptions { enable: false, ..GraphOptions::default() };
    let run = Run { shape: Some(shape.clone()), ..Run::new(Kind::Gpt, 1, options) };
    let device = run.device();
    let mut stage = run.stage(&device);
    let step = |stage: &mut Stage| {
        // The weights stay as they are.
        let settings = StepSettings { learning_rate: 0.0, ..run.settings(0) };
        let samples = batch(run.kind, 0, 1);
        (stage.train_step(settings, Some(&samples)).unwrap().wait().unwrap().loss, samples)
    };
    if recipe == Fp8Recipe::Delayed {
        step(&mut stage);
        give_scales(&stage, &device);
    }
    let mut arrays = Arrays::default();
    for (name, cell) in cells(&stage) {
        let scale = cell.map_or(0.0, |cell| device.download::<f32>(&cell.scale).unwrap()[0]);
        arrays.f32(name, &[1], &[scale]);
    }
    for (spec, param) in stage.params().iter() {
        arrays.f32(spec.name.clone(), spec.shape.sizes(), &device.download::<f32>(&param.master).unwrap());
    }
    let (loss, samples) = step(&mut stage);
    let HostValues::I32(tokens) = &samples else { panic!("samples of a transformer are tokens") };
    for (what, from) in [("tokens", 0), ("targets", 1)] {
        let values: Vec<i32> = tokens.chunks(SEQ + 1).flat_map(|row| row[from..][..SEQ].to_vec()).collect();
        arrays.i32(what.into(), &[MICRO_BATCH, SEQ], &values);
    }

    let of_type = |dtype: device::DType| if dtype == device::DType::F8E5M2 { "e5m2" } else { "e4m3" };
    let case = serde_json::json!({
        "kind": "gpt", "layers": 1, "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads,
        "vocab": VOCAB, "tied": shape.tied, "eps": f64::from(shape.norm_eps as f32), "position": "learned",
        "norm": "layernorm", "activation": if feed_forward == FeedForward::SwiGlu { "swiglu" } else { "gelu" },
        "input_type": of_type(fp8.input()), "grad_type": of_type(fp8.grad_output()),
    });
    let theirs = reference("fp8.py", &name.replace(' ', "-"), &case, &arrays);
    assert!(
        (loss / theirs["loss"][0] - 1.0).abs() < LOSS,
        "{name}: loss {loss} here, {} in PyTorch",
        theirs["loss"][0]
    );
    let mut far = Vec::new();
    for (spec, param) in stage.params().iter() {
        let (eight, exact) = (&theirs[&format!("grad.{}", spec.name)], &theirs[&format!("exact.{}", spec.name)]);
        let ours = f64s(device.download::<f32>(&param.grad.unwrap()).unwrap());
        let row = eight.len() / spec.shape.sizes()[0];
        // The bias of the keys has no true gradient: softmax ignores a shift. That of the values comes last.
        let rows = if spec.name.ends_with("c_attn.bias") { 2 * shape.hidden..3 * shape.hidden } else { 0..spec.rows };
        let range = rows.start * row..rows.end * row;
        let here = relative_l2(&ours[range.clone()], &eight[range.clone()]);
        let there = relative_l2(&exact[range.clone()], &eight[range]);
        let line =
            format!("{name}: the gradient of {} is {here:.1e} from PyTorch's, that {there:.1e} from f32", spec.name);
        println!("{line}");
        if here * CLOSER > there {
            far.push(line);
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}

#[test]
fn a_block_with_tensorwise_scales_agrees_with_pytorch() {
    for format in [Fp8Format::Hybrid, Fp8Format::E4m3] {
        compare(FeedForward::Gelu, Fp8Recipe::Tensorwise, format);
    }
    compare(FeedForward::SwiGlu, Fp8Recipe::Tensorwise, Fp8Format::Hybrid);
}

#[test]
fn a_block_with_given_scales_agrees_with_pytorch_saturated_values_among_them() {
    for format in [Fp8Format::Hybrid, Fp8Format::E4m3] {
        compare(FeedForward::Gelu, Fp8Recipe::Delayed, format);
    }
    compare(FeedForward::SwiGlu, Fp8Recipe::Delayed, Fp8Format::Hybrid);
}
