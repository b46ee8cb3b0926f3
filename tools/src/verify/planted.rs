//! Faults that layouts have had elsewhere are planted in the numbers of ranks, and found by name, factor and axis.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::AddAssign;

use engine::precision::Precision;
use parallel::{Axis, Mesh, Ranks};
use trainer::config::plan::ranks::layout;
use trainer::config::{ConfigSources, RunConfig};
use trainer::error::RunError;

use super::numbers::{Connect, Numbers, RankNumbers, connected_numbers, numbers};
use super::values::{Shard, Values};
use super::{Trial, Verdict, trials};
use Plant::{Changed, Counted, Divided, Summed};

/// A tied model with biases, and one with experts.
const GPT: &str = "model.layers=2 train.global_batch_size=8";
const EXPERTS: &str = "model.preset=tiny-llama model.kv_heads=1 model.experts=4 model.experts_per_token=2 \
                       train.global_batch_size=8 parallel.sequence_parallel=true";

fn config(settings: &str, [tensor, pipeline]: [usize; 2]) -> RunConfig {
    let layout = format!("{settings} parallel.tensor={tensor} parallel.pipeline={pipeline}");
    let sources = ConfigSources::of_pairs(&layout).unwrap();
    sources.resolve()
}

/// A fault of a parameter's gradients.
#[derive(Clone, Copy)]
enum Plant {
    /// Counted once for each rank of an axis.
    Counted(Axis),
    /// Divided by the number of ranks of an axis.
    Divided(Axis),
    /// The sum over the ranks of an axis that have other shards of the parameter, or have the sum already.
    Summed(Axis),
    /// Changed so on all ranks of a layout, with the words that name the change.
    Changed(fn(Mesh, &mut [Gradient]), [&'static str; 2]),
}

impl Plant {
    /// The words that name the fault in a layout: its factor, and its axis. Rounded numbers have no factor of sums.
    fn words(self, mesh: Mesh, rounded: bool) -> [String; 2] {
        let over = |axis: Axis, so: &str| {
            format!("over the {} ranks of the {} axis{so}", mesh.size(axis), format!("{axis:?}").to_lowercase())
        };
        match self {
            Counted(axis) => [format!("is {} times", mesh.size(axis)), over(axis, ": it is counted once a rank")],
            Divided(axis) => [format!("is 1/{} of", mesh.size(axis)), over(axis, ": it is divided by their number")],
            Summed(axis) => [if rounded { "in " } else { "by no constant factor" }.into(), over(axis, "")],
            Changed(_, words) => words.map(str::to_string),
        }
    }
}

/// A rank's gradient of the parameter, and of another one, in the first step.
struct Gradient {
    rank: usize,
    here: Vec<f32>,
}

impl Gradient {
    fn times(&mut self, factor: f32) {
        self.here.iter_mut().for_each(|value| *value *= factor);
    }
}

fn is(shard: &Shard, name: &str) -> bool {
    shard.values == Values::Gradient && shard.name == name
}

/// Puts changed gradients of a parameter in the place of the others.
fn plant(mesh: Mesh, ranks: &mut [RankNumbers], name: &str, plant: Plant) {
    let of = |(rank, numbers): (usize, &RankNumbers)| {
        let shards = numbers.steps[0].shards.iter().filter(|shard| is(shard, name));
        Gradient { rank, here: shards.flat_map(|shard| shard.here.clone()).collect() }
    };
    let mut gradients: Vec<Gradient> = ranks.iter().enumerate().map(of).collect();
    match plant {
        Counted(axis) => gradients.iter_mut().for_each(|one| one.times(mesh.size(axis) as f32)),
        Divided(axis) => gradients.iter_mut().for_each(|one| one.times(1.0 / mesh.size(axis) as f32)),
        Summed(axis) => sum_over(mesh, axis, &mut gradients),
        Changed(change, _) => change(mesh, &mut gradients),
    }
    for (numbers, gradient) in ranks.iter_mut().zip(gradients) {
        let mut values = gradient.here.into_iter();
        let shards = numbers.steps[0].shards.iter_mut().filter(|shard| is(shard, name));
        shards.for_each(|shard| shard.here.iter_mut().zip(&mut values).for_each(|(here, value)| *here = value));
    }
}

fn sum_over(mesh: Mesh, axis: Axis, gradients: &mut [Gradient]) {
    let all: Vec<Vec<f32>> = gradients.iter().map(|gradient| gradient.here.clone()).collect();
    for gradient in gradients {
        let group = mesh.members_along(gradient.rank, axis);
        for (at, value) in gradient.here.iter_mut().enumerate() {
            *value = group.iter().filter_map(|&rank| all[rank].get(at)).sum();
        }
    }
}

/// A fault: the parameter, and what is wrong with it.
type Fault = (&'static str, Plant);

#[test]
fn planted_faults_are_found_by_parameter_factor_and_axis() {
    let norm = "h.1.ln_1.weight";
    let of_gpt: [Fault; 6] = [
        (norm, Counted(Axis::Tensor)),
        ("h.0.mlp.c_fc.weight", Counted(Axis::Data)),
        ("wte.weight", Divided(Axis::Data)),
        ("wpe.weight", Divided(Axis::Tensor)),
        ("h.0.attn.c_proj.weight", Summed(Axis::Tensor)),
        (
            "wte.weight",
            Changed(
                |mesh, all| {
                    let halves = mesh.size(Axis::Pipeline) > 1;
                    all.iter_mut().filter(|_| halves).for_each(|one| one.times(0.5));
                },
                ["is 1/2 of", "over the 2 ranks of the pipeline axis"],
            ),
        ),
    ];
    assert_found(GPT, [2, 2, 2], &of_gpt);
    let of_experts: [Fault; 2] =
        [("h.0.mlp.router.weight", Counted(Axis::Tensor)), ("h.0.attn.c_attn.weight", Summed(Axis::Tensor))];
    assert_found(EXPERTS, [4, 2, 1], &of_experts);
    let of_one_member: [Fault; 2] = [
        (
            norm,
            Changed(
                |mesh, all| {
                    let doubles = mesh.size(Axis::Data) == 1 && mesh.ranks() > 1;
                    all.iter_mut().filter(|_| doubles).for_each(|one| one.times(2.0));
                },
                ["is 2 times", "if the data axis has one rank, and not if it has two"],
            ),
        ),
        (
            "h.1.mlp.c_proj.bias",
            Changed(
                |mesh, all| {
                    let wrong = mesh.size(Axis::Tensor) > 1 && mesh.size(Axis::Pipeline) > 1;
                    all.iter_mut().filter(|one| wrong && one.rank == 3).for_each(|one| one.times(3.0));
                },
                ["on rank 3 is 3 times", "over no axis alone, but where axes meet"],
            ),
        ),
    ];
    assert_found(GPT, [2, 2, 1], &of_one_member);
}

/// Two ranks divide the experts. What a rank makes of its own experts' gradients cannot be seen on the others.
#[test]
fn planted_faults_of_divided_experts_are_found() {
    let up = "h.0.mlp.experts.c_fc.weight";
    let of_two: [Fault; 4] = [
        (up, Counted(Axis::Expert)),
        (up, Divided(Axis::Expert)),
        ("h.0.mlp.router.weight", Counted(Axis::Expert)),
        (up, Summed(Axis::Expert)),
    ];
    assert_found(&format!("{EXPERTS} parallel.expert=2"), [1, 1, 2], &of_two);
    // Whole experts, of which two ranks that share layers have two each.
    let of_whole: [Fault; 2] = [(up, Counted(Axis::Expert)), ("h.0.mlp.router.weight", Divided(Axis::Tensor))];
    assert_found(&format!("{EXPERTS} parallel.expert=2 parallel.expert_tensor=1"), [2, 1, 1], &of_whole);
    // A gradient that doubles with each layer of a group of one.
    let of_one: [Fault; 1] = [(
        up,
        Changed(
            |mesh, all| {
                let doubles = mesh.size(Axis::Expert) == 1 && mesh.ranks() > 1;
                all.iter_mut().filter(|_| doubles).for_each(|one| one.times(4.0));
            },
            ["is 4 times", "if the expert axis has one rank, and not if it has two"],
        ),
    )];
    assert_found(EXPERTS, [2, 2, 1], &of_one);
}

/// Muon overwrites gradients, so planted faults are told by Muon's momentum.
#[test]
fn planted_faults_are_found_with_muon() {
    let of_muon: [Fault; 2] =
        [("h.0.mlp.c_fc.weight", Counted(Axis::Data)), ("h.1.attn.c_proj.weight", Divided(Axis::Tensor))];
    assert_found(&format!("{GPT} optimizer.kind=muon"), [2, 1, 2], &of_muon);
}

const CONTEXT: &str = "model.layers=2 train.global_batch_size=8 parallel.context=2";

#[test]
fn planted_faults_are_found_over_the_ranks_that_divide_sequences() {
    let of_context: [Fault; 3] = [
        ("h.1.ln_1.weight", Counted(Axis::Context)),
        ("h.0.mlp.c_fc.weight", Divided(Axis::Context)),
        // The gradients of keys, the second third, are not summed.
        (
            "h.0.attn.c_attn.weight",
            Changed(
                |mesh, all| {
                    for one in all.iter_mut().filter(|_| mesh.size(Axis::Context) > 1) {
                        let third = one.here.len() / 3;
                        one.here[third..2 * third].iter_mut().for_each(|value| *value *= 0.5);
                    }
                },
                ["is 1/2 of", "over the 2 ranks of the context axis"],
            ),
        ),
    ];
    assert_found(CONTEXT, [1, 1, 2], &of_context);
    let planted = Planted::new(CONTEXT, [1, 1, 2]);
    let own_tokens = planted.verdict(&mut |_, mesh, numbers| {
        let steps = numbers.ranks.iter_mut().flat_map(|rank| &mut rank.steps);
        steps.for_each(|step| step.losses[0].1 *= mesh.size(Axis::Context) as f64);
    });
    let Verdict::Differs(text) = own_tokens else { panic!("a loss divided by a rank's own tokens: not found") };
    assert!(text.contains("loss") && text.contains("over the 2 ranks of the context axis"), "{text}");
}

#[test]
fn keys_at_the_positions_of_other_parts_are_found() {
    let reversed: Connect = |rank, connections| {
        Ranks::connect(connections, rank.rank(), &mut |name, mut group| {
            if name.ends_with("keys") {
                group.reverse();
            }
            Ok(Some(rank.split(name, &group)).filter(|_| group.len() > 1))
        })
    };
    // A ring passes keys round, and has them in any order.
    let gathered = format!("{CONTEXT} parallel.context_transfers=keys");
    let planted = Planted::new(&gathered, [1, 1, 1]);
    let verdict = planted.trial.verdict_of(&mut |config, ranks| connected_numbers(config, ranks, reversed)).unwrap();
    let Verdict::Differs(text) = verdict else { panic!("not found") };
    assert!(text.contains("step 1") && text.contains("over the 2 ranks of the context axis"), "{text}");
}

/// A factor shows through the rounding of the run's own format, where f32 has the right numbers.
#[test]
fn planted_faults_are_found_in_the_formats_that_round() {
    let of_formats: [Fault; 3] = [
        ("h.0.mlp.c_fc.weight", Counted(Axis::Tensor)),
        ("h.1.attn.c_attn.weight", Divided(Axis::Data)),
        ("wte.weight", Summed(Axis::Data)),
    ];
    assert_found(&format!("{GPT} precision.compute=bf16 parallel.grad_reduce=bf16"), [2, 1, 2], &of_formats);
    let of_8_bits = "model.preset=tiny-llama train.global_batch_size=8 model.ffn=192 precision.compute=bf16 \
                     precision.fp8=e4m3";
    assert_found(&format!("{of_8_bits} precision.fp8_recipe=delayed"), [2, 1, 2], &of_formats[..2]);
}

/// Fails unless each fault is found, and nothing without one. `sizes` are those of tensor, pipeline and data. With a
/// format that rounds, faults are in its numbers alone.
fn assert_found(settings: &str, [tensor, pipeline, data]: [usize; 3], faults: &[Fault]) {
    let planted = Planted::new(settings, [tensor, pipeline, data]);
    assert!(matches!(planted.verdict(&mut |_, _, _| {}), Verdict::Same(_)), "{settings}");
    let format = planted.trial.small.rounded.as_ref().map(|rounded| rounded.format.clone());
    for (name, fault) in faults {
        let words = fault.words(planted.trial.mesh, format.is_some());
        let verdict = planted.verdict(&mut |config, mesh, numbers| {
            if config.precision.compute != Precision::F32 || format.is_none() {
                plant(mesh, &mut numbers.ranks, name, *fault);
            }
        });
        let Verdict::Differs(text) = verdict else { panic!("{name}: not found") };
        let error = RunError::Layout(text.clone());
        assert!(
            error.exit_code() == 3 && error.to_string().contains(". Rule: every layout has the numbers of one rank.")
        );
        let format = format.iter().map(|format| format!("in {format}, ")).collect::<String>();
        let named = format!("{format}step 1: the gradient of {name} on rank");
        assert!(text.contains(&named) && words.iter().all(|words| text.contains(words.as_str())), "{words:?}: {text}");
    }
}

/// A small model with known numbers, so that faults can be planted.
struct Planted {
    trial: Trial,
    known: RefCell<HashMap<String, Numbers>>,
}

impl Planted {
    fn new(settings: &str, [tensor, pipeline, data]: [usize; 3]) -> Planted {
        let config = config(settings, [tensor, pipeline]);
        let [trial] =
            trials(&config, tensor * config.parallel.context * pipeline * data).unwrap().try_into().ok().unwrap();
        Planted { trial, known: RefCell::default() }
    }

    /// The verdict on numbers that `plant` has changed.
    fn verdict(&self, plant: &mut dyn FnMut(&RunConfig, Mesh, &mut Numbers)) -> Verdict {
        let verdict = self.trial.verdict_of(&mut |config, ranks| {
            let key = format!("{ranks} {config:?}");
            if !self.known.borrow().contains_key(&key) {
                self.known.borrow_mut().insert(key.clone(), numbers(config, ranks)?);
            }
            let mut all = self.known.borrow()[&key].clone();
            plant(config, layout::mesh(config, ranks).unwrap(), &mut all);
            Ok(all)
        });
        verdict.unwrap()
    }
}

#[test]
fn a_checkpoint_that_one_rank_loads_otherwise_is_found_by_its_tensor() {
    let planted = Planted::new(GPT, [2, 1, 2]);
    let verdict_with = |values: Values, name: &str, change: fn(&mut [f32])| {
        let verdict = planted.verdict(&mut |_, _, numbers| {
            let shards =
                numbers.loaded.iter_mut().flatten().filter(|shard| shard.values == values && shard.name == name);
            shards.for_each(|shard| change(&mut shard.here));
        });
        let Verdict::Differs(text) = verdict else { panic!("{name}: not found") };
        text
    };
    let halves = verdict_with(Values::State("exp_avg"), "h.0.mlp.c_fc.weight", |here| {
        let half = here.len() / 2;
        here.rotate_left(half);
    });
    let named =
        "a checkpoint: the optimizer state `exp_avg` of h.0.mlp.c_fc.weight on ranks 0, 1, 2, 3 differs from what";
    assert!(halves.contains(named), "{halves}");
    let last = verdict_with(Values::Weight, "wte.weight", |here| here.last_mut().unwrap().add_assign(1e-3));
    assert!(last.contains("a checkpoint: the weight of wte.weight on rank") && last.contains("; 2 of "), "{last}");
    let verdict = planted.verdict(&mut |_, _, numbers| numbers.loaded.iter_mut().for_each(Vec::clear));
    let Verdict::Differs(nothing) = verdict else { panic!("not found") };
    assert!(
        nothing.contains("a checkpoint: the optimizer state `exp_avg` of ")
            && nothing.contains(", which one rank does not load, on ranks 0, 1, 2, 3"),
        "{nothing}"
    );
}

#[test]
fn tokens_that_choose_other_experts_are_a_cause_of_their_own_unless_another_seed_shows_that_scores_were_near() {
    let planted = Planted::new(EXPERTS, [2, 1, 1]);
    let verdict_until = |seeds: u64| {
        planted.verdict(&mut |config, mesh, numbers| {
            if config.train.seed < seeds && mesh.ranks() > 1 {
                let [from, to, ..] = &mut numbers.ranks[1].steps[0].loads[0].tokens[..] else { unreachable!() };
                (*from, *to) = (*from - 3.0, *to + 3.0);
            }
        })
    };
    let first = planted.trial.small.config.train.seed;
    assert!(matches!(verdict_until(first + 2), Verdict::Same(_)));
    let Verdict::Differs(text) = verdict_until(first + 3) else { panic!("not found") };
    let found = "step 1: tokens chose other experts than on one rank: at least 3 of ";
    assert!(text.contains(found) && text.contains("by the load of experts on rank 1. It differs over"), "{text}");
}
