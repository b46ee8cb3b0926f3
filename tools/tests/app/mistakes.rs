//! Mistakes of users on the command line, in a config or with folders: each is one line with the value, the rule and
//! the fix, before anything has begun. Mistakes in data are in `bad_data.rs`, damaged checkpoints in `damage.rs`.

use std::path::Path;
use std::process::Command;

use crate::harness::Folder;

/// Runs `trainer FLAGS` in `folder` and returns the differences from the expected end: exit code 2, nothing on stdout,
/// and one line that holds all needles, a rule and a fix.
fn problems(folder: &Path, flags: &str, variables: &[(&str, &str)], needles: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    // A value of several words has two underscores for a space here.
    command.current_dir(folder).args(flags.split_whitespace().map(|flag| flag.replace("__", " ")));
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.trim_end();
    let has = |needle: &&str| line.contains(needle);
    let lacks = needles.iter().chain(&["error", ". Rule: ", ". Fix: "]).filter(|needle| !has(needle));
    let mut problems: Vec<String> = lacks.map(|needle| format!("`{needle}` is missing")).collect();
    for (ok, problem) in [
        (output.status.code() == Some(2), "the exit code is not 2"),
        (output.stdout.is_empty(), "it began before it was refused"),
        // Several flags have a line each. Other mistakes come alone here; `all_mistakes.rs` has several.
        (line.lines().skip(1).all(|line| line.starts_with("  --")), "it is not one line"),
        (line.lines().count() == 1 || has(&"flags are not accepted"), "it is not one line"),
        (!["Rule: .", "Fix: ."].iter().any(has) && !line.ends_with("Fix:"), "a part of it is empty"),
        (line.lines().all(|line| !line.trim_start().contains("  ")), "a part of it is empty"),
    ] {
        problems.extend((!ok).then(|| problem.to_string()));
    }
    problems.iter().map(|problem| format!("trainer {flags}\n  {problem}: {line}\n")).collect()
}

pub fn refused(folder: &Path, flags: &str, variables: &[(&str, &str)], needles: &[&str]) {
    let problems = problems(folder, flags, variables, needles);
    assert!(problems.is_empty(), "{}", problems.concat());
}

const FLAGS: &[(&str, &[&str])] = &[
    // The command line itself.
    ("--stpes 5", &["--stpes is unknown", "Fix: did you mean --steps?"]),
    ("--no-such-flag", &["--no-such-flag is unknown", "Fix: see `trainer --help`"]),
    ("tokenize --outputt out file", &["--outputt is unknown", "`trainer tokenize --help`", "did you mean --output?"]),
    (
        "--steps 1 --wombat 3 --stpes=2 --fp16",
        &[
            "error: 3 flags are not accepted: --wombat, --stpes, --fp16. Rule: ",
            "\n  --wombat: `trainer --help` lists all flags. Fix: see `trainer --help`\n",
            "\n  --stpes: `trainer --help` lists all flags. Fix: did you mean --steps?\n",
            "Fix: --bf16, or leave it out",
        ],
    ),
    (
        "--save --enable-cuda-graph",
        &["--save has --enable-cuda-graph as its value", "does not begin with --", "(is a variable empty?)"],
    ),
    ("--log-dir --dry-run", &["--log-dir has --dry-run as its value"]),
    ("--lr --steps --dry-run", &["--lr has --steps as its value"]),
    ("--log-dir=--dry-run", &["--log-dir has --dry-run as its value"]),
    ("--steps", &["--steps <VALUE> has no value"]),
    ("--steps 1 --steps 2", &["--steps <VALUE> is given twice", "a flag is given once"]),
    ("train", &["`train` is not a subcommand", "without a subcommand the trainer trains"]),
    ("tokenise x", &["`tokenise` is not a subcommand", "did you mean `tokenize`?"]),
    ("checkpoint list a b", &["`b` is not expected", "lists all arguments"]),
    ("tokenize file", &["missing: --output <DIR>"]),
    ("convert a b", &["missing: --from <from>"]),
    ("--layers 4 --steps 3 bench", &["--layers <VALUE>, --steps <VALUE> before `bench`", "comes first"]),
    ("--dry-run checkpoint list saved", &["--dry-run before `checkpoint`", "comes first"]),
    ("checkpoint", &["without a subcommand", "followed by one of: list"]),
    ("doctor --device tpu", &["`tpu` for --device", "one of auto, host, cuda"]),
    ("bench gpt3", &["`gpt3` for [CASE]", "gpt-1.3b"]),
    ("bench --graph-report g.json", &["bench with --graph-report g.json", "writes no files", "leave it out"]),
    ("bench --trace t.json", &["bench with logging.trace = t.json", "writes no files", "leave it out"]),
    ("bench mlp --config traced.toml", &["bench with logging.trace = t.json"]),
    ("--set train.steps", &["--set train.steps", "an equals sign"]),
    ("--log =x=", &["--log =x=", "level"]),
    (
        "--cuda-graph-share-io-buffers false",
        &["--cuda-graph-share-io-buffers false", "write --cuda-graph-share-io-buffers=false"],
    ),
    ("bench --data-path x --attention true", &["--attention true", "equals sign", "write --attention=true"]),
    ("--bf16 false --steps 1", &["--bf16 false", "leave --bf16 out"]),
    (
        "--freeze wte.*  h.7.*",
        &["optimizer.freeze = \"h.7.*\" matches no parameter", "they begin with h, ln_f, wpe, wte"],
    ),
    ("--param-groups wte.*=0.1 h.7.*=2", &["optimizer.param_groups = \"h.7.*\" matches no parameter", "h.1.", "=2\"]"]),
    ("--param-groups wte.*", &["optimizer.param_groups = \"wte.*\"", "PATTERN=MULTIPLIER", "for example"]),
    ("--param-groups *=0.5 wte.*=0.1", &["\"wte.*=0.1\" has no parameter", "the first group that matches it"]),
    ("--steps 1 --decoupled-lr 1e-4", &["--decoupled-lr is not supported", "--param-groups wte.*=M lm_head.*=M"]),
    ("--freeze *", &["matches all", "a run trains at least one parameter", "trainer eval"]),
    // Megatron's flags and words that are others here.
    ("--steps 1 --fp16", &["--fp16 is not supported", "bf16, tf32 or f32", "Fix: --bf16, or leave it out"]),
    (
        "--fp16 --moe-latent-size 8 --squared-relu",
        &[
            "3 flags are not accepted: --fp16, --moe-latent-size, --squared-relu. Rule: ",
            "\n  --moe-latent-size: experts read and write the residual stream in its whole width. Fix: ",
            "\n  --fp16: layers compute in bf16, tf32 or f32. Fix: --bf16",
        ],
    ),
    ("bench --fp16", &["--fp16 is not supported", "Fix: --bf16, or leave it out"]),
    (
        "--fp8-format hybrid --bf16 --fp8-recipe rowwise --fp8-param-gather",
        &["precision.fp8_param_gather = true with precision.fp8_recipe = \"rowwise\"", "set precision.fp8_recipe"],
    ),
    ("--fp8-format hybrid", &["precision.fp8 = \"hybrid\" with precision.compute = \"f32\"", "(--bf16)"]),
    (
        "--fp8-format hybrid --bf16 --seq-length 12 --micro-batch-size 1",
        &["tokens of a microbatch = 12", "multiples of 16", "so that it is 16"],
    ),
    (
        "--fp8-format hybrid --bf16 --fp8-recipe blockwise",
        &["precision.fp8 = \"hybrid\" with precision.fp8_recipe = \"blockwise\"", "(--fp8-format e4m3)"],
    ),
    ("--fp8-format hybrid --bf16 --head-dim 15", &["queries, keys and values of a rank = 180", "so that it is 192"]),
    ("--bf16-blocks 1", &["precision.bf16_blocks = [1]", "two numbers"]),
    ("--disable-bias-linear --bias true", &["--bias true", "equals sign"]),
    ("--train-samples 100 --steps 5", &["--train-samples 100 with train.steps", "VALUE / train.global_batch_size"]),
    ("--external-cuda-graph", &["--external-cuda-graph", "Fix: --enable-cuda-graph"]),
    ("--adam-beta1 high", &["optimizer.betas = ", "a list of numbers"]),
    (
        "--max-position-embeddings 48",
        &["model.seq_length = 64 with model.max_position_embeddings = 48", "set model.seq_length = 48 or less"],
    ),
    (
        "--fp8-interval 2 --rotary-percent=0.5 --fp16",
        &[
            "3 flags are not accepted: --fp8-interval 2, --rotary-percent 0.5, --fp16. Rule: ",
            "\n  --rotary-percent 0.5: rotary positions turn all channels of a head. Fix: ",
        ],
    ),
    (
        "--kv-latent 16 --rotary-head-dim 5 --head-dim 8",
        &["model.rotary_head_dim = 5 with 8 channels of a head", "an even number", "set model.rotary_head_dim = 4"],
    ),
    (
        "--preset tiny-llama --kv-latent 16 --rotary-head-dim 4 --kv-heads 2",
        &["model.kv_latent = 16 with model.kv_heads", "latent attention does not have it", "leave model.kv_heads out"],
    ),
    ("--multi-latent-attention", &["attention is latent if its width is given", "Fix: --kv-lora-rank"]),
    (
        "bench --moe-router-topk-limited-devices 4",
        &["--moe-router-topk-limited-devices is not supported", "Fix: leave it out"],
    ),
    ("--exit-duration-in-mins 0", &["train.exit_duration_minutes = 0", "more than 0 minutes"]),
    ("--reset-attention-mask", &["data.reset_attention_mask without data.path", "set data.path"]),
    ("--reset-position-ids --preset tiny-llama", &["data.reset_position_ids with model.position = \"rotary\""]),
    ("--bf16 --compute f32", &["--bf16 with precision.compute = f32", "Fix: give one of them"]),
    ("--split 0,1,1", &["data.split = \"0,1,1\"", "the value is a number"]),
    ("--cuda-graph-scope moe_preprocess", &["cuda_graph.scope = \"moe_preprocess\"", "[\"moe_router\", \"moe_preproc"]),
    (
        "--cuda-graph-scope attn --cuda-graph-modules mlp",
        &["--cuda-graph-scope attn with --cuda-graph-modules", "an older form of --cuda-graph-modules attention"],
    ),
    (
        "--enable-cuda-graph --cuda-graph-modules attn moe_router",
        &["[\"attention\", \"moe_router\"] with model.experts = 0", "modules of experts", "or set model.experts"],
    ),
    ("--cuda-graph-modules mlp,atention", &["[\"mlp\", \"atention\"]", "any of embedding", "mean `attention`?"]),
    ("--cuda-graph-modules mlp,norm", &["[\"mlp\", \"norm\"]", "set cuda_graph.modules to a list of any of"]),
    ("--cuda-graph-layers one", &["cuda_graph.layers = \"one\"", "a list of whole numbers"]),
    ("--cuda-graph-impl other", &["--cuda-graph-impl other is not supported", "Fix: --cuda-graph-impl local"]),
    ("export", &["`export` is not a subcommand", "Fix: trainer convert --to hf"]),
    ("merge", &["`merge` is not a subcommand", "Fix: trainer convert"]),
    ("serve", &["`serve` is not a subcommand", "Fix: trainer convert --to hf"]),
    ("sft", &["`sft` is not a subcommand", "add --sft"]),
    ("train", &["`train` is not a subcommand", "leave it out: without a subcommand the trainer trains"]),
    ("finetune", &["`finetune` is not a subcommand", "add --init-from"]),
    ("--preset gpt2-small", &["model.preset = \"gpt2-small\"", "Fix: set model.preset = \"gpt2-124m\""]),
    ("--steps 5 --steps 6", &["--steps <VALUE> is given twice", "--set train.steps=VALUE"]),
    ("job slurm --nodes 1 -- --gpu h100", &["--gpu without --dry-run", "leave --gpu out"]),
    ("--cuda-graph-impl local more", &["`more`", "a value too many"]),
    ("--cuda-graph-scope attn wombat", &["cuda_graph.modules", "wombat"]),
    (
        "--cuda-graph-impl none --enable-cuda-graph",
        &["--cuda-graph-impl none with cuda_graph.enable = true", "give one of them"],
    ),
    (
        "--cuda-graph-impl full_iteration --cuda-graph-modules attn",
        &[
            "cuda_graph.modules = [\"attention\"] with cuda_graph.scope = \"full_iteration\"",
            "full_iteration the whole step",
        ],
    ),
    (
        "--cuda-graph-impl full_iteration --cuda-graph-granularity chunk",
        &["--cuda-graph-impl full_iteration with cuda_graph.scope = per_chunk", "give one of them"],
    ),
    (
        "--cuda-graph-granularity block",
        &["--cuda-graph-granularity block is not supported", "Fix: --cuda-graph-granularity layer or chunk"],
    ),
    (
        "--cuda-graph-impl local --cuda-graph-granularity chunk --cuda-graph-modules attn",
        &["cuda_graph.modules = [\"attention\"] with cuda_graph.scope = \"per_chunk\"", "a chunk of layers"],
    ),
    (
        "--print-activations h.0 --enable-cuda-graph --cuda-graph-scope per_chunk",
        &["print_activations = [\"h.0\"] with cuda_graph.scope = \"per_chunk\"", "per_layer"],
    ),
    (
        "--enable-cuda-graph --cuda-graph-scope full_iteration --cuda-graph-layers 1",
        &["cuda_graph.layers = [1] with cuda_graph.scope = \"full_iteration\"", "\"per_layer\""],
    ),
    (
        "--enable-cuda-graph --cuda-graph-layers 1 4",
        &["cuda_graph.layers = [1, 4]: there is no layer 4", "the head, is 3", "from 0 to 3"],
    ),
    (
        "--enable-cuda-graph --cuda-graph-layers 1,2 --cuda-graph-modules head",
        &["cuda_graph.modules = [\"head\"] with cuda_graph.layers = [1, 2]", "layer 3 the head"],
    ),
    (
        "--enable-cuda-graph --cuda-graph-modules mlp --recompute-granularity full --cuda-graph-mempool single",
        &[
            "cuda_graph.modules = [\"mlp\"] with recompute.granularity = \"full\"",
            "both attention and mlp (moe for experts)",
        ],
    ),
    (
        "--enable-cuda-graph --cuda-graph-modules attention --attention=false",
        &["cuda_graph.modules = [\"attention\"] with model.attention = false", "leave attention out"],
    ),
    (
        "--enable-cuda-graph --kind mlp --cuda-graph-modules mlp",
        &["cuda_graph.modules = [\"mlp\"] with model.kind = \"mlp\"", "set cuda_graph.layers instead"],
    ),
    ("--cuda-graph-scope all", &["cuda_graph.scope = \"all\"", "for example, set cuda_graph.scope = \"per_layer\""]),
    // Keys and the kinds of their values.
    ("--set train.stpes=5", &["`train.stpes`", "did you mean `train.steps`?"]),
    ("--set steps=5", &["`steps`", "did you mean `train.steps`?"]),
    ("--steps many", &["train.steps = \"many\"", "a whole number"]),
    ("--steps -5", &["train.steps = -5", "0 or more"]),
    ("--steps 1.5", &["train.steps = 1.5", "a whole number"]),
    ("--lr high", &["optimizer.lr = \"high\"", "a number"]),
    ("--lr inf", &["optimizer.lr = inf", "a number"]),
    ("--layer-sizes 5.5", &["model.layer_sizes = [5.5]", "a list of whole numbers"]),
    ("--enable-cuda-graph=maybe", &["cuda_graph.enable = \"maybe\"", "true or false"]),
    ("--optimizer adamm", &["optimizer.kind = \"adamm\"", "did you mean `adamw`?"]),
    ("--preset gpt2-125m", &["model.preset = \"gpt2-125m\"", "did you mean `gpt2-124m`?"]),
    ("--compute fp16", &["precision.compute = \"fp16\"", "did you mean `bf16`?"]),
    ("--device cuda:1", &["train.device = \"cuda:1\"", "set CUDA_VISIBLE_DEVICES=1, and train.device = \"cuda\""]),
    ("--save s3://bucket/run", &["checkpoint.dir = \"s3://bucket/run\"", "mounted file systems", "mount the bucket"]),
    ("--data-path gs://bucket/text", &["\"gs://bucket/text\"", "copy the data"]),
    ("--set train.lr=1e-4", &["`train.lr`", "did you mean `optimizer.lr`?"]),
    ("--preset gpt2", &["model.preset = \"gpt2\"", "did you mean `gpt2-124m`?"]),
    ("--max_iters 10", &["--max_iters is unknown", "it is nanoGPT's name", "Fix: --steps"]),
    (
        "--per_device_train_batch_size 4 --training.seq_len 32",
        &[
            "--per_device_train_batch_size: it is Hugging Face's name",
            "\n  --training.seq_len: it is torchtitan's name. Fix: --seq-length",
        ],
    ),
    ("--device tpu", &["train.device = \"tpu\"", "auto, host, cuda"]),
    // Values that are empty, or that nothing would take.
    ("--save=", &["checkpoint.dir = \"\" (--checkpoint-dir)", "not empty", "or leave it out"]),
    ("--log-dir=", &["logging.dir = \"\"", "not empty"]),
    ("--trace=", &["logging.trace = \"\"", "not empty"]),
    ("--cuda-graph-modules=", &["cuda_graph.modules = \"\"", "or leave it out"]),
    ("--cuda-graph-layers=", &["cuda_graph.layers = \"\"", "or leave it out"]),
    ("--init-from=", &["model.init_from = \"\"", "not empty"]),
    ("--data-path=", &["data.path = \"\"", "a path"]),
    ("--set data.validation_path=[\"\"]", &["data.validation_path = [\"\"]", "a list of paths"]),
    ("--config=", &["--config <FILE> has no value"]),
    ("--graph-report=", &["--graph-report <FILE> has no value"]),
    ("--layers 2 --print-activations h.2", &["print_activations = [\"h.2\"]", "the model has embedding, h.0 to h.1"]),
    (
        "--print-activations h.0 --enable-cuda-graph --cuda-graph-scope full_iteration",
        &["print_activations = [\"h.0\"] with cuda_graph.scope", "the host waits for what is printed", "per_layer"],
    ),
    ("profile --html absent/page.html", &["--html absent/page.html is in a folder that does not exist"]),
    ("tokenize --output= file", &["--output <DIR> has no value"]),
    ("batches --output=", &["--output <FILE> has no value"]),
    ("--seed 18446744073709551615", &["train.seed = \"18446744073709551615\"", "below 2^63"]),
    ("--graph-report g.dot", &["--graph-report g.dot", "the file is JSON", "--graph-report g.json"]),
    ("--tokenizer absent.json", &["data.tokenizer without data.path", "--data-path"]),
    ("--end-of-text x", &["data.end_of_text without data.path", "leave it out"]),
    ("--validation-path file", &["data.validation_path without data.path"]),
    ("--validation-sets a=file", &["data.validation_sets without data.path"]),
    ("--raw-tokens u16", &["data.raw_tokens without data.path"]),
    ("--kind mlp --data-path file", &["data.path with model.kind = \"mlp\"", "an MLP trains on generated data"]),
    // Models.
    ("--hidden 65", &["model.hidden = 65 with model.heads = 4", "set model.hidden = 68"]),
    ("--heads 0", &["model.heads = 0", "at least 1"]),
    ("--kv-heads 3", &["model.kv_heads = 3", "a multiple"]),
    ("--layers 0", &["model.layers = 0", "at least 1"]),
    ("--layers 99999", &["model.layers = 99999", "at most 4096"]),
    ("--seq-length 0", &["model.seq_length = 0", "at least 1"]),
    ("--vocab 255", &["model.vocab = 255", "bytes, 0 to 255", "256"]),
    ("--vocab 900000000 --hidden 900000", &["900000000 x 900000", "2^44"]),
    ("--kv-channels 0", &["model.head_dim = 0", "at least 1"]),
    ("--hidden 65 --head-dim 1048576 --heads 1048576", &["model.hidden x heads x head_dim = 65 x 1048576 x 1048576"]),
    ("--attention-soft-cap 0", &["model.attention_soft_cap = 0", "above 0"]),
    ("--logit-soft-cap -1", &["model.logit_soft_cap = -1", "above 0"]),
    ("--query-pre-attn-scalar 0", &["model.query_pre_attn_scalar = 0", "above 0"]),
    ("--position rotary --rope-window-base 1", &["model.rope_window_base = 1", "above 1"]),
    (
        "--norm rmsnorm_1p --qk-norm --qk-norm-over all_heads",
        &["\"all_heads\" with model.norm = \"rmsnorm_1p\"", "each_head"],
    ),
    ("--position rotary --head-dim 3", &["\"rotary\" with head_dim = 3", "even", "set model.head_dim = 4"]),
    ("--qk-norm", &["model.qk_norm = true with model.norm = \"layernorm\"", "set model.norm = \"rmsnorm\""]),
    ("--qk-layernorm --norm rmsnorm --head-dim 514", &["514 channels of a head", "at most 512", "head_dim = 512"]),
    ("--sliding-window 0", &["model.sliding_window = 0"]),
    (
        "--sliding-window 8 --window-pattern [2,1]",
        &["model.window_pattern = [2, 1]", "set model.window_pattern = [1, 0]"],
    ),
    ("--position rotary --hidden 12", &["hidden / heads = 3", "even", "set model.hidden = 16"]),
    ("--position rotary --rope-base 0.5", &["model.rope_base = 0.5", "above 1"]),
    ("--position rotary --rope-scaling [8,1]", &["[8.0, 1.0]", "factor >= 1"]),
    ("--hidden-dropout 1", &["model.hidden_dropout = 1", "[0, 1)"]),
    ("--attention-dropout -0.1", &["model.attention_dropout = -0.1", "[0, 1)"]),
    ("--norm-eps 0", &["model.norm_eps = 0", "above 0"]),
    ("--init-std 0", &["model.init_std = 0", "above 0"]),
    ("--kind mlp --layer-sizes [4]", &["model.layer_sizes = [4]", "an input and an output"]),
    ("--kind mlp --dropouts [1.5]", &["model.dropouts = 1.5", "[0, 1)"]),
    ("--init-from absent", &["model.init_from = absent does not exist", "check the path"]),
    ("--init-from empty", &["empty has neither config.json nor config.toml"]),
    // Batches, steps and optimizers.
    ("--global-batch-size 15", &["= 15 with micro_batch_size = 2 on 1 rank", "multiple", "14 or 16"]),
    ("--rampup-batch-size [4,4]", &["rampup_batch_size = [4, 4]", "an increment and a number of samples"]),
    ("--rampup-batch-size [4,0,100]", &["rampup_batch_size = [4, 0, 100]", "above 0"]),
    ("--rampup-batch-size [3,2,100]", &["rampup_batch_size = [3, 2, 100]", "multiples of micro_batch_size", "= 2"]),
    ("--rampup-batch-size [4,8,100]", &["rampup_batch_size = [4, 8, 100]", "global_batch_size = 16"]),
    ("--micro-batch-size 32", &["= 16 with micro_batch_size = 32", "= 32"]),
    ("--micro-batch-size 0", &["train.micro_batch_size = 0", "at least 1"]),
    ("--steps 0", &["train.steps = 0", "at least 1"]),
    ("--steps 9999999999", &["train.steps = 9999999999", "at most"]),
    ("--threads 0", &["train.threads = 0", "at least 1"]),
    ("--bucket-mib 0", &["parallel.bucket_mib = 0", "at least 1"]),
    ("--log-interval 0", &["logging.interval = 0", "at least 1"]),
    ("--split 0", &["data.split = 0", "above 0"]),
    ("--lr 0", &["optimizer.lr = 0", "above 0"]),
    ("--min-lr 1", &["optimizer.min_lr = 1", "at or below optimizer.lr"]),
    ("--betas [0.9]", &["optimizer.betas = [0.9]", "two"]),
    ("--betas [0.9,1.5]", &["optimizer.betas = 1.5", "[0, 1)"]),
    ("--eps 0", &["optimizer.eps = 0", "above 0"]),
    ("--weight-decay -1", &["optimizer.weight_decay = -1", "negative"]),
    ("--optimizer sgd --momentum 1", &["optimizer.momentum = 1", "[0, 1)"]),
    ("--enable-cuda-graph --cuda-graph-warmup-steps 0", &["cuda_graph.warmup_steps = 0", "once before"]),
    // Pipelines.
    ("--pipeline-model-parallel-size 0", &["parallel.pipeline = 0", "at least 1", "set parallel.pipeline = 1"]),
    ("--virtual-pipeline-model-parallel-size 0", &["parallel.virtual_pipeline = 0", "at least 1"]),
    ("--pipeline-model-parallel-size 2", &["parallel.pipeline = 2 on 1 rank", "a multiple of", "multiple of 2 ranks"]),
    ("--pipeline-model-parallel-size 2 --kind mlp", &["parallel.pipeline = 2 with model.kind = \"mlp\""]),
    ("--virtual-pipeline-model-parallel-size 2", &["virtual_pipeline = 2 with parallel.pipeline = 1", "interleaved"]),
    (
        "--microbatch-group-size-per-virtual-pipeline-stage 2",
        &["parallel.microbatch_group = 2 with parallel.virtual_pipeline = 1", "several chunks"],
    ),
    (
        "--pipeline-schedule zero_bubble",
        &["pipeline_schedule = \"zero_bubble\" with parallel.pipeline = 1", "wait for each other", "of 2 or more"],
    ),
    ("--pipeline-schedule gpipe", &["pipeline_schedule = \"gpipe\"", "1f1b, zero_bubble"]),
    ("--pipeline-layers [1,1]", &["parallel.pipeline_layers = [1, 1]", "= 1 numbers", "= [2], or []"]),
    // Configs and recipes.
    ("--config absent.toml", &["absent.toml cannot be read: No such file", "check the path"]),
    ("--config empty", &["empty cannot be read: it is not a regular file"]),
    ("--config gpt2-124m-1xh100", &["`gpt2-124m-1xh100`", "did you mean `gpt2-124m-1xh200`?"]),
    ("configs show zebra", &["`zebra`", "trainer configs list"]),
    ("--config value.toml", &["value.toml is not TOML: line 2: ", "correct that line"]),
    ("--config twice.toml", &["twice.toml is not TOML: line 3: duplicate key"]),
    ("--config section.toml", &["`trian.steps` (section.toml)", "did you mean `train.steps`?"]),
    ("--config key.toml", &["`train.stpes` (key.toml)", "did you mean `train.steps`?"]),
    ("--config type.toml", &["train.steps = \"many\" (type.toml)"]),
    ("--config flat.toml", &["train = 5 (flat.toml)", "`train` is a section", "[train]"]),
    ("--config binary.toml", &["binary.toml cannot be read", "UTF-8"]),
    // Folders.
    ("--log-dir file", &["logging.dir = file", "set logging.dir to another folder"]),
    ("--save file --log-dir log", &["checkpoint.dir = file: checkpoints.lock cannot be written", "set another"]),
    ("--resume absent --log-dir log", &["checkpoint.resume = absent does not exist", "check the path"]),
    ("--resume empty --log-dir log", &["checkpoint.resume = empty holds no checkpoint"]),
    ("checkpoint list absent", &["absent does not exist"]),
    ("checkpoint list empty", &["empty holds no checkpoint"]),
    ("convert --to hf absent out", &["absent does not exist"]),
    ("batches --output nowhere/out", &["--output nowhere/out: No such file", "that can be written"]),
    (
        "batches --output out --validation v --eval-iters 0",
        &["--validation with train.eval_steps = 0", "leave --validation"],
    ),
    ("batches --output out --validation file/v", &["--validation file/v: Not a directory", "that exists"]),
    ("tokenize --output file/out value.toml", &["cannot be written: Not a directory", "a folder that can be created"]),
    // Files that are written after the steps.
    ("--trace nowhere/t.json", &["logging.trace = nowhere/t.json: No such file", "a folder that exists"]),
    ("--trace empty", &["logging.trace = empty: it is not a regular file", "a regular file that can be written"]),
    ("--graph-report file/g.json", &["--graph-report file/g.json: Not a directory", "a folder that exists"]),
    ("--graph-report taken.json", &["--graph-report taken.dot: it is not a regular file", "that can be written"]),
    // Supervision and clusters.
    ("supervise", &["missing: <COMMAND>", "needs these arguments"]),
    (
        "supervise -- mpirun -n 2 other",
        &["mpirun -n 2 other does not start the trainer", "trainer supervise -- trainer launch -n 8 -- --save"],
    ),
    ("supervise -- trainer launch -n 2 -- --steps 5", &["checkpoint.dir is unset", "add --save DIR"]),
    ("supervise -- trainer --save s --stepz 5", &["--stepz", "did you mean --steps?"]),
    ("supervise -- trainer doctor", &["these flags do not train"]),
    ("supervise -- trainer --save s --dry-run", &["these flags do not train"]),
    ("job slurm -- --help", &["these flags do not train"]),
    ("supervise -- /no/such/trainer --save s", &["/no/such/trainer cannot be started: No such file"]),
    ("job slurm -- --steps 5", &["checkpoint.dir is unset", "add --save DIR"]),
    ("job slurm --nodes 3 -- --save s", &["global_batch_size"]),
    ("job slurm --time 1__h -- --save s --global-batch-size 64", &["--time 1 h", "one of Slurm's forms", "days-hours"]),
    (
        "job slurm --time 5 -- --save s --global-batch-size 64",
        &["--time 5 with --notice-seconds 300", "asked to end 300 s before", "a longer --time"],
    ),
    ("job slurm --qos a;b -- --save s", &["--qos a;b", "letters, digits"]),
    ("job slurm --sbatch h100 -- --save s", &["--sbatch h100", "in one line", "--constraint=h100"]),
    ("job slurm --sbatch --nodes=2 -- --save s", &["--sbatch --nodes=2", "planned with it", "use --nodes"]),
    ("job slurm --setup it's -- --save s", &["--setup it\\'s", "closed quotes", "a --setup each"]),
    ("job slurm --container-mounts /x -- --save s", &["--container-mounts /x", "the ranks run in none"]),
    (
        "job slurm --container-image i --container-mounts /x:/y --starter srun -- --save s",
        &["--container-mounts /x:/y", "the same inside and outside", "name the folder alone"],
    ),
    ("job slurm --container-image i -- --save s", &["--container-image i with --starter mpirun", "add --starter srun"]),
    (
        "job slurm --container-image i --apptainer i -- --save s",
        &["--container-image <IMAGE> with --apptainer <IMAGE>", "one excludes the other"],
    ),
    (
        "job slurm --apptainer i -- --save ../s --global-batch-size 64",
        &["checkpoint.dir = ../s is not in the container", "--container-mounts FOLDER"],
    ),
    (
        "job slurm -- --save s --global-batch-size 64 --data-path 0.3 file 0.7 absent",
        &["data.path = absent is not on this machine", "share their files", "--only-on-nodes FOLDER"],
    ),
    (
        "job slurm --only-on-nodes /lustre -- --save s --global-batch-size 64 --data-path /lustre2/a",
        &["data.path = /lustre2/a is not on this machine"],
    ),
    (
        "job hosts --hosts a,b -- --save s --global-batch-size 64 --data-path file --tokenizer absent.json",
        &["data.tokenizer = absent.json is not on this machine"],
    ),
    (
        "job hosts --hosts a,b -- --save s --global-batch-size 64 --resume absent",
        &["checkpoint.resume = absent is not on this machine"],
    ),
    (
        "job kubernetes --image i --claim c -- --save s --global-batch-size 64",
        &["checkpoint.dir = s in a pod", "the shared storage at /data", "such as /data/s"],
    ),
    (
        "job kubernetes --image i --claim c --mount /m -- --save /m/s --global-batch-size 64 --data-path file",
        &["data.path = file in a pod", "such as /m/file"],
    ),
    (
        "job kubernetes --image i --claim c -- --config steps.toml --save /data/s --global-batch-size 64",
        &["--config steps.toml", "pods do not see the files of this machine", "use a recipe"],
    ),
    ("job kubernetes --image i --claim c --mount m -- --save /m/s", &["--mount m", "an absolute path"]),
    ("job hosts --hosts a,b;c -- --save s --global-batch-size 64", &["--hosts b;c", "letters, digits"]),
    ("job kubernetes --image i --claim c --name A -- --save /data/s", &["--name A", "lower-case"]),
    // Sampling.
    ("sample", &["missing: --checkpoint <DIR>"]),
    ("sample --checkpoint --tokens 5", &["--checkpoint <DIR> has no value"]),
    ("sample --checkpoint absent", &["absent does not exist", "check the path"]),
    ("sample --checkpoint empty", &["empty has neither config.json nor config.toml"]),
    ("sample --checkpoint mlp", &["model.kind = \"mlp\"", "only a gpt generates text"]),
    ("sample --checkpoint words", &["has 400 tokens, and no tokenizer", "--tokenizer"]),
    ("sample --checkpoint words --tokenizer absent.json", &["absent.json", "No such file"]),
    ("sample --checkpoint bytes --prompt a__prompt__of__more__than__8", &["has 23 tokens", "context of 8 tokens"]),
    ("sample --checkpoint bytes --prompt-file absent", &["--prompt-file absent cannot be read"]),
    ("sample --checkpoint bytes --prompt-file binary.toml", &["binary.toml cannot be read", "UTF-8"]),
    ("sample --checkpoint bytes --prompt x", &["model.safetensors cannot be read", "safetensors"]),
    (
        "sample --checkpoint bytes --prompt a --prompt-file file",
        &["--prompt <TEXT> with --prompt-file <FILE>", "one excludes the other"],
    ),
    ("sample --checkpoint bytes --temperature -1", &["--temperature -1", "0 or more"]),
    ("sample --checkpoint bytes --top-p 0", &["--top-p 0", "above 0", "--top-p 0.9"]),
    ("sample --checkpoint bytes --top-k -1", &["`-1` for --top-k <K>"]),
];

#[test]
fn every_mistake_is_one_line_with_the_value_the_rule_and_the_fix() {
    let folder = Folder::new("mistakes");
    std::fs::create_dir(folder.path("empty")).unwrap();
    std::fs::create_dir(folder.path("taken.dot")).unwrap();
    for (name, text) in [
        ("file", ""),
        ("value.toml", "[train]\nsteps = \n"),
        ("twice.toml", "[train]\nsteps = 1\nsteps = 2\n"),
        ("section.toml", "[trian]\nsteps = 1\n"),
        ("key.toml", "[train]\nstpes = 1\n"),
        ("type.toml", "[train]\nsteps = \"many\"\n"),
        ("flat.toml", "train = 5\n"),
        ("steps.toml", "[train]\nsteps = 5\n"),
        ("traced.toml", "[logging]\ntrace = \"t.json\"\n"),
        ("mlp/config.toml", "[model]\nkind = \"mlp\"\n"),
        ("words/config.toml", "[model]\nvocab = 400\n"),
        ("bytes/config.toml", "[model]\nseq_length = 8\n"),
    ] {
        let path = folder.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    std::fs::write(folder.path("binary.toml"), [0xff, 0xfe]).unwrap();
    let all = FLAGS.iter().flat_map(|(flags, needles)| problems(&folder.0, flags, &[], needles));
    let all: Vec<String> = all.collect();
    assert!(all.is_empty(), "{}", all.concat());
    for left in ["runs", "out", "log/metrics.jsonl"] {
        assert!(!folder.path(left).exists(), "{left} was made");
    }
}
