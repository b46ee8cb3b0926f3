//! Small models and runs shared by the tests.
#![allow(dead_code)]

mod batches;
mod layout;

use std::rc::Rc;

use device::cuda::CudaOptions;
use device::ops::{CodeForm, NormKind, Rule};
use device::{DType, Device, HostOptions, HostValues, Progress};
use engine::graph_options::GraphOptions;
use engine::hooks::Hooks;
use engine::layer_partition::{Recompute, StageLayers};
use engine::model::{
    Architecture, ContextTransfers, FeedForward, GptShape, MlpShape, NormPlacement, Position, QkNorm, SampleRow,
    Scaling, TensorParallel, Windows, gpt_part, mlp,
};
use engine::optimizer::{MomentTypes, ParamGroup, SkipStep};
use engine::params::{MasterForm, Sharding};
use engine::passes::PassName;
use engine::precision::Precision;
use engine::step::{Stage, StageOptions, StepResult, StepSettings};
use parallel::{Axis, PipelineStage, Place, Ranks};

#[allow(unused_imports)]
pub use batches::{batch, documents, labelled, noise, packed, with_pairs};
#[allow(unused_imports)]
pub use layout::Layout;

pub const VOCAB: usize = 97;
/// With two samples a microbatch has 16 tokens: 8-bit products need them.
pub const SEQ: usize = 8;
pub const MICRO_BATCH: usize = 2;

/// Without graphs.
pub fn off() -> GraphOptions {
    GraphOptions { enable: false, ..GraphOptions::default() }
}

/// The model that a run trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gpt,
    Llama,
    Mlp,
}

pub fn tiny_gpt(dropout: f32, precision: Precision) -> GptShape {
    GptShape {
        layers: 2,
        hidden: 32,
        heads: 4,
        kv_heads: 4,
        ffn: 64,
        vocab: VOCAB,
        padded_vocab: 128,
        max_seq_len: SEQ,
        hidden_dropout: dropout.into(),
        attention_dropout: dropout.into(),
        seed: 7,
        precision,
        position: Position::Learned { positions: SEQ },
        ..GptShape::default()
    }
}

pub fn tiny_llama(dropout: f32, precision: Precision) -> GptShape {
    GptShape {
        kv_heads: 2,
        ffn: 48,
        tied: false,
        norm: NormKind::Rms,
        feed_forward: FeedForward::SwiGlu,
        position: Position::Rotary { base: 500_000.0, scaling: None, window_base: None },
        bias: false,
        scaled_residual_init: false,
        ..tiny_gpt(dropout, precision)
    }
}

/// Heads that together are wider than the residual stream, and windows shorter than a sequence.
pub fn tiny_mistral(dropout: f32, precision: Precision) -> GptShape {
    let windows = Some(Windows { tokens: 5, pattern: Vec::new() });
    GptShape { head_dim: Some(12), windows, ..tiny_llama(dropout, precision) }
}

/// One key and value head.
pub fn tiny_qwen2(dropout: f32, precision: Precision) -> GptShape {
    GptShape { kv_heads: 1, qkv_bias: true, ..tiny_llama(dropout, precision) }
}

/// Heads that together are wider than the residual stream, and a window in the second block.
pub fn tiny_qwen3(dropout: f32, precision: Precision) -> GptShape {
    let windows = Some(Windows { tokens: 3, pattern: vec![false, true] });
    GptShape {
        windows,
        head_dim: Some(12),
        qk_norm: Some(QkNorm::EachHead),
        norm_eps: 1e-6,
        ..tiny_llama(dropout, precision)
    }
}

/// Norms after the parts of blocks and over all heads, and heads that together are wider than the residual stream.
pub fn tiny_olmo2(dropout: f32, precision: Precision) -> GptShape {
    let (norm_placement, qk_norm) = (NormPlacement::Post, Some(QkNorm::AllHeads));
    GptShape { head_dim: Some(12), norm_placement, qk_norm, norm_eps: 1e-6, ..tiny_llama(dropout, precision) }
}

/// Soft caps that bend, a scale of scores of its own, one key and value head, and heads that together are wider than the residual
/// stream.
pub fn tiny_gemma2(dropout: f32, precision: Precision) -> GptShape {
    GptShape {
        hidden: 40,
        kv_heads: 1,
        head_dim: Some(12),
        tied: true,
        scaled_embedding: true,
        query_pre_attn_scalar: Some(7.0),
        attention_soft_cap: Some(1.5),
        logit_soft_cap: Some(2.0),
        windows: Some(Windows { tokens: 3, pattern: vec![true, false] }),
        norm: NormKind::Rms1p,
        norm_placement: NormPlacement::Sandwich,
        norm_eps: 1e-6,
        feed_forward: FeedForward::GeGlu,
        position: Position::Rotary { base: 10_000.0, scaling: None, window_base: None },
        ..tiny_llama(dropout, precision)
    }
}

/// Two blocks with a window and one without, each kind with its own frequencies, and norms of heads.
pub fn tiny_gemma3(dropout: f32, precision: Precision) -> GptShape {
    let scaling = Some(Scaling::Linear { factor: 8.0 });
    GptShape {
        layers: 3,
        head_dim: Some(6),
        attention_soft_cap: None,
        logit_soft_cap: None,
        windows: Some(Windows { tokens: 3, pattern: vec![true, true, false] }),
        qk_norm: Some(QkNorm::EachHead),
        position: Position::Rotary { base: 1000.0, scaling, window_base: Some(100.0) },
        ..tiny_gemma2(dropout, precision)
    }
}

/// Rows of inputs and targets are wide enough to be read in place.
pub const MLP_SIZES: [usize; 4] = [64, 32, 17, 64];

pub fn tiny_mlp(dropout: f32, precision: Precision, ranks: &Rc<Ranks>) -> Architecture {
    let shape = MlpShape { sizes: MLP_SIZES.to_vec(), dropouts: vec![dropout, dropout / 2.0], seed: 7, precision };
    mlp(shape, ranks.clone())
}

/// A training run on the host device.
pub struct Run {
    pub kind: Kind,
    /// Another transformer than the kind's own.
    pub shape: Option<GptShape>,
    /// The columns of a sample's inputs and targets, if not those of the kind. Samples of packed documents are
    /// [`packed`].
    pub row: Option<SampleRow>,
    /// Shorter lengths of samples.
    pub shorter: Vec<usize>,
    pub dropout: f32,
    pub precision: Precision,
    pub microbatches: usize,
    pub micro_batch_size: usize,
    pub steps: usize,
    pub threads: usize,
    pub check: bool,
    pub shuffle: Option<u64>,
    pub graphs: GraphOptions,
    pub ranks: Rc<Ranks>,
    /// Ranks that share layers also share the rows between them.
    pub sequence: bool,
    /// What ranks that divide sequences exchange.
    pub context: ContextTransfers,
    pub distributed_optimizer: bool,
    /// What ranks with other tokens divide, if not only what `distributed_optimizer` says.
    pub sharding: Sharding,
    /// The type of sums of gradients over data-parallel ranks.
    pub grad_reduce: DType,
    /// This rank's stage of a pipeline, and the blocks of each part of the model.
    pub stage: PipelineStage,
    pub blocks: Vec<usize>,
    /// Forwards run next to backwards of other microbatches.
    pub overlaps: bool,
    /// Go through the step before the first one, as stages on GPUs do.
    pub rehearses: bool,
    /// Work leaves marks, as it does if ranks watch each other.
    pub watched: bool,
    /// Blocks that backward computes again together.
    pub recompute: Option<usize>,
    /// Such blocks keep the outputs of attention.
    pub keeps_attention: bool,
    /// Of each virtual stage; `None`: all.
    pub recomputed_blocks: Option<usize>,
    /// Layers of each chunk whose saved tensors lie on the host.
    pub layers_on_host: usize,
    /// The memory of masters and moments.
    pub state_on_host: f64,
    pub master_form: MasterForm,
    pub block_gradients: DType,
    /// Largest gradient norm; 0 = no clipping.
    pub clip: f32,
    pub learning_rate: f32,
    /// Other parameter groups than the kind's own.
    pub groups: Option<Vec<ParamGroup>>,
    /// Steps that are spikes make no update.
    pub skip_step: Option<SkipStep>,
    /// Types of moments.
    pub moments: MomentTypes,
    /// Whether a parameter keeps its values, by name.
    pub frozen: fn(&str) -> bool,
    /// Frozen weights of blocks lie as codes of this form.
    pub codes: Option<CodeForm>,
    /// Code that runs in forward.
    pub hooks: Hooks,
    /// Evaluations keep the loss of each token.
    pub keeps_losses: bool,
    /// Passes that the step does without.
    pub left_out: Vec<PassName>,
}

/// Whether runs are on a GPU: `TEST_DEVICE=cuda`.
pub fn on_gpu() -> bool {
    std::env::var("TEST_DEVICE").is_ok_and(|device| device == "cuda")
}

impl Run {
    pub fn new(kind: Kind, microbatches: usize, graphs: GraphOptions) -> Run {
        let dropout = 0.1;
        Run {
            kind,
            shape: None,
            row: None,
            shorter: Vec::new(),
            dropout,
            precision: Precision::F32,
            microbatches,
            micro_batch_size: MICRO_BATCH,
            steps: 6,
            threads: 1,
            check: true,
            shuffle: None,
            graphs,
            ranks: Ranks::alone(),
            sequence: false,
            context: ContextTransfers::Keys,
            distributed_optimizer: false,
            sharding: Sharding::Nothing,
            grad_reduce: DType::F32,
            stage: PipelineStage::single(),
            blocks: Vec::new(),
            overlaps: false,
            rehearses: false,
            watched: false,
            recompute: None,
            keeps_attention: false,
            recomputed_blocks: None,
            layers_on_host: 0,
            state_on_host: 0.0,
            master_form: MasterForm::Whole,
            block_gradients: DType::F32,
            clip: 1.0,
            learning_rate: 1e-2,
            groups: None,
            skip_step: None,
            moments: MomentTypes::default(),
            frozen: |_| false,
            codes: None,
            hooks: Hooks::default(),
            keeps_losses: false,
            left_out: Vec::new(),
        }
    }

    /// The host device, or with `TEST_DEVICE=cuda` the first GPU, computing the same bits in every run.
    pub fn device(&self) -> Device {
        if on_gpu() {
            let options = CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: self.check };
            return Device::cuda(options).unwrap();
        }
        let device = Device::host(HostOptions { threads: self.threads, check: self.check, dry: false }).unwrap();
        if self.watched {
            device.watch(Progress::default()).unwrap();
        }
        device
    }

    /// The shape of a transformer.
    pub fn gpt_shape(&self) -> Option<GptShape> {
        let own = match self.kind {
            Kind::Gpt => tiny_gpt(self.dropout, self.precision),
            Kind::Llama => tiny_llama(self.dropout, self.precision),
            Kind::Mlp => return None,
        };
        Some(self.shape.clone().unwrap_or(own))
    }

    pub fn stage(&self, device: &Device) -> Stage {
        self.try_stage(device).unwrap()
    }

    pub fn try_stage(&self, device: &Device) -> graph_manager::Result<Stage> {
        let decay = 0.1;
        let adamw = ParamGroup::decay_matrices(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, decay);
        let (architecture, optimizer) = match self.kind {
            Kind::Gpt | Kind::Llama => {
                let Some(shape) = self.gpt_shape() else { unreachable!("a transformer has a shape") };
                let blocks = if self.blocks.is_empty() { vec![shape.layers] } else { self.blocks.clone() };
                let keeps_attention = self.keeps_attention;
                let most = self.recomputed_blocks.unwrap_or(usize::MAX);
                let recompute = self.recompute.map(|blocks| Recompute { blocks, keeps_attention, most });
                let layers = StageLayers::of_stage(self.stage, &blocks, recompute);
                let tensor =
                    TensorParallel { ranks: self.ranks.clone(), sequence: self.sequence, context: self.context };
                let part = gpt_part(shape, tensor, layers);
                (self.row.iter().fold(part, |part, row| part.with_sample(row.clone())), adamw)
            }
            Kind::Mlp => {
                let sgd = ParamGroup::decay_matrices(Rule::Sgd { momentum: 0.9 }, decay);
                (tiny_mlp(self.dropout, self.precision, &self.ranks), sgd)
            }
        };
        let options = StageOptions {
            seed: Some(7),
            microbatches: self.microbatches,
            micro_batch_size: self.micro_batch_size,
            shorter_lengths: self.shorter.clone(),
            optimizer: self.groups.clone().unwrap_or(optimizer),
            skip_step: self.skip_step,
            moments: self.moments,
            bucket_bytes: 4096,
            sharding: if self.distributed_optimizer { self.sharding.max(Sharding::State) } else { self.sharding },
            grad_reduce: self.grad_reduce,
            pipeline: match self.overlaps {
                true => PipelineStage::new(self.stage.schedule().overlapping().unwrap(), self.stage.stage()),
                false => self.stage,
            },
            graphs: self.graphs.clone(),
            hooks: self.hooks.clone(),
            keeps_losses: self.keeps_losses,
            layers_on_host: self.layers_on_host,
            state_on_host: self.state_on_host,
            master_form: self.master_form,
            block_gradients: self.block_gradients,
            left_out: self.left_out.clone(),
        };
        let architecture = architecture.freeze(self.frozen);
        let architecture = match self.codes {
            Some(form) => architecture.frozen_as_codes(form),
            None => architecture,
        };
        Stage::new(device, &architecture, options)
    }

    /// This rank's settings for a step.
    pub fn settings(&self, step: usize) -> StepSettings {
        let Place { index: rank, count: ranks } = self.ranks.at(Axis::Data);
        let per_rank = self.microbatches * self.micro_batch_size;
        StepSettings {
            step: step as u32,
            microbatches: self.microbatches,
            first_sample: ((step * ranks + rank) * per_rank) as u64,
            learning_rate: self.learning_rate,
            clip: self.clip,
            ..StepSettings::default()
        }
    }

    pub fn train(&self) -> Trained {
        let device = self.device();
        let (results, stage) = self.train_on(&device);
        let weights = stage.params().iter().flat_map(|(_, param)| param.master_values(&device).unwrap());
        (results, weights.map(f32::to_bits).collect())
    }

    /// The results of all steps and the stage that did them.
    pub fn train_on(&self, device: &Device) -> (Vec<StepResult>, Stage) {
        device.shuffle_replays(self.shuffle);
        let mut stage = self.stage(device);
        if self.rehearses {
            stage.record(self.microbatches, true).unwrap();
            stage.rehearse(&[self.microbatches], true).unwrap();
        }
        let results = self.train_stage(&mut stage);
        (results, stage)
    }

    /// The results of all steps, done by a stage of this run.
    pub fn train_stage(&self, stage: &mut Stage) -> Vec<StepResult> {
        (0..self.steps).map(|step| self.step(stage, self.settings(step))).collect()
    }

    /// A step of a stage of this run, on the samples that the settings say.
    pub fn step(&self, stage: &mut Stage, settings: StepSettings) -> StepResult {
        let samples = self.samples(stage, &settings);
        stage.train_step(settings, samples.as_ref()).unwrap().wait().unwrap()
    }

    /// As [`Run::step`], without an update.
    pub fn evaluate(&self, stage: &mut Stage, settings: StepSettings) -> StepResult {
        let samples = self.samples(stage, &settings);
        stage.evaluate(settings, samples.as_ref()).unwrap().wait().unwrap()
    }

    /// The samples of a step. As in a run, stages between the first and the last have none.
    pub fn samples(&self, stage: &Stage, settings: &StepSettings) -> Option<HostValues> {
        let (first, count) = (settings.first_sample, settings.microbatches * self.micro_batch_size);
        stage.needs_batch().then(|| match &self.row {
            Some(SampleRow { pairs: Some(pairs), mismatched: Some(_), .. }) => labelled(first, count, pairs.most),
            Some(SampleRow { pairs: Some(pairs), .. }) => with_pairs(first, count, pairs.most),
            Some(_) => packed(first, count),
            None => batch(self.kind, first, count / MICRO_BATCH),
        })
    }
}

/// The results of all steps, and the bits of the final weights.
pub type Trained = (Vec<StepResult>, Vec<u32>);

/// Fails unless `train` has the same result, to the bit, in each of these settings of graphs as without graphs. Returns it.
#[track_caller]
pub fn assert_graphs_change_no_bit<T: PartialEq>(
    what: &str,
    settings: &[(String, GraphOptions)],
    train: impl Fn(GraphOptions) -> T,
) -> T {
    let plain = train(off());
    for (name, graphs) in settings {
        assert!(train(graphs.clone()) == plain, "{what}, {name}");
    }
    plain
}

/// Each `every`th of the ways to run a step with graphs.
pub fn some_settings(every: usize) -> Vec<(String, GraphOptions)> {
    all_settings().into_iter().skip(1).step_by(every).collect()
}

/// Every way to run a step: graphs off, and each scope, pool, boundary and optimizer setting.
pub fn all_settings() -> Vec<(String, GraphOptions)> {
    use engine::graph_options::Scope;
    use graph_manager::Mempool;
    let mut all = vec![("graphs off".to_string(), GraphOptions { enable: false, ..GraphOptions::default() })];
    for scope in Scope::ALL {
        for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
            for share_io_buffers in [true, false] {
                for capture_optimizer in [true, false] {
                    let name = format!("{scope:?} {mempool:?} share {share_io_buffers} optimizer {capture_optimizer}");
                    let poison = capture_optimizer;
                    let options = GraphOptions {
                        scope,
                        mempool,
                        share_io_buffers,
                        capture_optimizer,
                        poison,
                        ..GraphOptions::default()
                    };
                    all.push((name, options));
                }
            }
        }
    }
    all
}
