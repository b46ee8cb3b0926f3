//! Every layout trains as one rank does, whichever features meet in the layout: every pair of them meets in some case.
//! And every number format does, in layouts of two and three axes.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use trainer::config::{ConfigSources, ParallelConfig, RunConfig};

use super::layouts::sizes;
use super::{Trial, Verdict, trials};

/// What a case has one of, as settings: a feature is a group of lines. The first has the ranks that share the batch.
static FEATURES: LazyLock<Vec<Vec<String>>> =
    LazyLock::new(|| include_str!("features.txt").split("\n\n").map(joined).collect());

/// The lines of a text without comments. A line that begins with spaces continues the one before.
fn joined(text: &str) -> Vec<String> {
    let lines = text.replace("\n  ", " ");
    lines.lines().filter(|line| !line.starts_with('#')).map(str::to_string).collect()
}

/// A value of every feature, by the value's number.
type Case = Vec<usize>;

/// The pairs of values in a case: two features, each with its value.
fn pairs(case: &Case) -> Vec<[(usize, usize); 2]> {
    let with_later = |first: usize| (first + 1..case.len()).map(move |second| [first, second]);
    let places = (0..case.len()).flat_map(with_later);
    places.map(|places| places.map(|feature| (feature, case[feature]))).collect()
}

fn settings(case: &Case) -> Vec<&'static str> {
    case.iter().zip(&*FEATURES).map(|(value, values)| values[*value].as_str()).collect()
}

fn config(case: &Case) -> RunConfig {
    let mut sources = ConfigSources::default();
    let common = ["model.layers=4", "train.global_batch_size=48", "train.micro_batch_size=2", "precision.compute=f32"];
    for pair in settings(case)[1..].iter().chain(&common).flat_map(|settings| settings.split_whitespace()) {
        let (key, value) = pair.split_once('=').unwrap();
        sources.set(key, value, "test").unwrap();
    }
    sources.resolve()
}

/// The layout of a case. `None` if it has more than 16 ranks, or breaks a rule.
fn trial(case: &Case) -> Option<Trial> {
    let config = config(case);
    let ParallelConfig { tensor, context, pipeline, .. } = config.parallel;
    let ranks = tensor * context * pipeline * (case[0] + 1);
    let trials = (ranks <= 16).then(|| trials(&config, ranks).ok()).flatten();
    trials.and_then(|trials| trials.into_iter().next())
}

/// Cases in which all pairs meet, each with as many new ones as drawn ones have; and the pairs that never can.
fn cases() -> (Vec<Case>, Vec<String>) {
    const DRAWN: u64 = 48;
    const TRIED: usize = 24;
    let count = |feature: usize| FEATURES[feature].len();
    let all = |first: usize, second: usize| {
        (0..count(first)).flat_map(move |a| (0..count(second)).map(move |b| [(first, a), (second, b)]))
    };
    let features = 0..FEATURES.len();
    let places = features.clone().flat_map(|first| (first + 1..FEATURES.len()).map(move |second| (first, second)));
    let mut missing: BTreeSet<_> = places.flat_map(|(first, second)| all(first, second)).collect();
    let (mut cases, mut never): (Vec<Case>, Vec<String>) = (Vec::new(), Vec::new());
    while let Some(&pair) = missing.first() {
        let drawn = |number: u64| {
            let value = |feature: usize| {
                let stream = cases.len() as u64 * DRAWN + number;
                (device::random::uniform(stream, feature as u64) * count(feature) as f32) as usize
            };
            let mut case: Case = features.clone().map(value).collect();
            pair.iter().for_each(|&(feature, value)| case[feature] = value);
            case
        };
        let new = |case: &Case| pairs(case).iter().filter(|pair| missing.contains(*pair)).count();
        let mut drawn: Vec<Case> = (0..DRAWN).map(drawn).collect();
        drawn.sort_by_cached_key(|case| Reverse(new(case)));
        // The last have the first value of every other feature, with one or two ranks that share the batch.
        let simple = [0, 1].map(|data| {
            let mut case: Case = vec![0; FEATURES.len()];
            case[0] = data;
            pair.iter().for_each(|&(feature, value)| case[feature] = value);
            case
        });
        let others = drawn.split_off(TRIED);
        match drawn.into_iter().chain(simple).chain(others).find(|case| trial(case).is_some()) {
            Some(case) => {
                let met = pairs(&case);
                missing.retain(|pair| !met.contains(pair));
                cases.push(case);
            }
            None => {
                missing.remove(&pair);
                never.push(pair.map(|(feature, value)| FEATURES[feature][value].as_str()).join(" with "));
            }
        }
    }
    (cases, never)
}

/// Verifies a fourth of the cases.
fn assert_same(fourth: usize) {
    let (cases, _) = cases();
    for case in cases.iter().skip(fourth).step_by(4) {
        let verdict = trial(case).unwrap().verdict();
        match verdict.unwrap_or_else(|error| panic!("{:?}: {error}", settings(case))) {
            Verdict::Same(_) => {}
            Verdict::Differs(found) => panic!("{:?}: {found}", settings(case)),
        }
    }
}

#[test]
fn all_pairs_meet_but_those_that_a_rule_excludes() {
    let (cases, never) = cases();
    let axes = |case: &Case| trial(case).map(|trial| sizes(trial.mesh));
    let layouts: BTreeSet<_> = cases.iter().filter_map(axes).collect();
    for sizes in [[2, 1, 1, 2, 2], [1, 1, 1, 3, 2], [2, 1, 2, 3, 2], [4, 2, 1, 2, 1]] {
        assert!(layouts.contains(&sizes), "{sizes:?} is not in {layouts:?}");
    }
    let excluded = [
        ["parallel.pipeline_schedule=zero_bubble", "cuda_graph.overlap_microbatches=true"],
        ["model.expert_capacity_factor=0.75", "data.seq_length_buckets=[64,128]"],
        ["data.dpo=true", "train.z_loss_multiplier=0.01"],
        ["data.dpo=true", "model.mtp_layers=1"],
        ["parallel.context=", "model.attention_dropout=0.1"],
        ["parallel.pipeline_schedule=zero_bubble", "parallel.data_parallel_sharding="],
        ["cuda_graph.overlap_microbatches=true", "parallel.data_parallel_sharding="],
    ];
    let is = |pair: &String, words: &[&str; 2]| words.iter().all(|word| pair.contains(word));
    assert!(never.iter().all(|pair| excluded.iter().any(|words| is(pair, words))), "{} cases, {never:?}", cases.len());
    assert!(excluded.iter().all(|words| never.iter().any(|pair| is(pair, words))), "{} cases, {never:?}", cases.len());
}

#[test]
fn layouts_have_the_numbers_of_one_rank_1() {
    assert_same(0);
}

#[test]
fn layouts_have_the_numbers_of_one_rank_2() {
    assert_same(1);
}

#[test]
fn layouts_have_the_numbers_of_one_rank_3() {
    assert_same(2);
}

#[test]
fn layouts_have_the_numbers_of_one_rank_4() {
    assert_same(3);
}

/// Fails unless a layout has the numbers of one rank. Returns what was compared.
fn verified(ranks: usize, settings: &str) -> Vec<String> {
    let sources = ConfigSources::of_pairs(settings).unwrap();
    let [trial] = trials(&sources.resolve(), ranks).unwrap().try_into().ok().unwrap();
    match trial.verdict().unwrap() {
        Verdict::Same(lines) => lines,
        Verdict::Differs(found) => panic!("{settings}: {found}"),
    }
}

/// Verifies the rows of a section of `layouts.txt`. Returns each row, and what was compared.
fn verified_rows(section: &str) -> Vec<(String, Vec<String>)> {
    let lines = joined(include_str!("layouts.txt"));
    let head = format!("== {section}: ");
    let at = lines.iter().position(|line| line.starts_with(&head)).unwrap();
    let common = lines[at].strip_prefix(&head).unwrap();
    let rows = lines[at + 1..].iter().take_while(|row| !row.is_empty());
    let verify = |row: &String| {
        let (ranks, settings) = row.split_once(' ').unwrap();
        (row.clone(), verified(ranks.parse().unwrap(), &format!("{common} {settings}")))
    };
    rows.map(verify).collect()
}

#[test]
fn number_formats_have_the_numbers_of_one_rank() {
    for (row, lines) in verified_rows("number formats") {
        assert!(lines.len() == 4, "{row}: {lines:?}");
    }
}

#[test]
fn eight_ranks_divide_sequences_with_windows_and_documents() {
    verified_rows("windows");
}

#[test]
fn ranks_that_divide_experts_have_the_numbers_of_one_rank() {
    for (row, lines) in verified_rows("divided experts") {
        assert!(lines.len() == 2, "{row}: {lines:?}");
    }
}

#[test]
fn ranks_that_pass_keys_round_have_the_numbers_of_one() {
    verified_rows("ring");
}

#[test]
fn ranks_that_divide_samples_have_what_depends_on_all_of_their_tokens() {
    verified_rows("whole samples");
}

#[test]
fn ranks_that_exchange_heads_have_the_numbers_of_one() {
    verified_rows("heads");
}

/// Data-parallel ranks divide no state of such a stage, but each of its weights is saved once.
#[test]
fn a_stage_whose_parameters_are_all_frozen_is_saved_once() {
    let lines = verified(
        4,
        "model.preset=tiny-llama model.layers=4 model.tie_embeddings=false parallel.pipeline=2 \
         parallel.pipeline_layers=[2,2] parallel.distributed_optimizer=true precision.compute=f32 \
         train.global_batch_size=8 train.micro_batch_size=2 optimizer.freeze=[\"wte.weight\",\"h.0.*\",\"h.1.*\"]",
    );
    assert!(lines.iter().any(|line| line.starts_with("checkpoint")), "{lines:?}");
}
