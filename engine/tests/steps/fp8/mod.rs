//! Products of 8-bit factors: learning as in 16 bits, and graphs and recompute that change no bit.

mod counts;
mod gradients;
mod parity;
mod ranks;

use device::ops::LatentHead;
use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::GraphOptions;
use engine::model::{AttentionKind, Experts, GptShape, Latent, is_adapter};
use engine::precision::Precision;
use engine::step::{Stage, StepResult};

use crate::experts::tiny_qwen3_moe;
use crate::lora::{train, with_adapters};
use crate::models::{Kind, Run, all_settings, assert_graphs_change_no_bit, off, tiny_gpt, tiny_llama};

const RECIPES: [Fp8Recipe; 4] = [Fp8Recipe::Tensorwise, Fp8Recipe::Delayed, Fp8Recipe::Rowwise, Fp8Recipe::Blockwise];

/// All sizes are multiples of 16, for two ranks that share layers too.
fn shape(kind: Kind, dropout: f32, fp8: Option<Fp8>) -> GptShape {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    GptShape { ffn: 64, kv_heads: 4, layers: 3, fp8, ..own(dropout, Precision::Bf16) }
}

/// In the hybrid format; blockwise scaling does not have it.
fn fp8(recipe: Fp8Recipe) -> Fp8 {
    let format = if recipe == Fp8Recipe::Blockwise { Fp8Format::E4m3 } else { Fp8Format::Hybrid };
    Fp8 { recipe, format, amax_history: 4, ..Fp8::default() }
}

fn run(shape: GptShape, kind: Kind, microbatches: usize, graphs: GraphOptions) -> Run {
    Run { shape: Some(shape), steps: 8, learning_rate: 3e-3, ..Run::new(kind, microbatches, graphs) }
}

fn losses(results: &[StepResult]) -> Vec<f64> {
    results.iter().map(|step| step.loss).collect()
}

#[test]
fn every_recipe_learns_as_16_bits_do() {
    for kind in [Kind::Gpt, Kind::Llama] {
        let of = |fp8| {
            let run = Run { steps: 80, ..run(shape(kind, 0.0, fp8), kind, 2, off()) };
            losses(&run.train().0)
        };
        let bf16 = of(None);
        for recipe in RECIPES {
            let formats = if recipe == Fp8Recipe::Blockwise {
                &[Fp8Format::E4m3][..]
            } else {
                &[Fp8Format::Hybrid, Fp8Format::E4m3]
            };
            for &format in formats {
                let eight = of(Some(Fp8 { format, ..fp8(recipe) }));
                let end = |losses: &[f64]| losses[70..].iter().sum::<f64>() / 10.0;
                let gap = (end(&eight) / end(&bf16) - 1.0).abs();
                assert!(end(&eight) < 0.9 * eight[0], "{kind:?} {recipe} {format}: {eight:?}");
                assert!(gap > 0.0 && gap < 0.02, "{kind:?} {recipe} {format}: {gap} away from {bf16:?}: {eight:?}");
            }
        }
    }
}

#[test]
fn graphs_change_no_bit_in_any_setting() {
    for (kind, microbatches) in [(Kind::Gpt, 1), (Kind::Llama, 3)] {
        for recipe in RECIPES {
            let of = |graphs| run(shape(kind, 0.1, Some(fp8(recipe))), kind, microbatches, graphs).train();
            let what = format!("{kind:?} {recipe}");
            let (plain, _) = assert_graphs_change_no_bit(&what, &all_settings()[1..], of);
            assert!(plain.iter().all(|step| step.applied));
        }
    }
}

#[test]
fn recompute_has_the_scales_of_the_first_forward() {
    for kind in [Kind::Gpt, Kind::Llama] {
        for recipe in RECIPES {
            let of = |selective, full, keeps_attention| {
                let shape = GptShape { recompute: selective, ..shape(kind, 0.1, Some(fp8(recipe))) };
                Run { recompute: full, keeps_attention, ..run(shape, kind, 2, GraphOptions::default()) }.train()
            };
            let kept = of(false, None, false);
            for (selective, full, keeps_attention) in
                [(true, None, false), (false, Some(1), false), (true, Some(2), false), (false, Some(2), true)]
            {
                assert!(of(selective, full, keeps_attention) == kept, "{kind:?} {recipe} {selective} {full:?}");
            }
        }
    }
}

/// Latent attention. All sizes are multiples of 16.
fn latent(shape: GptShape) -> GptShape {
    let head = LatentHead { plain: 16, rotated: 16, value: 16 };
    let attention = AttentionKind::Latent(Latent { query_rank: Some(16), rank: 32, head });
    GptShape { attention, kv_heads: 1, head_dim: Some(32), ..shape }
}

/// Frozen layers multiply in 8 bits, and their adapters in 16.
#[test]
fn latents_and_adapters_follow_16_bits_with_the_same_bits_in_graphs_and_when_recomputed() {
    let dense = shape(Kind::Llama, 0.1, None);
    let of_experts = tiny_qwen3_moe(0.1, Precision::Bf16);
    let experts = of_experts.experts.map(|experts| Experts { ffn: 32, ..experts });
    let of_experts = GptShape { experts, head_dim: Some(16), ffn: 64, ..of_experts };
    let latents = latent(dense.clone());
    for (name, own, recipes) in [
        ("latent", latents.clone(), &RECIPES[..]),
        ("adapters", with_adapters(dense, 0.1), &RECIPES),
        ("adapters of a GPT", with_adapters(shape(Kind::Gpt, 0.1, None), 0.0), &[Fp8Recipe::Delayed]),
        ("adapters of latents", with_adapters(latents, 0.0), &[Fp8Recipe::Tensorwise]),
        ("adapters of experts", with_adapters(of_experts, 0.0), &[Fp8Recipe::Delayed]),
    ] {
        let adapts = own.lora.is_some();
        let of = |fp8, selective, full, graphs| {
            let shape = GptShape { fp8, recompute: selective, ..own.clone() };
            let kind = if shape.bias { Kind::Gpt } else { Kind::Llama };
            let run = Run { recompute: full, steps: 4, ..run(shape, kind, 2, graphs) };
            match adapts {
                true => train(Run { frozen: |name| !is_adapter(name), ..run }),
                false => run.train(),
            }
        };
        let bf16 = of(None, false, None, off()).0;
        for &recipe in recipes {
            let fp8 = Some(fp8(recipe));
            let eight = of(fp8, false, None, off());
            for (step, (ours, theirs)) in eight.0.iter().zip(&bf16).enumerate() {
                let apart =
                    [ours.loss / theirs.loss, f64::from(ours.grad_norm / theirs.grad_norm)].map(|x| (x - 1.0).abs());
                let what = format!("{name} {recipe}, step {step}: {ours:?} and {theirs:?} in 16 bits");
                assert!(0.0 < apart[0] && apart[0] < 0.01 && apart[1] < 0.1, "{what}");
            }
            let graphs = || GraphOptions::default();
            for (selective, full) in [(false, None), (true, None), (false, Some(1))] {
                assert!(of(fp8, selective, full, graphs()) == eight, "{name} {recipe} {selective} {full:?}");
            }
        }
    }
}

#[test]
fn blocks_at_both_ends_can_stay_in_16_bits() {
    let of = |bf16_blocks| {
        let fp8 = Fp8 { bf16_blocks, ..fp8(Fp8Recipe::Delayed) };
        let run = run(shape(Kind::Gpt, 0.0, Some(fp8)), Kind::Gpt, 1, GraphOptions::default());
        let stage = run.stage(&run.device());
        let eight = stage.params().iter().filter(|(_, param)| param.fp8.is_some());
        (eight.map(|(spec, _)| spec.name.clone()).collect::<Vec<String>>(), losses(&run.train().0))
    };
    let (names, _) = of([1, 1]);
    let of_block_1 = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"].map(|name| format!("h.1.{name}.weight"));
    assert_eq!(names, of_block_1);
    let (none, sixteen) = of([2, 1]);
    let plain = run(shape(Kind::Gpt, 0.0, None), Kind::Gpt, 1, GraphOptions::default());
    assert!(none.is_empty());
    assert_eq!(sixteen, losses(&plain.train().0));
}

#[test]
fn evaluation_leaves_the_scales_alone() {
    let train = |recipe, evaluates: bool| {
        let run = run(shape(Kind::Gpt, 0.0, Some(fp8(recipe))), Kind::Gpt, 2, GraphOptions::default());
        let device = run.device();
        let mut stage = run.stage(&device);
        let step = |step| {
            let settings = run.settings(step);
            assert!(!evaluates || run.evaluate(&mut stage, settings).loss.is_finite());
            run.step(&mut stage, settings)
        };
        (0..6).map(step).collect::<Vec<StepResult>>()
    };
    for recipe in RECIPES {
        assert_eq!(train(recipe, false), train(recipe, true), "{recipe}");
    }
}

#[test]
fn after_a_first_step_that_is_not_finite_training_goes_on_as_without_it() {
    for recipe in [Fp8Recipe::Delayed, Fp8Recipe::Rowwise] {
        let run = run(shape(Kind::Gpt, 0.0, Some(fp8(recipe))), Kind::Gpt, 2, GraphOptions::default());
        let device = run.device();
        // The losses of five steps, and the last gradient of a weight that follows many 8-bit products.
        let train = |is_spoiled: bool| {
            let mut stage = run.stage(&device);
            let index = |name: &str| stage.params().specs.iter().position(|spec| spec.name == name).unwrap();
            let (norm, weight) = (index("h.0.ln_1.weight"), index("h.0.mlp.c_fc.weight"));
            let set = |stage: &Stage, gain: f32| {
                let elements = stage.params().specs[norm].shape.elements();
                stage.params().set(&device, norm, &vec![gain; elements]).unwrap();
            };
            if is_spoiled {
                set(&stage, f32::NAN);
                assert!(!run.step(&mut stage, run.settings(0)).applied);
                set(&stage, 1.0);
            }
            let results: Vec<StepResult> = (1..6).map(|at| run.step(&mut stage, run.settings(at))).collect();
            assert!(results.iter().all(|result| result.applied), "{recipe}: {results:?}");
            let (_, param) = stage.params().iter().nth(weight).unwrap();
            (losses(&results), device.download::<f32>(&param.grad.unwrap()).unwrap())
        };
        let ((clean, expected), (spoiled, found)) = (train(false), train(true));
        for (a, b) in clean.iter().zip(&spoiled) {
            assert!((b / a - 1.0).abs() < 0.01, "{recipe}: {clean:?} and after a bad step {spoiled:?}");
        }
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let cosine = dot(&expected, &found) / (dot(&expected, &expected) * dot(&found, &found)).sqrt();
        assert!(cosine > 0.9, "{recipe}: the cosine of the gradients is {cosine}");
    }
}

#[test]
fn graphs_make_no_delayed_scale_because_the_first_step_has_made_it() {
    // Each of three blocks has four weights. Their scales are those of the tensor itself. So are all tensorwise scales:
    // two of each weight's input and output gradient.
    for (recipe, in_graphs) in [(Fp8Recipe::Delayed, 12), (Fp8Recipe::Rowwise, 0), (Fp8Recipe::Tensorwise, 36)] {
        let run = run(shape(Kind::Gpt, 0.0, Some(fp8(recipe))), Kind::Gpt, 1, GraphOptions::default());
        let (_, mut stage) = run.train_on(&run.device());
        let report = stage.graphs().report();
        let graphs = report.graphs.iter().filter(|graph| graph.mode == "Train");
        let nodes = graphs.flat_map(|graph| &graph.nodes).filter(|node| node.ends_with("/make_scale"));
        assert_eq!(nodes.count(), in_graphs, "{recipe}");
    }
}
