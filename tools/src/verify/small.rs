//! The small model of a run: its sizes shrink, its features and the remainders of its divisions stay.

use common::UserError;
use device::ops::CODE_BLOCK;
use engine::fp8::Fp8Recipe;
use engine::model::ContextTransfers;
use engine::precision::Precision;
use parallel::{Axis, Mesh};
use trainer::config::plan::RunPlan;
use trainer::config::{
    BalanceGroup, DataParallelSharding, DecayStyle, DeviceChoice, Fp8Choice, GradReduce, GraphScope, Keeps, ModelKind,
    MomentDtype, OptimizerChoice, PipelineSchedule, RecomputeGranularity, RunConfig, SyncDebugChoice,
};

use super::layouts::OfExpert;
use super::numbers::STEPS;

/// Below the gradient norm of the small models, so that clipping acts.
const CLIP: f64 = 0.05;

/// So large that AdamW's update is smooth in the gradient. With the usual 1e-8 the first update of an element is the
/// rate times the gradient's sign, and gradients that are 0 but for rounding would make updates of any sign.
const EPS: f64 = 1e-2;

/// A rate with which an update is some 1e-4 of a weight or more, far above the weight's rounding.
const LEARNING_RATE: f64 = 2e-2;

/// The rate of SGD, whose update is the rate times the clipped gradient.
const SGD_LEARNING_RATE: f64 = 1.0;

/// So large that no gradient of a narrow model is small beside the others.
const INIT_STD: f64 = 0.1;

/// The small model for a layout.
pub(super) struct Small {
    /// The small run's configuration, with all numbers in f32.
    pub(super) config: RunConfig,
    /// The same in the run's own number format, if that is another.
    pub(super) rounded: Option<Rounded>,
    /// Settings that the small model has otherwise, or not at all: a line each.
    pub(super) replaced: Vec<String>,
}

/// The small model in a format that rounds.
pub(super) struct Rounded {
    /// The format in words.
    pub(super) format: String,
    pub(super) config: RunConfig,
}

impl Small {
    /// The sizes, in words.
    pub(super) fn sizes(&self) -> String {
        let (model, train) = (&self.config.model, &self.config.train);
        if model.kind == ModelKind::Mlp {
            return format!("an MLP of {:?}, {} samples a step", model.layer_sizes, train.global_batch_size);
        }
        let experts = match model.experts {
            0 => String::new(),
            count => format!(", {} of {count} experts a token", model.experts_per_token),
        };
        let chunks = match self.config.parallel.virtual_pipeline {
            1 => String::new(),
            chunks => format!(" in {chunks} chunks a stage"),
        };
        format!(
            "{} blocks{chunks} of width {}, {} heads with {} of keys, {} tokens in the vocabulary{experts}, \
             {} sequences of {} a step",
            model.layers,
            model.hidden,
            model.heads,
            model.kv_heads.unwrap_or(model.heads),
            model.vocab,
            train.global_batch_size,
            model.seq_length
        )
    }
}

/// The small model of `plan` for a layout that is `mesh`.
///
/// # Errors
/// Features that no small model has.
pub(super) fn small(plan: &RunPlan, mesh: Mesh) -> Result<Small, UserError> {
    let mut config = plan.config.clone();
    let mut replaced = Vec::new();
    shrink_model(&mut config, plan, mesh);
    shrink_layout(&mut config, plan, mesh);
    config.parallel.context_transfers = plan.parallel.context_transfers.into();
    if !config.cuda_graph.layers.is_empty() {
        replaced.push(format!("cuda_graph.layers = {:?}: all layers", config.cuda_graph.layers));
    }
    leave_out_the_run(&mut config);
    make_exact(&mut config, &mut replaced);
    let mut rules = plan.optimizer.groups.iter().map(|group| &group.rule);
    if rules.any(|rule| rule.overwrites_gradients() && rule.mean_of_gradients().is_none()) {
        replaced.push("gradients, which the optimizer overwrites".into());
    }
    if config.train.balance_loss_over == BalanceGroup::GlobalBatch && mesh.size(Axis::Data) > 1 {
        // It is about the microbatches that ranks have at once, and one rank has no others.
        config.train.balance_loss_over = BalanceGroup::Microbatch;
        replaced.push("train.balance_loss_over = \"global_batch\": \"microbatch\", as one rank has no others".into());
    }
    keep_what_fits(&mut config, mesh, &mut replaced)?;
    let rounded = in_own_format(&config, &plan.config, &mut replaced);
    let rounded = rounded.filter(|Rounded { format, config }| {
        let error = RunPlan::new(in_layout(config, mesh), mesh.ranks()).err();
        replaced.extend(error.as_ref().map(|error| format!("{format}: f32 alone, as {}", error.what)));
        error.is_none()
    });
    Ok(Small { config, rounded, replaced })
}

/// Leaves out lists that name what the small model does not have, such as a block of a higher number.
fn keep_what_fits(config: &mut RunConfig, mesh: Mesh, replaced: &mut Vec<String>) -> Result<(), UserError> {
    type Lists = [(&'static str, fn(&mut RunConfig) -> &mut Vec<String>); 3];
    const LISTS: Lists = [
        ("optimizer.freeze", |config| &mut config.optimizer.freeze),
        ("optimizer.param_groups", |config| &mut config.optimizer.param_groups),
        ("cuda_graph.modules", |config| &mut config.cuda_graph.modules),
    ];
    let check = |config: &RunConfig| RunPlan::new(in_layout(config, mesh), mesh.ranks()).err();
    for (key, list) in LISTS {
        if !list(config).is_empty() && check(config).is_some() {
            replaced.push(format!("{key} = {:?}: left out, as the small model has no such parts", list(config)));
            list(config).clear();
        }
    }
    check(config).map_or(Ok(()), |error| {
        let what = format!("no small model has these settings: {}", error.what);
        Err(UserError::new(what, error.rule, "leave that setting out to verify the rest"))
    })
}

fn shrink_model(config: &mut RunConfig, plan: &RunPlan, mesh: Mesh) {
    let ranks = plan.parallel.mesh.size(Axis::Tensor);
    let [small_ranks, context, expert_ranks] = [Axis::Tensor, Axis::Context, Axis::Expert].map(|axis| mesh.size(axis));
    let has_8_bits = config.precision.fp8 != Fp8Choice::None;
    let has_blocks = has_8_bits && config.precision.fp8_recipe == Fp8Recipe::Blockwise;
    let has_codes = config.precision.frozen_weights.codes().is_some();
    let RunConfig { model, data, parallel, .. } = config;
    // Sizes of 8-bit products are multiples of 16, and rows of codes have blocks.
    let (token_unit, unit) = match (has_8_bits, has_codes) {
        (_, true) => (1, CODE_BLOCK),
        (true, _) => (16, 16),
        _ => (1, 1),
    };
    let parity = |size: usize, even: usize, odd: usize| if size.is_multiple_of(2) { even } else { odd };
    model.layer_sizes.iter_mut().for_each(|size| *size = 24.min(*size));
    // Key heads: one a rank, several a rank, or one on several ranks.
    let kv_heads = model.kv_heads.unwrap_or(model.heads);
    let queries = parity(model.heads / kv_heads, 2, if model.heads == kv_heads { 1 } else { 3 });
    let small_kv = match () {
        () if kv_heads > ranks => 2 * small_ranks,
        () if kv_heads == ranks || small_ranks == 1 => small_ranks,
        () if kv_heads > 1 && small_ranks.is_multiple_of(2) => small_ranks / 2,
        () => 1,
    };
    let small_kv = match plan.parallel.context_transfers {
        ContextTransfers::Keys | ContextTransfers::Ring => small_kv,
        // Each rank that divides sequences has some heads.
        ContextTransfers::Heads => small_kv * context,
    };
    let queries = (queries..).find(|queries| (small_kv * queries).is_multiple_of(small_ranks)).unwrap_or(1);
    let (heads, small_heads) = (model.heads, small_kv * queries);
    let head_dim = match () {
        // A block of scales in the width, and below two in a rank's feed-forward channels.
        () if has_blocks => 128_usize.div_ceil(small_heads).next_multiple_of(unit),
        () if has_codes && (small_heads / small_ranks).is_multiple_of(2) => unit / 2,
        () if small_heads < 4 && !has_codes => 16,
        () => unit.max(8),
    };
    let is_wider = |dim: usize| dim * heads != model.hidden;
    model.head_dim = model.head_dim.map(|dim| if is_wider(dim) { head_dim + unit.max(4) } else { head_dim });
    model.kv_heads = model.kv_heads.map(|_| small_kv);
    if model.kv_latent.is_some() {
        let [latent, of_queries, head, rotated, value] = match unit {
            1 => [10, 6, 12, 4, 6],
            _ => [unit, unit, 2 * unit, unit, unit],
        };
        (model.kv_latent, model.query_latent) = (Some(latent), model.query_latent.map(|_| of_queries));
        (model.head_dim, model.rotary_head_dim, model.value_head_dim) = (Some(head), rotated, Some(value));
    }
    (model.heads, model.hidden) = (small_heads, small_heads * head_dim);
    model.ffn = Some(match has_blocks {
        true => 256 * small_ranks,
        false => (3 * model.hidden / 2).next_multiple_of(unit.max(4) * small_ranks),
    });
    // Rows of the vocabulary that pad it lie on the last rank.
    let rows = 128 * small_ranks;
    model.vocab = if model.vocab.is_multiple_of(128 * ranks) { rows } else { rows - 31 };
    let lengths = data.seq_length_buckets.len().min(2);
    // Ranks that divide sequences have two parts of each, of two tokens and more.
    let parts = if context > 1 { 2 * context } else { 1 };
    let seq = (4 * small_ranks * context).max(12).next_multiple_of(parts * token_unit * lengths.max(1));
    data.seq_length_buckets = [seq / 2, seq][2 - lengths..].to_vec();
    model.max_position_embeddings =
        model.max_position_embeddings.map(|most| if most > model.seq_length { seq + 4 } else { seq });
    model.seq_length = seq;
    model.sliding_window = model.sliding_window.map(|tokens| tokens.min(5));
    model.loss_pieces = model.loss_pieces.map(|pieces| pieces.min(2));
    model.lora_rank = model.lora_rank.min(4);
    if model.experts > 0 {
        let per_token = model.experts_per_token.min(2);
        model.experts = match () {
            // Several experts for each rank, if the run has that.
            () if expert_ranks > 1 => expert_ranks * (model.experts / parallel.expert).min(2),
            () if model.experts == model.experts_per_token => per_token,
            () => parity(model.experts, 4, 5),
        };
        model.experts_per_token = per_token;
        if model.expert_groups > 1 {
            // Two groups, of two experts or more.
            model.experts *= if model.experts.is_multiple_of(2) && model.experts > 2 { 1 } else { 2 };
            (model.expert_groups, model.expert_groups_per_token) = (2, 1);
        }
        let [own, other] = [6, 4].map(|width| unit.max(width) * small_ranks);
        // Families with a shared expert have one as wide as several experts.
        let several = model.expert_ffn.is_some_and(|ffn| model.shared_expert_ffn.is_multiple_of(ffn));
        model.shared_expert_ffn = model.shared_expert_ffn.min(if several { 2 * own } else { other });
        model.expert_ffn = model.expert_ffn.map(|_| own);
    }
    model.init_from = None;
    model.init_std = INIT_STD;
}

fn shrink_layout(config: &mut RunConfig, plan: &RunPlan, mesh: Mesh) {
    let (stages, data) = (mesh.size(Axis::Pipeline), mesh.size(Axis::Data));
    let parallel = &mut config.parallel;
    let microbatches = plan.batch.microbatches();
    // Chunks of one block and of two differ in what lies at their ends.
    let parts = plan.parallel.blocks.len().max(1);
    if parallel.virtual_pipeline > 1 {
        parallel.virtual_pipeline = if parallel.virtual_pipeline.is_multiple_of(2) { 2 } else { 3 };
    }
    let small_parts = stages * parallel.virtual_pipeline;
    let few = |blocks: usize| if blocks.is_multiple_of(2) { 2 } else { 1 };
    let layers = config.model.layers;
    let all = small_parts * few(layers / parts) + usize::from(!layers.is_multiple_of(parts));
    let pattern = config.model.window_pattern.len().max(config.model.expert_pattern.len()).min(6);
    config.model.layers = match parallel.pipeline_layers.len() == small_parts && stages > 1 {
        true => {
            parallel.pipeline_layers.iter_mut().for_each(|blocks| *blocks = few(*blocks));
            parallel.pipeline_layers.iter().sum()
        }
        false => {
            parallel.pipeline_layers.clear();
            all.max(pattern)
        }
    };
    config.recompute.layers = config.recompute.layers.min(2);
    // More microbatches than the first stage begins before its first backward, if the run has more.
    let group =
        parallel.microbatch_group.map_or(stages, |group| if group > parallel.pipeline { stages + 1 } else { stages });
    parallel.microbatch_group = parallel.microbatch_group.map(|_| group);
    let enough = if parallel.virtual_pipeline > 1 { 2 * group } else { stages + 2 };
    let own = if parallel.virtual_pipeline > 1 { enough } else { microbatches.min(enough) };
    config.train.micro_batch_size = config.train.micro_batch_size.min(2);
    // Without the ranks that share layers, those of whole experts share the batch.
    let shares = if OfExpert::on(mesh) == OfExpert::Whole { mesh.size(Axis::Expert) } else { 1 };
    config.train.global_batch_size = own * data * shares * config.train.micro_batch_size;
}

/// Leaves out what no number of a step depends on, and files.
fn leave_out_the_run(config: &mut RunConfig) {
    let RunConfig { data, train, optimizer, cuda_graph, checkpoint, logging, .. } = config;
    (data.path, data.validation_path, data.chat_template) = (None, None, None);
    data.validation_sets = Vec::new();
    (data.group_by_length, data.add_special_tokens) = (false, false);
    (train.device, train.threads, train.sync_debug) = (DeviceChoice::Host, Some(1), SyncDebugChoice::Off);
    (train.steps, train.epochs, train.rampup_batch_size) = (STEPS, None, Vec::new());
    (train.eval_interval, train.early_stop_patience) = (0, 0);
    (optimizer.schedule, optimizer.min_lr, optimizer.warmup_steps) = (DecayStyle::Constant, None, Some(0));
    optimizer.decay_steps = 0;
    (cuda_graph.verify, cuda_graph.warmup_steps, cuda_graph.layers) = (0, 1, Vec::new());
    if cuda_graph.scope == GraphScope::Auto {
        cuda_graph.scope = GraphScope::PerLayer;
    }
    (checkpoint.save_best, logging.sample_prompts) = (false, None);
    logging.print_activations = Vec::new();
}

/// The same with all numbers in f32.
pub(super) fn in_f32(config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    let RunConfig { precision, optimizer, parallel, .. } = &mut config;
    precision.compute = Precision::F32;
    (precision.fp8, precision.fp8_param_gather, precision.fp8_metrics_interval) = (Fp8Choice::None, false, 0);
    precision.bf16_blocks = vec![0, 0];
    parallel.grad_reduce = GradReduce::F32;
    (optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype) = (MomentDtype::F32, MomentDtype::F32);
    optimizer.main_grads_dtype = MomentDtype::F32;
    config
}

/// The same in the number format that the run has; `None` if that is f32.
fn in_own_format(exact: &RunConfig, run: &RunConfig, replaced: &mut Vec<String>) -> Option<Rounded> {
    let mut config = exact.clone();
    let mut format = Vec::new();
    let RunConfig { precision, optimizer, parallel, model, train, .. } = &mut config;
    if run.precision.compute != Precision::F32 {
        precision.compute = run.precision.compute;
        format.push(run.precision.compute.to_string());
    }
    if run.precision.fp8 != Fp8Choice::None {
        *precision = run.precision.clone();
        precision.fp8_metrics_interval = 0;
        // The small model has few blocks, and some are to be in 8 bits.
        let most = usize::from(model.layers > 2);
        precision.bf16_blocks.iter_mut().for_each(|blocks| *blocks = most.min(*blocks));
        format.push(format!("8 bits ({}, {})", precision.fp8, precision.fp8_recipe));
    }
    if run.parallel.grad_reduce != GradReduce::F32 {
        parallel.grad_reduce = run.parallel.grad_reduce;
        format.push("sums of gradients in bf16".into());
    }
    if run.optimizer.kind != OptimizerChoice::Lion {
        let moments = [run.optimizer.exp_avg_dtype, run.optimizer.exp_avg_sq_dtype];
        [optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype] = moments;
        if moments.iter().any(|dtype| *dtype != MomentDtype::F32) {
            format.push("moments in bf16".into());
        }
        optimizer.main_grads_dtype = run.optimizer.main_grads_dtype;
        if optimizer.main_grads_dtype != MomentDtype::F32 {
            format.push("gradients in bf16".into());
        }
    }
    if format.is_empty() {
        return None;
    }
    let format = format.join(", ");
    if model.experts > 0 {
        // Rounding would let tokens choose other experts, and drop other choices.
        (train.force_expert_balance, model.token_drop_policy) = (true, Keeps::FirstTokens);
        replaced.push(format!("{format}: which experts tokens choose, as rounding decides; they take turns"));
    }
    Some(Rounded { format, config })
}

/// Makes all numbers f32, and every update smooth in the gradient.
fn make_exact(config: &mut RunConfig, replaced: &mut Vec<String>) {
    *config = in_f32(config);
    let optimizer = &mut config.optimizer;
    if optimizer.kind == OptimizerChoice::Lion {
        // Elements whose gradient is 0 but for rounding would move by the whole rate, to either side.
        replaced.push("optimizer.kind = \"lion\": adamw, whose updates are not signs alone".into());
        optimizer.kind = OptimizerChoice::AdamW;
    }
    optimizer.eps = EPS;
    optimizer.lr = if optimizer.kind == OptimizerChoice::Sgd { SGD_LEARNING_RATE } else { LEARNING_RATE };
    if optimizer.clip > 0.0 {
        optimizer.clip = CLIP;
    }
}

/// The same model and batch in another layout.
pub(super) fn in_layout(config: &RunConfig, mesh: Mesh) -> RunConfig {
    let mut config = config.clone();
    let parallel = &mut config.parallel;
    (parallel.tensor, parallel.pipeline) = (mesh.size(Axis::Tensor), mesh.size(Axis::Pipeline));
    parallel.context = mesh.size(Axis::Context);
    parallel.expert = mesh.size(Axis::Expert);
    parallel.expert_tensor = (OfExpert::on(mesh) == OfExpert::Whole).then_some(1);
    if parallel.expert == 1 {
        parallel.expert_row_budget = None;
    }
    let divides = |copies: &usize| mesh.size(Axis::Data).is_multiple_of(*copies);
    parallel.optimizer_instances = [parallel.optimizer_instances, 2].into_iter().find(divides).unwrap_or(1);
    if parallel.pipeline == 1 {
        (parallel.virtual_pipeline, parallel.microbatch_group) = (1, None);
        parallel.pipeline_schedule = PipelineSchedule::OneForwardOneBackward;
    }
    if parallel.pipeline == 1 || parallel.pipeline_layers.len() != parallel.pipeline * parallel.virtual_pipeline {
        parallel.pipeline_layers.clear();
    }
    config
}

/// The same model and batch on one rank, as plainly as can be.
pub(super) fn alone(config: &RunConfig) -> RunConfig {
    let mut config = in_layout(config, Mesh::single());
    (config.parallel.sequence_parallel, config.parallel.distributed_optimizer) = (false, false);
    config.parallel.data_parallel_sharding = DataParallelSharding::Auto;
    config.recompute.granularity = RecomputeGranularity::None;
    config.cuda_graph.enable = false;
    config
}

#[cfg(test)]
mod tests {
    use trainer::config::ConfigSources;

    use super::*;
    use crate::verify::layouts::{OfExpert, of_sizes};

    /// The small model of a run, in a layout of the given sizes along tensor, data and pipeline.
    fn of(settings: &str, [tensor, data, pipeline]: [usize; 3]) -> Small {
        let sources = ConfigSources::of_pairs(settings).unwrap();
        let config = sources.resolve();
        let ranks = config.parallel.tensor * config.parallel.pipeline;
        small(&RunPlan::new(config, ranks).unwrap(), of_sizes([tensor, 1, 1, data, pipeline], OfExpert::Channels))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn remainders_and_ratios_of_a_large_model_stay_in_the_small_one() {
        let heads = |settings: &str, mesh| {
            let model = of(settings, mesh).config.model;
            (model.heads, model.kv_heads.unwrap_or(model.heads))
        };
        // A key head for each rank, with several query heads.
        assert_eq!(heads("model.preset=llama-70b parallel.tensor=8", [4, 1, 1]), (8, 4));
        // Several key heads for each rank, each with one query head.
        assert_eq!(heads("model.heads=8 model.kv_heads=8 model.hidden=64 parallel.tensor=2", [2, 1, 1]), (4, 4));
        // Two ranks have copies of a key head, and four have.
        let four = "model.preset=tiny-llama parallel.tensor=4";
        assert_eq!(heads(&format!("{four} model.kv_heads=2"), [4, 1, 1]), (4, 2));
        assert_eq!(heads(&format!("{four} model.kv_heads=1"), [4, 1, 1]), (4, 1));
        // The vocabulary of GPT-2 is padded, and one of 51200 tokens on four ranks is not.
        let vocab =
            |settings: &str| of(&format!("model.preset=gpt2-124m {settings}"), [4, 1, 1]).config.model.vocab % 512;
        assert_eq!((vocab("parallel.tensor=4"), vocab("parallel.tensor=4 model.vocab=51200")), (481, 0));
        let experts = of("model.preset=mixtral-8x7b", [1, 2, 1]).config.model;
        assert_eq!((experts.experts, experts.experts_per_token), (4, 2));
    }

    #[test]
    fn stages_keep_odd_and_even_numbers_of_blocks_and_microbatches_that_fill_them() {
        let sizes = |settings: &str| {
            let config = of(&format!("parallel.pipeline=2 train.global_batch_size=64 {settings}"), [1, 1, 2]).config;
            (config.model.layers, config.train.global_batch_size / config.train.micro_batch_size)
        };
        assert_eq!(sizes("model.layers=6"), (2, 4));
        assert_eq!(sizes("model.layers=8"), (4, 4));
        assert_eq!(sizes("model.layers=9"), (5, 4));
        assert_eq!(sizes("model.layers=8 parallel.virtual_pipeline=4"), (4, 4));
        assert_eq!(sizes("model.layers=8 train.global_batch_size=2 train.micro_batch_size=2"), (4, 1));
    }

    #[test]
    fn all_that_is_not_compared_is_told() {
        let told = of(
            "model.preset=tiny-llama model.layers=3 model.experts=4 model.experts_per_token=2 cuda_graph.layers=[1] \
             precision.compute=bf16 parallel.grad_reduce=bf16 optimizer.kind=lion optimizer.freeze=[\"h.1.*\"]",
            [1, 2, 1],
        );
        let format = "bf16, sums of gradients in bf16";
        let keys = ["cuda_graph.layers", "optimizer.kind", "optimizer.freeze", format];
        let begins = |(line, key): (&String, &&str)| line.starts_with(*key);
        assert!(told.replaced.len() == 4 && told.replaced.iter().zip(&keys).all(begins), "{:?}", told.replaced);
        let rounded = told.rounded.unwrap();
        assert!(rounded.format == format && rounded.config.train.force_expert_balance, "{}", rounded.format);
    }

    #[test]
    fn a_format_of_8_bits_has_sizes_for_it_and_blocks_that_stay_in_bf16() {
        let of = of(
            "model.preset=llama-8b precision.compute=bf16 precision.fp8=e4m3 precision.fp8_recipe=blockwise \
             precision.bf16_blocks=[2,2] parallel.tensor=2 data.sft=true data.seq_length_buckets=[1024,8192] \
             model.seq_length=8192",
            [2, 1, 1],
        );
        assert_eq!(of.replaced, [""; 0]);
        let Rounded { format, config } = of.rounded.unwrap();
        assert_eq!(format, "bf16, 8 bits (e4m3, blockwise)");
        assert_eq!((config.precision.bf16_blocks, config.data.seq_length_buckets), (vec![0, 0], vec![16, 32]));
        assert_eq!((config.model.hidden, config.model.ffn), (128, Some(512)));
    }
}
