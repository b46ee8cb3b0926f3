//! Adapters of frozen linear layers: the same bits in every setting.

use device::ops::CodeForm;
use device::{DType, Device, bf16};
use engine::graph_options::GraphOptions;
use engine::model::{AttentionKind, BalanceGroup, Experts, FeedForward, GptShape, Lora, LoraTarget, is_adapter};
use engine::params::{CodeMemory, Sharding};
use engine::precision::Precision;
use engine::step::Stage;

use crate::experts::{tiny_deepseek, tiny_qwen3_moe, tiny_shared};
use crate::models::{Kind, Layout, Run, Trained, all_settings, noise, off, tiny_gpt, tiny_qwen2, tiny_qwen3};

const STEPS: usize = 6;

/// Everything in a block that can have an adapter of its own.
pub fn all_targets(shape: &GptShape) -> Vec<LoraTarget> {
    use LoraTarget::{
        AttentionOutput, Down, Gate, Key, KeyValueLatent, KeyValueOfLatent, Query, QueryOfLatent, Up, Value,
    };
    let gate = (shape.feed_forward != FeedForward::Gelu).then_some(Gate);
    let of_heads = match shape.attention {
        AttentionKind::Latent(latent) => {
            let of_queries = latent.query_rank.map(|_| QueryOfLatent);
            [latent.queries(), KeyValueLatent, KeyValueOfLatent].into_iter().chain(of_queries).collect()
        }
        _ => vec![Query, Key, Value],
    };
    of_heads.into_iter().chain([AttentionOutput, Up, Down]).chain(gate).collect()
}

/// Adapters as `engine/tests/parity/reference.py` takes them.
pub fn adapters(lora: &Lora, shape: &GptShape) -> serde_json::Value {
    let mut layers = serde_json::Map::new();
    for block in 0..shape.layers {
        for layer in lora.adapted(shape, block) {
            let of_each = layer.adapters(lora.rank).into_iter();
            let of_each = of_each.map(|of| [of.covered.start, of.covered.end, of.a.start, of.b.start]);
            layers.insert(format!("h.{block}.{}", layer.name), serde_json::json!(of_each.collect::<Vec<_>>()));
        }
    }
    serde_json::json!({ "rank": lora.rank, "scale": lora.alpha / lora.rank as f64, "layers": layers })
}

/// Gives each `B` other values than its first ones, which are 0, so that all gradients matter. They are the same on
/// every rank.
pub fn move_adapters(stage: &Stage) {
    for (index, spec) in stage.params().specs.iter().enumerate().filter(|(_, spec)| spec.name.ends_with(".lora_B")) {
        let stream = spec.name.bytes().map(u64::from).sum();
        let value = |at: usize| (noise(stream, at as u64) >> 40) as f32 / (1u64 << 24) as f32 * 0.2 - 0.1;
        stage.params().set(stage.device(), index, &spec.stored_values(value)).unwrap();
    }
}

pub fn with_adapters(shape: GptShape, dropout: f64) -> GptShape {
    let targets = all_targets(&shape);
    GptShape { lora: Some(Lora { rank: 4, alpha: 8.0, dropout, targets }), ..shape }
}

/// With dropout of adapters and of all else, and experts.
fn shapes(dropout: f32) -> [(&'static str, GptShape); 5] {
    let gpt = tiny_gpt(dropout, Precision::F32);
    // As many heads of each kind as ranks share, and fewer.
    let qwen3 = GptShape { heads: 8, kv_heads: 4, ..tiny_qwen3(dropout, Precision::F32) };
    let qwen2 = tiny_qwen2(dropout, Precision::F32);
    let experts = tiny_shared(dropout, BalanceGroup::Microbatch);
    let latent = GptShape { experts: None, hidden_dropout: dropout.into(), ..tiny_deepseek(Some(14), None) };
    [("GPT", gpt), ("Qwen3", qwen3), ("Qwen2", qwen2), ("experts", experts), ("latent", latent)]
        .map(|(name, shape)| (name, with_adapters(shape, dropout.into())))
}

fn run(shape: &GptShape, data: usize, graphs: GraphOptions) -> Run {
    let (kind, precision) = (if shape.bias { Kind::Gpt } else { Kind::Llama }, shape.precision);
    let new = Run::new(kind, 4 / data, graphs);
    Run { shape: Some(shape.clone()), precision, steps: STEPS, frozen: |name| !is_adapter(name), ..new }
}

/// Trains from adapters that are not 0: all results, and the final adapters in bits.
pub fn train(run: Run) -> Trained {
    let device = run.device();
    let mut stage = run.stage(&device);
    train_stage(&run, &device, &mut stage)
}

/// As [`train`], of a stage with weights of its own.
fn train_stage(run: &Run, device: &Device, stage: &mut Stage) -> Trained {
    move_adapters(stage);
    let results = run.train_stage(stage);
    let trained = stage.params().iter().filter(|(spec, _)| is_adapter(&spec.name));
    let values = trained.flat_map(|(_, param)| device.download::<f32>(&param.master).unwrap());
    (results, values.map(f32::to_bits).collect())
}

#[test]
fn adapters_train_to_the_same_bits_in_every_graph_setting_and_whatever_is_recomputed() {
    for (name, shape) in shapes(0.1) {
        let plain = train(run(&shape, 1, off()));
        assert!(plain.0[STEPS - 1].loss < plain.0[0].loss, "{name} does not learn: {:?}", plain.0);
        for (setting, options) in all_settings() {
            assert!(train(run(&shape, 1, options)) == plain, "{name}, {setting}");
        }
        let selective = GptShape { recompute: true, ..shape.clone() };
        for (what, run) in [
            ("selective", run(&selective, 1, GraphOptions::default())),
            ("full", Run { recompute: Some(2), ..run(&shape, 1, GraphOptions::default()) }),
            ("threads", Run { threads: 3, ..run(&shape, 1, off()) }),
            ("random order", Run { shuffle: Some(5), ..run(&shape, 1, GraphOptions::default()) }),
        ] {
            assert!(train(run) == plain, "{name}, {what}");
        }
    }
}

#[test]
fn adapters_that_begin_at_zero_change_nothing_and_the_frozen_weights_stay() {
    for precision in [Precision::F32, Precision::Bf16] {
        let shape = tiny_qwen3(0.0, precision);
        let with = with_adapters(shape.clone(), 0.0);
        let one = |shape: &GptShape| Run { steps: 1, clip: 0.0, ..run(shape, 1, GraphOptions::default()) };
        let without = Run { frozen: |_| false, ..one(&shape) };
        assert_eq!(one(&with).train_on(&without.device()).0[0].loss, without.train_on(&without.device()).0[0].loss);
        let bits = |steps| {
            let run = Run { steps, ..one(&with) };
            let device = run.device();
            let stage = run.train_on(&device).1;
            let frozen = stage.params().iter().filter(|(spec, _)| !is_adapter(&spec.name));
            let values = |tensor| match precision {
                Precision::F32 => device.download::<f32>(tensor).unwrap().into_iter().map(f32::to_bits).collect(),
                _ => device.download::<bf16>(tensor).unwrap().into_iter().map(|x| u32::from(x.to_bits())).collect(),
            };
            frozen.map(|(_, param)| values(&param.weight)).collect::<Vec<Vec<u32>>>()
        };
        assert_eq!(bits(0), bits(3));
        // The frozen weights cost their own bytes; adapters alone have gradients and masters.
        let stage = one(&with).stage(&without.device());
        let adapters: usize = stage.params().iter().filter_map(|(_, param)| Some(param.grad?.elements())).sum();
        assert!(0 < adapters && adapters < stage.params().frozen_bytes() / 4, "{adapters}");
        assert!(stage.params().iter().all(|(_, param)| param.grad.is_none() || param.master.dtype == DType::F32));
    }
}

/// A Qwen3 with experts in every other block, whose rows are whole blocks of codes.
pub fn with_blocks_of_codes(precision: Precision) -> GptShape {
    let shape = tiny_qwen3_moe(0.0, precision);
    let experts = shape.experts.map(|experts| Experts { ffn: 64, ..experts });
    let sizes = GptShape { hidden: 64, heads: 4, kv_heads: 2, head_dim: Some(16), ffn: 128, experts, ..shape };
    with_adapters(GptShape { layers: 3, ..sizes }, 0.0)
}

/// Training on codes is training on the values that they stand for, which are there while a layer runs.
#[test]
fn a_frozen_base_of_codes_has_the_bits_of_a_base_with_their_values() {
    for (form, precision) in
        [(CodeForm::Nf4, Precision::F32), (CodeForm::Nf4, Precision::Bf16), (CodeForm::Int8, Precision::Bf16)]
    {
        let shape = with_blocks_of_codes(precision);
        let run = |options, codes| Run { codes, steps: 2, ..run(&shape, 1, options) };
        let of_codes = run(off(), Some(form));
        let device = of_codes.device();
        let mut stage = of_codes.stage(&device);
        let values: Vec<Vec<f32>> =
            stage.params().iter().map(|(_, param)| param.master_values(&device).unwrap()).collect();
        // Four or eight bits a weight, and a scale of 16 bits for 64.
        let codes = |of: fn(&CodeMemory) -> usize| -> usize {
            stage.params().iter().filter_map(|(_, param)| param.codes.as_ref().map(of)).sum()
        };
        let coded = stage.params().specs.iter().filter(|spec| spec.codes.is_some());
        let coded: usize = coded.map(|spec| spec.shape.elements()).sum();
        assert!(coded > 0 && codes(|of| of.codes.bytes()) == form.bytes(coded));
        assert_eq!(codes(|of| of.scales.bytes()), coded / 32);
        let trained = train_stage(&of_codes, &device, &mut stage);

        let plain = run(off(), None);
        let device = plain.device();
        let mut stage = plain.stage(&device);
        values.iter().enumerate().for_each(|(index, values)| stage.params().set(&device, index, values).unwrap());
        let with_values = train_stage(&plain, &device, &mut stage);
        assert!(trained == with_values, "{form:?} {precision:?}: {:?} and {:?}", trained.0, with_values.0);
        for (setting, options) in all_settings() {
            assert!(train(run(options, Some(form))) == trained, "{form:?} {precision:?}, {setting}");
        }
        let again = Run { recompute: Some(2), ..run(GraphOptions::default(), Some(form)) };
        assert!(train(again) == trained, "{form:?} {precision:?}, recomputed");
    }
}

/// Each rank has a part of a layer's codes, gathers the others for each use, and makes the same values.
#[test]
fn ranks_that_divide_codes_have_the_bits_of_ranks_that_each_have_all() {
    for (form, precision, tensor, data) in [
        (CodeForm::Nf4, Precision::F32, 1, 4),
        (CodeForm::Nf4, Precision::Bf16, 2, 2),
        (CodeForm::Int8, Precision::Bf16, 1, 2),
    ] {
        let shape = with_blocks_of_codes(precision);
        let experts = shape.experts.clone().map(|experts| Experts { ffn: 128, ..experts });
        let sizes = GptShape { hidden: 128, head_dim: Some(32), ffn: 256, experts, ..shape };
        let train = |sharding, graphs: &GraphOptions, recompute| {
            // Without clipping, so that no number depends on the order of the norm's sum.
            // One microbatch.
            let own = || Run {
                codes: Some(form),
                sharding,
                clip: 0.0,
                steps: 3,
                recompute,
                ..run(&sizes, 4, graphs.clone())
            };
            let ranks = Layout::new(tensor, 1, 1, data).on_ranks(own, |run| {
                let device = run.device();
                let mut stage = run.stage(&device);
                let codes = stage.params().iter().filter_map(|(_, param)| param.codes);
                let codes: usize = codes.map(|of| of.codes.bytes()).sum();
                let losses: Vec<u64> =
                    train_stage(&run, &device, &mut stage).0.iter().map(|of| of.loss.to_bits()).collect();
                (losses, codes)
            });
            assert!(ranks.iter().all(|(losses, _)| *losses == ranks[0].0));
            (ranks[0].0.clone(), ranks.iter().map(|(_, codes)| codes).sum::<usize>())
        };
        let (plain, of_all) = train(Sharding::Nothing, &off(), None);
        let settings = if data == 4 { all_settings() } else { vec![] };
        for (setting, options) in settings {
            let (losses, codes) = train(Sharding::Weights, &options, None);
            assert!(losses == plain, "{form:?} {precision:?}, {setting}: {losses:?} and {plain:?}");
            assert_eq!(codes * data, of_all, "{form:?} {precision:?}");
        }
        let (losses, _) = train(Sharding::Weights, &GraphOptions::default(), Some(2));
        assert!(losses == plain, "{form:?} {precision:?}, recomputed");
    }
}

/// The gradient of each adapter against the change of the loss, through the step's own masks of dropout.
#[test]
fn gradients_of_adapters_with_dropout_are_the_slopes_of_the_loss() {
    let shape = with_adapters(GptShape { layers: 1, ..tiny_qwen3(0.0, Precision::F32) }, 0.3);
    let run = Run { clip: 0.0, learning_rate: 0.0, ..run(&shape, 1, off()) };
    let device = run.device();
    // The loss when a parameter is moved along its gradient, and that gradient.
    let loss = |moved: Option<(usize, &[f32], f32)>| {
        let mut stage = run.stage(&device);
        move_adapters(&stage);
        if let Some((index, direction, length)) = moved {
            let (_, param) = stage.params().iter().nth(index).unwrap();
            let values = device.download::<f32>(&param.master).unwrap();
            let values: Vec<f32> = values.iter().zip(direction).map(|(x, d)| x + length * d).collect();
            stage.params().set(&device, index, &values).unwrap();
        }
        (run.step(&mut stage, run.settings(3)).loss, stage)
    };
    let (_, stage) = loss(None);
    let mut checked = 0;
    for (index, (spec, param)) in stage.params().iter().enumerate().filter(|(_, (spec, _))| is_adapter(&spec.name)) {
        let gradient = device.download::<f32>(&param.grad.unwrap()).unwrap();
        let norm = gradient.iter().map(|x| x * x).sum::<f32>().sqrt();
        let direction: Vec<f32> = gradient.iter().map(|x| x / norm).collect();
        let length = 0.02;
        let difference = loss(Some((index, &direction, length))).0 - loss(Some((index, &direction, -length))).0;
        let slope = difference / (2.0 * f64::from(length));
        let apart = (slope / f64::from(norm) - 1.0).abs();
        assert!(apart < 2e-2, "{}: the slope is {slope}, the gradient {norm}", spec.name);
        checked += 1;
    }
    assert_eq!(checked, 8);
}
