//! Faults that layouts have had elsewhere are planted in the numbers of ranks, and found by name, factor and axis.

use std::collections::HashMap;

use parallel::{Axis, Mesh};
use trainer::config::{ConfigSources, RunConfig};
use trainer::error::RunError;

use super::layouts::of_sizes;
use super::numbers::{Part, RankNumbers, Values, numbers};
use super::{Trial, Verdict, trials};

/// A tied model with biases, and one with experts.
const GPT: &str = "model.layers=2 train.global_batch_size=8";
const EXPERTS: &str = "model.preset=tiny-llama model.kv_heads=1 model.experts=4 model.experts_per_token=2 \
                       train.global_batch_size=8 parallel.sequence_parallel=true";

fn config(settings: &str, [tensor, pipeline]: [usize; 2]) -> RunConfig {
    let mut sources = ConfigSources::default();
    let layout = format!("{settings} parallel.tensor={tensor} parallel.pipeline={pipeline}");
    for pair in layout.split_whitespace() {
        let (key, value) = pair.split_once('=').unwrap();
        sources.set(key, value, "test").unwrap();
    }
    sources.resolve()
}

/// The gradients of a parameter, changed on all ranks of a layout.
type Plant = fn(Mesh, &mut [Gradient]);

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

fn is(part: &Part, name: &str) -> bool {
    part.values == Values::Gradient && part.name == name
}

/// Puts changed gradients of a parameter in the place of the others.
fn plant(mesh: Mesh, ranks: &mut [RankNumbers], name: &str, plant: Plant) {
    let of = |(rank, numbers): (usize, &RankNumbers)| {
        let parts = numbers[0].parts.iter().filter(|part| is(part, name));
        Gradient { rank, here: parts.flat_map(|part| part.here.clone()).collect() }
    };
    let mut gradients: Vec<Gradient> = ranks.iter().enumerate().map(of).collect();
    plant(mesh, &mut gradients);
    for (numbers, gradient) in ranks.iter_mut().zip(gradients) {
        let mut values = gradient.here.into_iter();
        let parts = numbers[0].parts.iter_mut().filter(|part| is(part, name));
        parts.for_each(|part| part.here.iter_mut().zip(&mut values).for_each(|(here, value)| *here = value));
    }
}

/// Every gradient is the sum over the ranks of an axis that have other parts of the parameter, or have it already.
fn sum_over(mesh: Mesh, axis: Axis, gradients: &mut [Gradient]) {
    let all: Vec<Vec<f32>> = gradients.iter().map(|gradient| gradient.here.clone()).collect();
    for gradient in gradients {
        let group = mesh.members_along(gradient.rank, axis);
        for (at, value) in gradient.here.iter_mut().enumerate() {
            *value = group.iter().filter_map(|&rank| all[rank].get(at)).sum();
        }
    }
}

/// Faults by model and layout: the parameter, what is wrong, and the words that name it.
#[test]
fn planted_faults_are_found_by_parameter_factor_and_axis() {
    type Fault = (&'static str, Plant, [&'static str; 2]);
    let norm = "h.1.ln_1.weight";
    let of_gpt: [Fault; 6] = [
        (
            norm,
            |mesh, all| all.iter_mut().for_each(|one| one.times(mesh.size(Axis::Tensor) as f32)),
            ["is 2 times", "over the 2 ranks of the tensor axis: it is counted once a rank"],
        ),
        (
            "h.0.mlp.c_fc.weight",
            |mesh, all| all.iter_mut().for_each(|one| one.times(mesh.size(Axis::Data) as f32)),
            ["is 2 times", "over the 2 ranks of the data axis: it is counted once a rank"],
        ),
        (
            "wte.weight",
            |mesh, all| all.iter_mut().for_each(|one| one.times(1.0 / mesh.size(Axis::Data) as f32)),
            ["is 1/2 of", "over the 2 ranks of the data axis: it is divided by their number"],
        ),
        (
            "wpe.weight",
            |mesh, all| all.iter_mut().for_each(|one| one.times(1.0 / mesh.size(Axis::Tensor) as f32)),
            ["is 1/2 of", "over the 2 ranks of the tensor axis: it is divided by their number"],
        ),
        (
            "h.0.attn.c_proj.weight",
            |mesh, all| sum_over(mesh, Axis::Tensor, all),
            ["by no constant factor", "over the 2 ranks of the tensor axis"],
        ),
        (
            "wte.weight",
            |mesh, all| {
                let halves = mesh.size(Axis::Pipeline) > 1;
                all.iter_mut().filter(|_| halves).for_each(|one| one.times(0.5));
            },
            ["is 1/2 of", "over the 2 ranks of the pipeline axis"],
        ),
    ];
    assert_found(GPT, [2, 2, 2], &of_gpt);
    let of_experts: [Fault; 2] = [
        (
            "h.0.mlp.router.weight",
            |mesh, all| all.iter_mut().for_each(|one| one.times(mesh.size(Axis::Tensor) as f32)),
            ["is 4 times", "over the 4 ranks of the tensor axis: it is counted once a rank"],
        ),
        (
            "h.0.attn.c_attn.weight",
            |mesh, all| sum_over(mesh, Axis::Tensor, all),
            ["by no constant factor", "over the 4 ranks of the tensor axis"],
        ),
    ];
    assert_found(EXPERTS, [4, 2, 1], &of_experts);
    let of_one_member: [Fault; 2] = [
        (
            norm,
            |mesh, all| {
                let doubles = mesh.size(Axis::Data) == 1 && mesh.ranks() > 1;
                all.iter_mut().filter(|_| doubles).for_each(|one| one.times(2.0));
            },
            ["is 2 times", "if the data axis has one rank, and not if it has two"],
        ),
        (
            "h.1.mlp.c_proj.bias",
            |mesh, all| {
                let wrong = mesh.size(Axis::Tensor) > 1 && mesh.size(Axis::Pipeline) > 1;
                all.iter_mut().filter(|one| wrong && one.rank == 3).for_each(|one| one.times(3.0));
            },
            ["on rank 3 is 3 times", "over no axis alone, but where axes meet"],
        ),
    ];
    assert_found(GPT, [2, 2, 1], &of_one_member);
}

/// Fails unless each fault is found, and nothing without one. `sizes` are those of tensor, pipeline and data.
fn assert_found(settings: &str, [tensor, pipeline, data]: [usize; 3], faults: &[(&str, Plant, [&str; 2])]) {
    let config = config(settings, [tensor, pipeline]);
    let [trial]: [Trial; 1] = trials(&config, tensor * pipeline * data).unwrap().try_into().ok().unwrap();
    let mut known: HashMap<String, Vec<RankNumbers>> = HashMap::new();
    let mut true_numbers = |config: &RunConfig, ranks: usize| -> Result<Vec<RankNumbers>, RunError> {
        let key = format!("{ranks} {:?}", config.parallel);
        if !known.contains_key(&key) {
            known.insert(key.clone(), numbers(config, ranks)?);
        }
        Ok(known[&key].clone())
    };
    assert!(matches!(trial.verdict_of(&mut true_numbers).unwrap(), Verdict::Same(_)), "{settings}");
    for (name, fault, words) in faults {
        let verdict = trial.verdict_of(&mut |config, ranks| {
            let mut all = true_numbers(config, ranks)?;
            let [tensor, pipeline] = [config.parallel.tensor, config.parallel.pipeline];
            plant(of_sizes([tensor, ranks / tensor / pipeline, pipeline]), &mut all, name, *fault);
            Ok(all)
        });
        let Verdict::Differs(text) = verdict.unwrap() else { panic!("{name}: not found") };
        let error = RunError::Layout(text.clone());
        assert!(
            error.exit_code() == 3 && error.to_string().contains(". Rule: every layout has the numbers of one rank.")
        );
        let named = format!("step 1: the gradient of {name} on rank");
        assert!(text.contains(&named) && words.iter().all(|words| text.contains(words)), "{words:?}: {text}");
    }
}
