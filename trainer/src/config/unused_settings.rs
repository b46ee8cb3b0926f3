//! Settings that have no effect beside others. The user is told. They are no errors, because they do no harm and may stand in
//! a file that several runs share.

use common::format::counted;
use data::RawTokens;
use parallel::Axis;

use crate::config::graph_plan::words;
use crate::config::options::find;
use crate::config::plan::RunPlan;
use crate::config::{
    DecayStyle, Fp8Choice, GradReduce, Layers, ModelConfig, ModelKind, MomentDtype, OptimizerChoice, PositionEmbedding,
    RecomputeGranularity, TensorTransfers, VerifyMemory,
};

/// One line for each setting without effect. For a benchmark (`is_bench`) settings about files and the run's length do not
/// count, because it has its own.
pub fn notices(plan: &RunPlan, is_bench: bool) -> Vec<String> {
    let mut notices = Vec::new();
    let mut tell = |unused: bool, setting: String, why: &str| {
        if unused {
            notices.push(format!("{setting} has no effect: {why}"));
        }
    };
    let config = &plan.config;
    let (parallel, graph, recompute) = (&config.parallel, &config.cuda_graph, &config.recompute);
    let (model, checkpoint, logging) = (&config.model, &config.checkpoint, &config.logging);
    let (optimizer, steps) = (&config.optimizer, config.train.steps);
    tell(
        parallel.sequence_parallel && parallel.tensor == 1,
        "parallel.sequence_parallel = true".into(),
        "with parallel.tensor = 1 no ranks share a layer and its tokens",
    );
    tell(
        parallel.tensor_transfers == TensorTransfers::Nccl && parallel.tensor == 1,
        "parallel.tensor_transfers = \"nccl\"".into(),
        "with parallel.tensor = 1 no ranks share a layer",
    );
    let off = "without cuda_graph.enable (--enable-cuda-graph) nothing is captured";
    for (key, value) in [
        ("cuda_graph.scope", format!("\"{}\"", graph.scope)),
        ("cuda_graph.modules", words(&graph.modules)),
        ("cuda_graph.layers", format!("{:?}", graph.layers)),
        ("cuda_graph.warmup_steps", graph.warmup_steps.to_string()),
        ("cuda_graph.share_io_buffers", graph.share_io_buffers.to_string()),
        ("cuda_graph.capture_optimizer", graph.capture_optimizer.to_string()),
        ("cuda_graph.overlap_microbatches", graph.overlap_microbatches.to_string()),
        ("cuda_graph.verify", graph.verify.to_string()),
    ] {
        tell(!graph.enable && !is_default(key, &value), format!("{key} = {value}"), off);
    }
    tell(
        graph.enable && graph.overlap_microbatches && plan.batch.microbatches() == 1,
        "cuda_graph.overlap_microbatches = true".into(),
        "a step has one microbatch on each rank, which nothing overlaps with",
    );
    tell(
        graph.verify == 0 && graph.verify_memory != VerifyMemory::Apart,
        format!("cuda_graph.verify_memory = \"{}\"", graph.verify_memory),
        "with cuda_graph.verify = 0 (--verify-cuda-graph) no step is verified",
    );
    let targets = format!("{:?}", model.lora_target_modules);
    for (key, is_default, value) in [
        ("model.lora_alpha", is_default_number("model.lora_alpha", model.lora_alpha), model.lora_alpha.to_string()),
        ("model.lora_dropout", model.lora_dropout == 0.0, model.lora_dropout.to_string()),
        ("model.lora_target_modules", is_default("model.lora_target_modules", &targets), targets),
    ] {
        let why = "without model.lora_rank (--lora-rank) there are no adapters";
        tell(model.lora_rank == 0 && !is_default, format!("{key} = {value}"), why);
    }
    let decay = format!("optimizer.decay_steps = {}", optimizer.decay_steps);
    let is_wsd = optimizer.schedule == DecayStyle::Wsd;
    tell(
        !is_wsd && !is_default("optimizer.decay_steps", &optimizer.decay_steps.to_string()),
        decay.clone(),
        "it is for optimizer.schedule = \"wsd\"; other decays end with the run",
    );
    let is_sgd = optimizer.kind == OptimizerChoice::Sgd;
    tell(
        !is_sgd && optimizer.momentum != 0.0,
        format!("optimizer.momentum = {}", optimizer.momentum),
        "it is for optimizer.kind = \"sgd\"",
    );
    tell(
        recompute.granularity != RecomputeGranularity::Full && recompute.layers != 1,
        format!("recompute.layers = {}", recompute.layers),
        "it is for recompute.granularity = \"full\"",
    );
    let precision = &config.precision;
    for (key, value, only_delayed) in [
        ("precision.fp8_recipe", format!("\"{}\"", precision.fp8_recipe), false),
        ("precision.bf16_blocks", format!("{:?}", precision.bf16_blocks), false),
        ("precision.fp8_metrics_interval", precision.fp8_metrics_interval.to_string(), false),
        ("precision.fp8_param_gather", precision.fp8_param_gather.to_string(), false),
        ("precision.fp8_amax_history", precision.fp8_amax_history.to_string(), true),
        ("precision.fp8_amax_algo", format!("\"{}\"", precision.fp8_amax_algo), true),
        ("precision.fp8_margin", precision.fp8_margin.to_string(), true),
    ] {
        let unused = match precision.fp8 {
            Fp8Choice::None => true,
            _ => only_delayed && !precision.fp8_recipe.keeps_magnitudes(),
        };
        let why = match precision.fp8 {
            Fp8Choice::None => "without precision.fp8 (--fp8-format) no layer multiplies in 8 bits",
            _ => "it is for precision.fp8_recipe = \"delayed\" or \"rowwise\"",
        };
        tell(unused && !is_default(key, &value), format!("{key} = {value}"), why);
    }
    tell(
        optimizer.schedule == DecayStyle::Constant && !is_default_number("optimizer.min_lr", optimizer.min_lr),
        format!("optimizer.min_lr = {}", optimizer.min_lr),
        "with optimizer.schedule = \"constant\" there is no decay",
    );
    tell(
        model.position != PositionEmbedding::Rotary && !is_default_number("model.rope_base", model.rope_base),
        format!("model.rope_base = {}", model.rope_base),
        "it is for model.position = \"rotary\"",
    );
    tell(
        model.rope_window_base.is_some() && model.sliding_window.is_none(),
        "model.rope_window_base".into(),
        "it is for blocks with a model.sliding_window",
    );
    tell(
        model.kind == ModelKind::Gpt && model.qkv_bias && model.bias,
        "model.qkv_bias = true".into(),
        "with model.bias = true all linear layers have biases",
    );
    let alone = "with one data-parallel rank there is nothing to divide or sum";
    let one_data_rank = plan.parallel.grid.size(Axis::Data) == 1;
    tell(parallel.distributed_optimizer && one_data_rank, "parallel.distributed_optimizer = true".into(), alone);
    tell(
        precision.fp8_param_gather
            && precision.fp8 != Fp8Choice::None
            && (one_data_rank || !parallel.distributed_optimizer),
        "precision.fp8_param_gather = true".into(),
        "only data-parallel ranks with a distributed optimizer gather weights",
    );
    tell(
        parallel.grad_reduce != GradReduce::F32 && one_data_rank,
        format!("parallel.grad_reduce = \"{}\"", parallel.grad_reduce),
        alone,
    );
    let unsaved = "without checkpoint.dir (--save) no checkpoint is written";
    for (key, value) in [("checkpoint.interval", checkpoint.interval), ("checkpoint.keep", checkpoint.keep)] {
        let unused = checkpoint.dir.is_none() && !is_bench && !is_default(key, &value.to_string());
        tell(unused, format!("{key} = {value}"), unsaved);
    }
    if let (None, Some(after)) = (&logging.trace, logging.trace_after) {
        tell(true, format!("logging.trace_after = {after}"), "without logging.trace (--trace) there is no timeline");
    }
    let data = &config.data;
    let split = format!("data.split = {}", data.split);
    let changed = !is_default_number("data.split", data.split) && !is_bench;
    tell(changed && data.path.is_none(), split.clone(), "without data.path the trainer generates data");
    tell(
        changed && data.validation_path.is_some(),
        split,
        "data.validation_path is for validation, and all of data.path for training",
    );
    if !is_bench && (data.raw_tokens != RawTokens::None || data.end_of_text.is_some()) {
        let (text, tokens) = data::forms(data);
        tell(
            data.raw_tokens != RawTokens::None && text && !tokens,
            format!("data.raw_tokens = \"{}\"", data.raw_tokens),
            "it is for token files, and the data are text",
        );
        if let Some(token) = data.end_of_text.as_ref().filter(|_| tokens && !text) {
            let why = "token files mark where documents end; only `trainer sample` uses it";
            tell(true, format!("data.end_of_text = {token:?}"), why);
        }
    }
    for (key, by_lion, given, value) in [
        (
            "optimizer.betas",
            true,
            !is_default("optimizer.betas", &format!("{:?}", optimizer.betas)),
            format!("{:?}", optimizer.betas),
        ),
        ("optimizer.eps", false, !is_default_number("optimizer.eps", optimizer.eps), optimizer.eps.to_string()),
    ] {
        let unused = is_sgd || (optimizer.kind == OptimizerChoice::Lion && !by_lion);
        tell(unused && given, format!("{key} = {value}"), "it is for optimizer.kind = \"adamw\"");
    }
    let is_lion = optimizer.kind == OptimizerChoice::Lion;
    for (key, dtype, unused) in [
        ("optimizer.exp_avg_dtype", optimizer.exp_avg_dtype, is_sgd),
        ("optimizer.exp_avg_sq_dtype", optimizer.exp_avg_sq_dtype, is_sgd || is_lion),
    ] {
        tell(
            unused && dtype != MomentDtype::F32,
            format!("{key} = \"{dtype}\""),
            "it is for optimizer.kind = \"adamw\"",
        );
    }
    tell(
        optimizer.skip_step_sigma_factor == 0.0
            && !is_default("optimizer.skip_step_interval", &optimizer.skip_step_interval.to_string()),
        format!("optimizer.skip_step_interval = {}", optimizer.skip_step_interval),
        "without optimizer.skip_step_sigma_factor no step is skipped",
    );
    for (key, default) in [
        ("optimizer.muon_momentum", is_default_number("optimizer.muon_momentum", optimizer.muon_momentum)),
        (
            "optimizer.muon_num_ns_steps",
            is_default("optimizer.muon_num_ns_steps", &optimizer.muon_num_ns_steps.to_string()),
        ),
    ] {
        let is_muon = optimizer.kind == OptimizerChoice::Muon;
        tell(!is_muon && !default, key.to_string(), "it is for optimizer.kind = \"muon\"");
    }
    tell(
        model.kind == ModelKind::Mlp && config.train.z_loss_multiplier != 0.0,
        format!("train.z_loss_multiplier = {}", config.train.z_loss_multiplier),
        "it is for model.kind = \"gpt\"",
    );
    let other_kind = if model.kind == ModelKind::Mlp { ModelKind::Gpt } else { ModelKind::Mlp };
    for (name, value) in set_for_kind(model, other_kind) {
        tell(true, format!("model.{name} = {value}"), &format!("it is for model.kind = \"{other_kind}\""));
    }
    let left = steps.saturating_sub(optimizer.warmup_steps);
    if is_wsd && !is_bench && optimizer.decay_steps > left {
        notices.push(format!(
            "{decay} is cut to {}: train.steps = {steps} less optimizer.warmup_steps = {}",
            counted(left, "step"),
            optimizer.warmup_steps
        ));
    }
    if !is_bench && optimizer.warmup_steps > steps {
        notices.push(format!(
            "the learning rate never reaches optimizer.lr: train.steps = {steps} is below optimizer.warmup_steps = {}",
            optimizer.warmup_steps
        ));
    }
    if graph.enable && !is_bench && graph.warmup_steps >= steps {
        notices.push(format!(
            "no training step is captured: train.steps = {steps} with cuda_graph.warmup_steps = {}",
            graph.warmup_steps
        ));
    }
    notices
}

/// The settings that only models of `kind` use, if they differ from their defaults.
fn set_for_kind(model: &ModelConfig, kind: ModelKind) -> Vec<(String, toml::Value)> {
    let mut defaults = Layers::default();
    if defaults.set("model.preset", &model.preset.to_string(), "preset").is_err() {
        return Vec::new();
    }
    let table = |model: &ModelConfig| toml::Table::try_from(model).unwrap_or_default();
    let defaults = table(&defaults.resolve().model);
    let used_by = |name: &str| match name {
        "preset" | "kind" | "init_from" => None,
        "layer_sizes" | "dropouts" => Some(ModelKind::Mlp),
        _ => Some(ModelKind::Gpt),
    };
    let changed = |name: &String, value: &toml::Value| used_by(name) == Some(kind) && defaults.get(name) != Some(value);
    table(model).into_iter().filter(|(name, value)| changed(name, value)).collect()
}

/// Whether an option has its default value.
fn is_default(key: &str, value: &str) -> bool {
    find(key).is_some_and(|option| option.default == value)
}

fn is_default_number(key: &str, value: f64) -> bool {
    find(key).is_some_and(|option| option.default.parse() == Ok(value))
}

#[cfg(test)]
mod tests {
    use common::Choice;

    use super::*;
    use crate::config::recipes::RECIPES;
    use crate::families::Preset;

    /// The notices for `key=value` pairs.
    fn told(text: &str) -> Vec<String> {
        let mut layers = Layers::default();
        for (key, value) in text.split_whitespace().map(|pair| pair.split_once('=').unwrap()) {
            layers.set(key, value, "test").unwrap();
        }
        notices(&RunPlan::new(layers.resolve(), 1).unwrap(), false)
    }

    #[test]
    fn a_setting_without_effect_is_one_line_and_none_where_it_has_an_effect() {
        for (setting, beside, says) in [
            ("parallel.sequence_parallel=true", "", "parallel.tensor = 1"),
            ("parallel.tensor_transfers=\"nccl\"", "", "parallel.tensor = 1"),
            ("cuda_graph.scope=full_iteration", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.modules=attention", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.layers=[1]", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.warmup_steps=3", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.share_io_buffers=false", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.capture_optimizer=false", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.overlap_microbatches=true", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.verify=9", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.verify_memory=shared", "cuda_graph.enable=true cuda_graph.verify=5", "no step is verified"),
            (
                "cuda_graph.overlap_microbatches=true cuda_graph.enable=true train.global_batch_size=2",
                "train.global_batch_size=4",
                "one microbatch",
            ),
            (
                "cuda_graph.enable=true cuda_graph.warmup_steps=160 train.steps=160",
                "train.steps=161",
                "no training step is captured",
            ),
            ("optimizer.decay_steps=900", "optimizer.schedule=wsd", "optimizer.schedule = \"wsd\""),
            ("optimizer.momentum=0.9", "optimizer.kind=sgd", "optimizer.kind = \"sgd\""),
            ("optimizer.muon_momentum=0.9", "optimizer.kind=muon", "optimizer.kind = \"muon\""),
            ("optimizer.muon_num_ns_steps=4", "optimizer.kind=muon", "optimizer.kind = \"muon\""),
            ("optimizer.kind=sgd optimizer.exp_avg_dtype=bf16", "optimizer.kind=lion", "optimizer.kind = \"adamw\""),
            (
                "optimizer.kind=lion optimizer.exp_avg_sq_dtype=bf16",
                "optimizer.kind=muon",
                "optimizer.kind = \"adamw\"",
            ),
            ("optimizer.skip_step_interval=64", "optimizer.skip_step_sigma_factor=6.0", "skip_step_sigma_factor"),
            ("recompute.layers=2", "recompute.granularity=full", "recompute.granularity = \"full\""),
            (
                "optimizer.schedule=wsd optimizer.decay_steps=900 train.steps=110",
                "train.steps=1000",
                "is cut to 10 steps",
            ),
            ("optimizer.schedule=constant optimizer.min_lr=1e-5", "optimizer.schedule=cosine", "there is no decay"),
            ("model.rope_base=500000.0", "model.position=rotary", "model.position = \"rotary\""),
            ("model.qkv_bias=true", "model.bias=false", "with model.bias = true"),
            ("parallel.distributed_optimizer=true", "", "one data-parallel rank"),
            ("parallel.grad_reduce=bf16", "", "one data-parallel rank"),
            ("checkpoint.interval=500", "checkpoint.dir=kept", "--save"),
            ("checkpoint.keep=2", "checkpoint.dir=kept", "--save"),
            ("logging.trace_after=3", "logging.trace=trace.json", "--trace"),
            ("data.split=0.99", "data.path=text", "without data.path"),
            ("data.path=text data.split=0.99 data.validation_path=text", "data.split=0.9", "data.validation_path"),
            ("model.kind=mlp model.layers=4", "model.kind=gpt", "model.kind = \"gpt\""),
            ("model.kind=mlp model.kv_heads=2", "model.kind=gpt", "model.kind = \"gpt\""),
            ("model.kind=mlp train.z_loss_multiplier=1e-5", "model.kind=gpt", "model.kind = \"gpt\""),
            ("model.layer_sizes=[4,2]", "model.kind=mlp", "model.kind = \"mlp\""),
            ("optimizer.kind=sgd optimizer.betas=[0.8,0.9]", "optimizer.kind=adamw", "optimizer.kind = \"adamw\""),
            ("optimizer.kind=lion optimizer.eps=1e-6", "optimizer.kind=adamw", "optimizer.kind = \"adamw\""),
            ("optimizer.kind=sgd optimizer.eps=1e-6", "optimizer.kind=adamw", "optimizer.kind = \"adamw\""),
            ("train.steps=20", "optimizer.warmup_steps=20", "never reaches optimizer.lr"),
        ] {
            let lines = told(setting);
            assert!(lines.len() == 1 && lines[0].contains(says), "{setting}: {lines:?}");
            if !beside.is_empty() {
                assert_eq!(told(&format!("{setting} {beside}")), [""; 0], "{setting} {beside}");
            }
        }
    }

    #[test]
    fn settings_for_text_have_no_effect_on_token_files_and_the_other_way_round() {
        let folder = std::env::temp_dir().join(format!("unused-settings-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [text, tokens] = ["a.txt", "a.bin"].map(|name| folder.join(name));
        [&text, &tokens].into_iter().for_each(|path| std::fs::write(path, "text").unwrap());
        let [text, tokens] = [text, tokens].map(|path| path.display().to_string());
        let (raw, end) = ("data.raw_tokens=u16", "data.end_of_text=<|end|>");
        for (path, setting, says) in [
            (format!("{text:?}"), raw, "the data are text"),
            (format!("{tokens:?}"), raw, ""),
            (format!("{text:?}"), end, ""),
            (format!("{tokens:?}"), end, "where documents end"),
            (format!("[{text:?},{tokens:?}]"), raw, ""),
            (format!("[{text:?},{tokens:?}]"), end, ""),
        ] {
            let lines = told(&format!("data.path={path} {setting}"));
            assert_eq!(lines.len(), usize::from(!says.is_empty()), "{path} {setting}: {lines:?}");
            assert!(lines.iter().all(|line| line.contains(says)), "{lines:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn presets_and_recipes_have_no_unused_settings() {
        for preset in Preset::ALL {
            for graphs in ["", "cuda_graph.enable=true"] {
                assert_eq!(told(&format!("model.preset={preset} {graphs}")), [""; 0], "{preset}");
            }
        }
        for (name, text) in RECIPES {
            let mut layers = Layers::default();
            layers.read_text(text, name).unwrap();
            layers.set("checkpoint.dir", "checkpoints", "their first lines").unwrap();
            let ranks = if name.contains("-8x") { 8 } else { 1 };
            assert_eq!(notices(&RunPlan::new(layers.resolve(), ranks).unwrap(), false), [""; 0], "{name}");
        }
    }
}
