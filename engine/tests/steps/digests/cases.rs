//! The cases of digests: layouts of ranks, and features that users switch on.

use device::DType;
use device::ops::CodeForm;
use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::{GraphModule, GraphOptions, GraphSelection, Scope};
use engine::model::{BalanceGroup, ContextTransfers, GptShape, SampleRow, is_adapter};
use engine::optimizer::{MomentTypes, SkipStep};
use engine::params::Sharding;
use engine::passes::PassName;
use engine::precision::Precision;
use graph_manager::Mempool;

use crate::experts::balance::tiny_balanced;
use crate::experts::capacity::tiny_limited;
use crate::experts::{tiny_experts, tiny_shared};
use crate::hooks::with_hooks;
use crate::lora::{with_adapters, with_blocks_of_codes};
use crate::models::{Kind, Layout, Run, SEQ, tiny_gemma3, tiny_gpt, tiny_llama, tiny_olmo2, tiny_qwen3};
use crate::optimizer::muon::muon_groups;

/// The features that a case switches on.
type Change = fn(Run) -> Run;

/// A run of several microbatches in a layout.
pub struct Case {
    pub name: String,
    pub layout: Layout,
    make: Change,
}

impl Case {
    /// The run that each rank has a part of.
    pub fn run(&self, setting: &str) -> Run {
        let run = Run { check: false, steps: 3, ..Run::new(Kind::Gpt, 4 / self.layout.data, options(setting)) };
        (self.make)(Run { shape: Some(gpt()), ..run })
    }

    /// The passes that have work in the case's steps. Without any of the others they are the same steps.
    pub fn passes(&self) -> Vec<PassName> {
        let (run, Layout { tensor, context, stages, expert, .. }) = (self.run(settings()[0]), self.layout);
        let has_work = |pass: &PassName| match pass {
            PassName::Present => run.layers_on_host > 0,
            PassName::HostState => run.state_on_host > 0.0,
            PassName::Overlap => run.overlaps,
            PassName::WeightGradients => true,
            PassName::TensorParallelTransfers => tensor > 1 || context > 1,
            PassName::ExpertRows => expert > 1,
            PassName::Buckets => self.layout.ranks() > 1,
            PassName::StageTransfers => stages > 1,
        };
        PassName::ALL.into_iter().filter(has_work).collect()
    }
}

/// Graphs off, and each scope with each pool.
pub fn settings() -> [&'static str; 6] {
    ["graphs off", "per layer", "per layer, one pool", "per chunk", "per chunk, one pool", "whole iteration"]
}

fn options(setting: &str) -> GraphOptions {
    let options = GraphOptions::default();
    match setting {
        "graphs off" => GraphOptions { enable: false, ..options },
        "per layer" => options,
        "per layer, one pool" => GraphOptions { mempool: Mempool::Single, ..options },
        "per chunk" => GraphOptions { scope: Scope::PerChunk, ..options },
        "per chunk, one pool" => GraphOptions { scope: Scope::PerChunk, mempool: Mempool::Single, ..options },
        "whole iteration" => GraphOptions { scope: Scope::FullIteration, ..options },
        _ => unreachable!("{setting} is no setting"),
    }
}

/// Four blocks for stages and chunks to divide, and heads that four ranks can share.
fn gpt() -> GptShape {
    GptShape { layers: 4, ..tiny_gpt(0.1, Precision::F32) }
}

fn of(run: Run, shape: GptShape) -> Run {
    Run { precision: shape.precision, shape: Some(shape), ..run }
}

/// The run with another form of its shape.
fn reshaped(run: Run, change: impl FnOnce(GptShape) -> GptShape) -> Run {
    let shape = run.shape.clone().unwrap_or_else(gpt);
    of(run, change(shape))
}

fn fp8(run: Run, recipe: Fp8Recipe) -> Run {
    let format = if recipe == Fp8Recipe::Blockwise { Fp8Format::E4m3 } else { Fp8Format::Hybrid };
    let fp8 = Some(Fp8 { recipe, format, amax_history: 4, ..Fp8::default() });
    of(run, GptShape { layers: 4, fp8, ..tiny_gpt(0.1, Precision::Bf16) })
}

fn divided(run: Run) -> Run {
    Run { distributed_optimizer: true, ..run }
}

fn overlapping(run: Run) -> Run {
    Run { overlaps: true, ..run }
}

/// Graphs of some modules, if regions have graphs of their own.
fn modules(run: Run) -> Run {
    let only = GraphSelection { modules: [GraphModule::ATTENTION, GraphModule::HEAD].into(), ..Default::default() };
    let only = if run.graphs.scope == Scope::PerLayer { only } else { GraphSelection::default() };
    Run { graphs: GraphOptions { only, ..run.graphs.clone() }, ..run }
}

/// Without dropout of probabilities: no rank has all of a sequence.
fn long(run: Run) -> Run {
    reshaped(run, |shape| GptShape { attention_dropout: 0.0, ..shape })
}

/// Every layout, with and without the features that users switch on.
pub fn cases() -> Vec<Case> {
    let one = Layout::new(1, 1, 1, 1);
    let (data, tensor, stages) = (Layout::new(1, 1, 1, 2), Layout::new(2, 1, 1, 1), Layout::new(1, 2, 1, 1));
    let zero_bubble = |layout: Layout| Layout { zero_bubble: true, ..layout };
    let without_sequence = |layout: Layout| Layout { sequence: false, ..layout };
    let context = |context: usize, layout: Layout| Layout { context, ..layout };
    let whole_experts = |expert: usize, layout: Layout| Layout { expert, expert_tensor: 1, ..layout };
    let cases: [(&str, Layout, Change); 73] = [
        ("one rank", one, |run| run),
        ("data 2", data, |run| run),
        ("data 2, distributed optimizer", data, divided),
        ("data 2, divided gradients", data, |run| Run { sharding: Sharding::Gradients, ..run }),
        ("stages 2, chunks 2, data 2, divided weights", Layout::new(1, 2, 2, 2), |run| Run {
            sharding: Sharding::Weights,
            microbatches: 4,
            ..run
        }),
        ("8 bits, delayed, tensor 2, data 2, divided weights", Layout::new(2, 1, 1, 2), |run| Run {
            sharding: Sharding::Weights,
            ..fp8(run, Fp8Recipe::Delayed)
        }),
        ("data 4, bf16 sums", Layout::new(1, 1, 1, 4), |run| Run { grad_reduce: DType::Bf16, ..run }),
        ("tensor 2, sequence", tensor, |run| run),
        ("tensor 2", without_sequence(tensor), |run| run),
        ("tensor 4", without_sequence(Layout::new(4, 1, 1, 1)), |run| run),
        ("stages 2", stages, |run| run),
        ("stages 4", Layout::new(1, 4, 1, 1), |run| run),
        ("stages 2, chunks 2", Layout::new(1, 2, 2, 1), |run| run),
        ("stages 2, zero bubble", zero_bubble(stages), |run| run),
        ("stages 2, rehearsed", stages, |run| Run { rehearses: true, ..run }),
        ("stages 2, watched", stages, |run| Run { watched: true, ..run }),
        ("tensor 2, data 2", Layout::new(2, 1, 1, 2), divided),
        ("stages 2, data 2", Layout::new(1, 2, 1, 2), divided),
        ("tensor 2, stages 2", Layout::new(2, 2, 1, 1), |run| run),
        ("tensor 2, stages 2, zero bubble, data 2", zero_bubble(Layout::new(2, 2, 1, 2)), divided),
        ("ring, recompute of two blocks", context(2, one), |run| Run {
            recompute: Some(2),
            context: ContextTransfers::Ring,
            ..long(run)
        }),
        ("overlap, context 2, tensor 2, sequence", context(2, tensor), |run| Run { overlaps: true, ..long(run) }),
        ("context 2, stages 2, zero bubble, distributed optimizer", context(2, zero_bubble(stages)), |run| {
            divided(long(run))
        }),
        ("experts, context 2", context(2, one), |run| long(of(run, tiny_experts(Precision::F32)))),
        ("MLP", one, |run| Run { kind: Kind::Mlp, shape: None, ..run }),
        ("MLP, data 2", data, |run| Run { kind: Kind::Mlp, shape: None, ..run }),
        ("Llama", one, |run| of(run, tiny_llama(0.1, Precision::Bf16))),
        ("Qwen3", one, |run| of(run, tiny_qwen3(0.1, Precision::Bf16))),
        ("OLMo 2", one, |run| of(run, tiny_olmo2(0.0, Precision::F32))),
        ("Gemma 3", one, |run| of(run, tiny_gemma3(0.0, Precision::F32))),
        ("overlap", one, |run| Run { overlaps: true, ..run }),
        ("overlap, tensor 2, sequence", tensor, |run| Run { overlaps: true, ..run }),
        ("overlap, stages 2", stages, |run| Run { overlaps: true, ..run }),
        ("fp8 tensorwise", one, |run| fp8(run, Fp8Recipe::Tensorwise)),
        ("fp8 delayed", one, |run| fp8(run, Fp8Recipe::Delayed)),
        ("fp8 rowwise", one, |run| fp8(run, Fp8Recipe::Rowwise)),
        ("fp8 blockwise", one, |run| fp8(run, Fp8Recipe::Blockwise)),
        ("fp8 delayed, tensor 2, sequence", tensor, |run| fp8(run, Fp8Recipe::Delayed)),
        ("fp8 delayed, data 2, distributed optimizer", data, |run| divided(fp8(run, Fp8Recipe::Delayed))),
        ("LoRA", one, |run| reshaped(run, |shape| with_adapters(shape, 0.1))),
        ("LoRA, tensor 2, sequence", tensor, |run| reshaped(run, |shape| with_adapters(shape, 0.1))),
        ("a base of codes, data 2, divided weights", data, |run| Run {
            sharding: Sharding::Weights,
            codes: Some(CodeForm::Nf4),
            frozen: |name| !is_adapter(name),
            ..of(run, with_blocks_of_codes(Precision::Bf16))
        }),
        ("frozen embeddings", one, |run| Run { frozen: |name| name.starts_with("wte"), ..run }),
        ("Muon", one, |run| Run { groups: Some(muon_groups()), ..run }),
        ("Muon, data 2, distributed optimizer", data, |run| divided(Run { groups: Some(muon_groups()), ..run })),
        ("experts", one, |run| of(run, tiny_experts(Precision::Bf16))),
        ("globally balanced experts, data 2", data, |run| of(run, tiny_balanced())),
        ("limited experts", one, |run| of(run, tiny_limited())),
        ("experts, tensor 2, sequence", tensor, |run| of(run, tiny_experts(Precision::F32))),
        ("experts, stages 2, zero bubble, data 2", zero_bubble(Layout::new(1, 2, 1, 2)), |run| {
            divided(of(run, tiny_experts(Precision::F32)))
        }),
        ("divided experts and a shared one, data 2, distributed optimizer", Layout { expert: 2, ..data }, |run| {
            divided(of(run, tiny_shared(0.0, BalanceGroup::Sequence)))
        }),
        ("divided experts, overlap, stages 2, data 2", Layout { expert: 2, ..Layout::new(1, 2, 1, 2) }, |run| {
            overlapping(of(run, tiny_experts(Precision::F32)))
        }),
        ("whole experts, tensor 2, sequence", whole_experts(2, tensor), |run| of(run, tiny_experts(Precision::Bf16))),
        ("experts, recompute of two blocks", one, |run| Run {
            recompute: Some(2),
            ..of(run, tiny_experts(Precision::Bf16))
        }),
        ("packing", one, |run| Run { row: Some(SampleRow::packed(SEQ, SEQ)), ..run }),
        ("hooks", one, with_hooks),
        ("graphs of some modules", one, modules),
        ("selective recompute", one, |run| reshaped(run, |shape| GptShape { recompute: true, ..shape })),
        ("recompute of all but attention", stages, |run| Run { recompute: Some(1), keeps_attention: true, ..run }),
        ("fp8 delayed, recompute of two blocks", one, |run| Run { recompute: Some(2), ..fp8(run, Fp8Recipe::Delayed) }),
        ("LoRA, recompute of two blocks", one, |run| Run {
            recompute: Some(2),
            ..reshaped(run, |shape| with_adapters(shape, 0.1))
        }),
        ("graphs of some modules, data 2", data, modules),
        ("hooks, tensor 2, data 2", Layout::new(2, 1, 1, 2), with_hooks),
        ("overlap, data 2, distributed optimizer", data, |run| divided(Run { overlaps: true, ..run })),
        ("overlap, stages 2, chunks 2", Layout::new(1, 2, 2, 1), overlapping),
        ("stages 2, chunks 2, data 2, distributed optimizer", Layout::new(1, 2, 2, 2), |run| {
            divided(Run { microbatches: 4, ..run })
        }),
        ("recompute of two blocks, tensor 2, sequence", tensor, |run| Run { recompute: Some(2), ..run }),
        ("frozen embeddings, tensor 2, sequence", tensor, |run| Run { frozen: |name| name.starts_with("wte"), ..run }),
        ("fp8 rowwise, tensor 2, sequence", tensor, |run| fp8(run, Fp8Recipe::Rowwise)),
        ("fp8 delayed, stages 2, zero bubble", zero_bubble(stages), |run| fp8(run, Fp8Recipe::Delayed)),
        ("LoRA, tensor 2, stages 2, zero bubble", zero_bubble(Layout::new(2, 2, 1, 1)), |run| {
            reshaped(run, |shape| with_adapters(shape, 0.1))
        }),
        ("moments in bf16", one, |run| {
            let moments = MomentTypes { exp_avg: DType::Bf16, exp_avg_sq: DType::Bf16 };
            Run { moments, ..run }
        }),
        ("spikes are skipped, losses are kept", one, |run| {
            let skip_step = Some(SkipStep { sigma_factor: 6.0, interval: 8 });
            Run { skip_step, keeps_losses: true, ..run }
        }),
    ];
    cases.map(|(name, layout, make)| Case { name: name.into(), layout, make }).into()
}
