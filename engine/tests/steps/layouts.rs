//! Every layout of up to eight ranks trains as one rank does, whichever options meet in it.
//!
//! A layout is how many ranks share a layer, how many stages a pipeline has, of how many chunks, whether they split their
//! backwards, and how many ranks share the batch. Here each layout is run once, and options are dealt out so that every
//! pair of them meets somewhere. The ignored test runs every layout with every combination, and prints how far its numbers
//! are from one rank's.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::step::StepResult;
use graph_manager::Mempool;

use crate::models::{Kind, Layout, Run, tiny_gpt, tiny_llama};

const STEPS: usize = 10;
const RANKS: usize = 8;
const CLIP: f32 = 0.5;
/// So small that ten steps do not stretch the rounding of the first: if the first weights of one rank differ in their
/// last bit, its tenth loss can differ by 1e-4 at a rate of 1e-2, and a mistake of that size would hide.
const LEARNING_RATE: f32 = 1e-3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Recompute {
    None,
    Selective,
    /// Blocks in pairs.
    Full,
}

/// The work that one rank must do to get the same numbers. Recompute and graphs are not part of it: they change no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Model {
    llama: bool,
    tied: bool,
    clipped: bool,
    layers: usize,
    /// Of a step, on all ranks together.
    microbatches: usize,
}

impl Model {
    /// With dropout: a mask that depends on the layout would show.
    fn shape(&self, recompute: Recompute) -> GptShape {
        let (layers, tied, recompute) = (self.layers, self.tied, recompute == Recompute::Selective);
        if self.llama {
            GptShape { layers, tied, recompute, heads: 8, kv_heads: 4, ..tiny_llama(0.1, Precision::F32) }
        } else {
            GptShape { layers, tied, recompute, ..tiny_gpt(0.1, Precision::F32) }
        }
    }

    /// A rank of `data` that share the batch. The checker looks at every operation.
    fn run(&self, recompute: Recompute, graphs: GraphOptions, data: usize) -> Run {
        let kind = if self.llama { Kind::Llama } else { Kind::Gpt };
        Run {
            shape: Some(self.shape(recompute)),
            recompute: (recompute == Recompute::Full).then_some(2),
            steps: STEPS,
            clip: if self.clipped { CLIP } else { 0.0 },
            learning_rate: LEARNING_RATE,
            check: true,
            ..Run::new(kind, self.microbatches / data, graphs)
        }
    }

    fn alone(&self) -> Vec<StepResult> {
        let off = GraphOptions { enable: false, ..GraphOptions::default() };
        self.run(Recompute::None, off, 1).train().0
    }
}

/// A layout and the options it is run with.
#[derive(Clone, Copy, Debug)]
struct Case {
    layout: Layout,
    model: Model,
    divided: bool,
    recompute: Recompute,
    scope: Option<Scope>,
    mempool: Mempool,
}

impl Case {
    fn graphs(&self) -> GraphOptions {
        let (enable, scope) = (self.scope.is_some(), self.scope.unwrap_or(Scope::PerLayer));
        GraphOptions { enable, scope, mempool: self.mempool, poison: true, ..GraphOptions::default() }
    }

    /// The numbers of all steps. All ranks must agree on them.
    fn train(&self) -> Vec<StepResult> {
        let Case { layout, model, divided, recompute, .. } = *self;
        let run = || Run { distributed_optimizer: divided, ..model.run(recompute, self.graphs(), layout.data) };
        let mut ranks = layout.on_ranks(run, |run| run.train().0);
        assert!(ranks.iter().all(|results| *results == ranks[0]), "{self:?}: ranks disagree on the numbers");
        ranks.swap_remove(0)
    }

    /// Stages divide two sums only: the norm, which enters weights by clipping, and a tied table's gradient. The norm
    /// has a part from each stage. The gradient has one term from the first stage and one from the last.
    fn has_the_bits_of_one_rank(&self) -> bool {
        let Layout { tensor, stages, data, .. } = self.layout;
        tensor * data == 1 && (stages == 1 || !self.model.tied && !self.model.clipped)
    }

    /// How far every loss and gradient norm may be from one rank's, relative to it. f32 sums in another order differ by
    /// about 1e-7, and a norm is of differences of numbers alike, so it is less exact than a loss.
    fn allowed(&self) -> Difference {
        match (self.has_the_bits_of_one_rank(), self.layout.stages) {
            (true, 1) => Difference { loss: 0.0, norm: 0.0 },
            (true, _) => Difference { loss: 0.0, norm: 1e-6 },
            (false, _) => Difference { loss: 1e-6, norm: 5e-6 },
        }
    }

    /// The value of every option, and those of the layout. An option without a meaning in this case has no value.
    fn values(&self) -> Vec<&'static str> {
        let Layout { tensor, stages, chunks, data, sequence, zero_bubble, .. } = self.layout;
        let either = |yes: bool, word: &'static str, other: &'static str| if yes { word } else { other };
        let mut values = vec![
            either(tensor > 1, "tensor", "tensor alone"),
            match (stages, chunks) {
                (1, _) => "one stage",
                (_, 1) if zero_bubble => "zero bubble",
                (_, 1) => "1f1b",
                _ => "interleaved",
            },
            either(data > 1, "data", "data alone"),
            either(self.model.llama, "llama", "gpt"),
            either(self.model.tied, "tied", "untied"),
            either(self.model.clipped, "clipped", "not clipped"),
            match self.recompute {
                Recompute::None => "kept",
                Recompute::Selective => "selective",
                Recompute::Full => "full",
            },
            match self.scope {
                None => "graphs off",
                Some(Scope::PerLayer) => "per layer",
                Some(Scope::PerChunk) => "per chunk",
                Some(Scope::FullIteration) => "full iteration",
            },
            either(self.mempool == Mempool::Single, "single", "per microbatch"),
        ];
        values.extend((tensor > 1).then(|| either(sequence, "sequence", "no sequence")));
        values.extend((data > 1).then(|| either(self.divided, "divided", "replicated")));
        values
    }

    fn pairs(&self) -> Vec<(&'static str, &'static str)> {
        let values = self.values();
        let with_later = |(at, first): (usize, &&'static str)| {
            let first = *first;
            values[at + 1..].iter().map(move |second| (first, *second)).collect::<Vec<_>>()
        };
        values.iter().enumerate().flat_map(with_later).collect()
    }
}

/// Relative to one rank's.
#[derive(Clone, Copy, Debug, Default)]
struct Difference {
    loss: f64,
    norm: f64,
}

impl Difference {
    fn of(ours: &StepResult, theirs: &StepResult) -> Difference {
        let relative = |a: f64, b: f64| if a == b { 0.0 } else { (a / b - 1.0).abs() };
        Difference {
            loss: relative(ours.loss, theirs.loss),
            norm: relative(f64::from(ours.grad_norm), f64::from(theirs.grad_norm)),
        }
    }

    fn within(&self, allowed: &Difference) -> bool {
        // False for values that are not a number, too.
        self.loss <= allowed.loss && self.norm <= allowed.norm
    }

    fn larger(&self, other: &Difference) -> Difference {
        Difference { loss: self.loss.max(other.loss), norm: self.norm.max(other.norm) }
    }
}

/// Every layout of up to eight ranks that divides four heads and as many blocks as there are parts, in every schedule.
fn layouts() -> Vec<Layout> {
    let mut all = Vec::new();
    for tensor in [1, 2, 4] {
        for stages in [1, 2, 4, 8] {
            for chunks in [1, 2] {
                let most = if chunks > 1 && stages == 1 { 0 } else { RANKS / (tensor * stages) };
                let of_data = |data| Layout::new(tensor, stages, chunks, data);
                all.extend((1..=most).map(of_data));
                let split = if stages > 1 && chunks == 1 { most } else { 0 };
                all.extend((1..=split).map(|data| Layout { zero_bubble: true, ..of_data(data) }));
            }
        }
    }
    all
}

/// A layout with every combination of the options that mean something in it.
fn combinations(layout: Layout) -> Vec<Case> {
    let with_both = |cases: Vec<Case>, set: fn(Case, bool) -> Case| -> Vec<Case> {
        cases.into_iter().flat_map(|case| [set(case, false), set(case, true)]).collect()
    };
    let layers = layout.parts().max(4);
    // Eight microbatches, or the next fewer that the ranks divide.
    let microbatches = RANKS / layout.data * layout.data;
    let model = Model { llama: false, tied: false, clipped: false, layers, microbatches };
    let mut cases = Vec::new();
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        for scope in [None].into_iter().chain(Scope::ALL.map(Some)) {
            for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
                cases.push(Case { layout, model, divided: false, recompute, scope, mempool });
            }
        }
    }
    cases = with_both(cases, |case, llama| Case { model: Model { llama, ..case.model }, ..case });
    cases = with_both(cases, |case, tied| Case { model: Model { tied, ..case.model }, ..case });
    cases = with_both(cases, |case, clipped| Case { model: Model { clipped, ..case.model }, ..case });
    if layout.tensor > 1 {
        cases = with_both(cases, |case, sequence| Case { layout: Layout { sequence, ..case.layout }, ..case });
    }
    if layout.data > 1 {
        cases = with_both(cases, |case, divided| Case { divided, ..case });
    }
    cases
}

/// Each layout once, with the combination that has the most new pairs; of equal ones, that with the pairs seen least.
fn one_of_each_layout() -> Vec<Case> {
    let mut seen: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut chosen = Vec::new();
    for layout in layouts() {
        let times = |case: &Case| -> Vec<usize> {
            case.pairs().iter().map(|pair| seen.get(pair).copied().unwrap_or(0)).collect()
        };
        let worth = |case: &Case| {
            let times = times(case);
            (times.iter().filter(|times| **times == 0).count(), Reverse(times.iter().sum::<usize>()))
        };
        let best = combinations(layout).into_iter().max_by_key(worth).unwrap();
        best.pairs().into_iter().for_each(|pair| *seen.entry(pair).or_default() += 1);
        chosen.push(best);
    }
    chosen
}

/// Does `work` for each item, on as many threads as there are cores. Returns the results in order.
fn on_all_cores<I: Sync, T: Send>(items: &[I], work: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(item) = items.get(at)
                {
                    let result = work(item);
                    done.lock().unwrap().insert(at, result);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}

/// The largest difference of each case, and the faults of those with a step that differs by more than it may.
fn compare(cases: &[Case]) -> (Vec<Difference>, Vec<String>) {
    let models: Vec<Model> = cases.iter().map(|case| case.model).collect::<BTreeSet<_>>().into_iter().collect();
    let alone: BTreeMap<Model, Vec<StepResult>> =
        models.iter().copied().zip(on_all_cores(&models, Model::alone)).collect();
    let compared = on_all_cores(cases, |case| {
        let (ours, theirs) = (case.train(), &alone[&case.model]);
        assert_eq!((ours.len(), theirs.len()), (STEPS, STEPS));
        assert!(!case.model.clipped || theirs.iter().any(|step| step.grad_norm > CLIP), "nothing is clipped");
        let differences: Vec<Difference> = ours.iter().zip(theirs).map(|(a, b)| Difference::of(a, b)).collect();
        let fault = differences.iter().position(|found| !found.within(&case.allowed())).map(|step| {
            let (a, b) = (&ours[step], &theirs[step]);
            format!("{case:?}\n  step {step}: {a:?}, alone {b:?}; allowed {:?}", case.allowed())
        });
        (differences.iter().fold(Difference::default(), |largest, other| largest.larger(other)), fault)
    });
    let (differences, faults): (Vec<_>, Vec<_>) = compared.into_iter().unzip();
    (differences, faults.into_iter().flatten().collect())
}

fn assert_trains_as_one_rank(cases: Vec<Case>) {
    let (_, faults) = compare(&cases);
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), cases.len(), faults.join("\n"));
}

#[test]
fn every_pair_of_options_that_can_meet_meets_in_some_layout() {
    let met: BTreeSet<_> = one_of_each_layout().iter().flat_map(Case::pairs).collect();
    let all: BTreeSet<_> = layouts().into_iter().flat_map(combinations).flat_map(|case| case.pairs()).collect();
    assert!(all.contains(&("sequence", "divided")) && all.contains(&("interleaved", "full")), "{all:?}");
    assert_eq!(all.difference(&met).collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
}

#[test]
fn every_layout_of_one_stage_has_the_losses_and_norms_of_one_rank() {
    assert_trains_as_one_rank(one_of_each_layout().into_iter().filter(|case| case.layout.stages == 1).collect());
}

#[test]
fn every_layout_of_several_stages_has_the_losses_and_norms_of_one_rank() {
    assert_trains_as_one_rank(one_of_each_layout().into_iter().filter(|case| case.layout.stages > 1).collect());
}

/// Prints a table by layout. `LAYOUTS_EVERY=n` takes one in `n` combinations, drawn the same way each time.
#[test]
#[ignore = "many minutes: bench/results has a run of it"]
fn every_layout_with_every_combination_of_options_has_the_losses_and_norms_of_one_rank() {
    let every = std::env::var("LAYOUTS_EVERY").map_or(1, |every| every.parse::<u64>().unwrap());
    let mut all_faults = Vec::new();
    println!("| tensor | stages | chunks | zero bubble | data | cases | of one rank's bits | faults | loss | norm |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (number, layout) in layouts().into_iter().enumerate() {
        let drawn = |at: u64| crate::models::noise(number as u64, at).is_multiple_of(every);
        let all = combinations(layout).into_iter().zip(0..);
        let cases: Vec<Case> = all.filter(|(_, at)| drawn(*at)).map(|(case, _)| case).collect();
        let (differences, faults) = compare(&cases);
        let same = cases.iter().filter(|case| case.has_the_bits_of_one_rank()).count();
        let largest = differences.iter().fold(Difference::default(), |largest, other| largest.larger(other));
        let Layout { tensor, stages, chunks, zero_bubble, data, .. } = layout;
        println!(
            "| {tensor} | {stages} | {chunks} | {zero_bubble} | {data} | {} | {same} | {} | {:.1e} | {:.1e} |",
            cases.len(),
            faults.len(),
            largest.loss,
            largest.norm
        );
        all_faults.extend(faults);
    }
    assert!(all_faults.is_empty(), "{} cases:\n{}", all_faults.len(), all_faults.join("\n"));
}
