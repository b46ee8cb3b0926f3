//! The table of all options: key, type, flag, default, meaning. Help, `docs/options.md`, parsing, defaults and the sections of a
//! configuration are made from it.

use std::iter::once;
use std::sync::{LazyLock, OnceLock};

use common::Choice;
use data::RawTokens;
use engine::fp8::Fp8Recipe;
use engine::graph_options::GraphModule;
use engine::precision::Precision;
use serde::{Deserialize, Serialize};

use crate::config::choices::*;
use crate::config::optimizers::OptimizerChoice;
use crate::families::Preset;

/// The kind of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`. The flag alone means true.
    Bool,
    /// A whole number, 0 or more.
    Integer,
    /// A number.
    Float,
    /// Text that is not empty.
    Text,
    /// One of the words of a [`Choice`].
    Choice(&'static [&'static str]),
    /// Any words of a [`Choice`].
    Choices(&'static [&'static str]),
    /// Whole numbers.
    Integers,
    /// Numbers.
    Floats,
    /// A list of texts, none empty. The flag takes several values.
    Texts,
    /// A path, or a list of paths, or of weights and paths. The flag takes several values.
    Paths,
}

impl Kind {
    /// A description of the values that are allowed.
    pub fn expected(self) -> String {
        match self {
            Kind::Bool => "true or false".into(),
            Kind::Integer => "a whole number, 0 or more and below 2^63".into(),
            Kind::Float => "a number".into(),
            Kind::Text => "text, not empty".into(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Choices(words) => format!("a list of any of {}", words.join(", ")),
            Kind::Integers => "a list of whole numbers".into(),
            Kind::Floats => "a list of numbers".into(),
            Kind::Texts => "a list of texts, none of them empty".into(),
            Kind::Paths => "a path, a list of paths, or a list of weights and paths in turn".into(),
        }
    }
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// `section.name`, as in a TOML file.
    pub key: &'static str,
    /// The flag, without the leading dashes.
    pub flag: &'static str,
    /// Other names of the flag, among those Megatron's.
    pub aliases: &'static [&'static str],
    /// A TOML value. Empty if the option is unset by default.
    pub default: &'static str,
    /// The kind of the option's value.
    pub kind: Kind,
    /// The option's effect, for help and documents.
    pub doc: &'static str,
}

/// An option.
pub(crate) const fn option(
    key: &'static str,
    flag: &'static str,
    aliases: &'static [&'static str],
    default: &'static str,
    kind: Kind,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, flag, aliases, default, kind, doc }
}

impl OptionSpec {
    /// All names of the flag.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        once(self.flag).chain(self.aliases.iter().copied())
    }
}

static ALL: OnceLock<Vec<OptionSpec>> = OnceLock::new();

/// All options, by section: the trainer's, then those that the program adds.
pub fn options() -> &'static [OptionSpec] {
    ALL.get().unwrap_or(&BUILT_IN)
}

/// Adds options, and words to the choices of some of the trainer's, by key. Called once, before anything asks for options.
pub(crate) fn add(options: impl IntoIterator<Item = OptionSpec>, words: &[(&str, Vec<&'static str>)]) {
    let with_words = |mut option: OptionSpec| {
        for (_, more) in words.iter().filter(|(key, _)| *key == option.key) {
            if let Kind::Choice(known) = option.kind {
                option.kind = Kind::Choice([known, more].concat().leak());
            }
        }
        option
    };
    let all = BUILT_IN.iter().copied().map(with_words).chain(options).collect();
    assert!(ALL.set(all).is_ok(), "options are added once");
}

/// A section of the configuration: its fields, each with its type and its option: flag, other flags, default, kind, doc.
macro_rules! section {
    ($name:ident, $section:literal: $($field:ident: $type:ty, $flag:literal, [$($alias:literal),*], $default:literal, $kind:expr, $doc:literal;)*) => {
        #[doc = concat!("The section `", $section, "` of the configuration. Its options document its fields.")]
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs, reason = "the options document every field")]
        pub struct $name { $(pub $field: $type),* }

        impl $name {
            const OPTIONS: &[OptionSpec] = &[
                $(option(concat!($section, ".", stringify!($field)), $flag, &[$($alias),*], $default, $kind, $doc)),*
            ];
        }
    };
}

/// The trainer's options, by section.
static BUILT_IN: LazyLock<Vec<OptionSpec>> = LazyLock::new(|| {
    [
        ModelConfig::OPTIONS,
        DATA,
        DpoConfig::OPTIONS,
        TrainConfig::OPTIONS,
        OptimizerConfig::OPTIONS,
        PrecisionConfig::OPTIONS,
        ParallelConfig::OPTIONS,
        RecomputeConfig::OPTIONS,
        OffloadConfig::OPTIONS,
        CudaGraphConfig::OPTIONS,
        CheckpointConfig::OPTIONS,
        LoggingConfig::OPTIONS,
    ]
    .concat()
});

section! { ModelConfig, "model":
    preset: Preset, "preset", ["model"], "\"tiny\"", Kind::Choice(Preset::WORDS), "Sizes to start from. Every other model option overrides them";
    init_from: Option<String>, "init-from", ["pretrained-checkpoint"], "", Kind::Text, "Folder whose weights training starts from: a Hugging Face model, adapters of PEFT, a checkpoint, or what `trainer convert` wrote. It also sets the model's options; other flags override them. A run that resumes from a checkpoint does not read it";
    kind: ModelKind, "kind", [], "\"gpt\"", Kind::Choice(ModelKind::WORDS), "Decoder-only transformer (GPT-2, Llama, Qwen), or the multi-layer perceptron of the benchmarks";
    layers: usize, "layers", ["num-layers"], "2", Kind::Integer, "Transformer blocks";
    hidden: usize, "hidden", ["hidden-size"], "64", Kind::Integer, "Width of the residual stream";
    heads: usize, "heads", ["num-attention-heads"], "4", Kind::Integer, "Attention heads. They divide hidden evenly, unless head_dim is set";
    kv_heads: Option<usize>, "kv-heads", ["num-query-groups"], "", Kind::Integer, "Key and value heads, shared by groups of attention heads. Unset: as many as heads";
    head_dim: Option<usize>, "head-dim", ["kv-channels"], "", Kind::Integer, "Channels of a head. Unset: hidden / heads";
    ffn: Option<usize>, "ffn", ["ffn-hidden-size"], "", Kind::Integer, "Width of the feed-forward layer. Unset: 4 x hidden, or for swiglu and geglu 8/3 x hidden rounded up to a multiple of 256";
    vocab: usize, "vocab", ["vocab-size"], "256", Kind::Integer, "Number of tokens. Without a preset or model.init_from the default is that of the data's tokenizer, 256 for bytes. In memory it is padded to a multiple of 128 x parallel.tensor";
    seq_length: usize, "seq-length", [], "64", Kind::Integer, "Tokens of a sequence";
    max_position_embeddings: Option<usize>, "max-position-embeddings", [], "", Kind::Integer, "learned: positions that the model has, at least model.seq_length. Unset: model.seq_length, or those of the model of init_from";
    attention: bool, "attention", [], "true", Kind::Bool, "Blocks have attention. Without it a model sees one token at a time";
    sliding_window: Option<usize>, "sliding-window", [], "", Kind::Integer, "Tokens that a token sees at most, itself among them. Unset: all before it";
    window_pattern: Vec<usize>, "window-pattern", [], "[]", Kind::Integers, "Which blocks have the sliding_window: 1 with, 0 without, repeated over all blocks. [1, 0] is every other one, from the first. Empty: all";
    query_pre_attn_scalar: Option<f64>, "query-pre-attn-scalar", [], "", Kind::Float, "Products of queries and keys are divided by its root. Unset: the channels of a head";
    attention_soft_cap: Option<f64>, "attention-soft-cap", [], "", Kind::Float, "Attention scores s become cap x tanh(s / cap), as in Gemma 2. Unset: no cap";
    attention_sinks: bool, "attention-sinks", [], "false", Kind::Bool, "Each head has a learnt score that takes part in the softmax and has no value (as gpt-oss)";
    kv_latent: Option<usize>, "kv-latent", ["kv-lora-rank"], "", Kind::Integer, "Latent attention (as DeepSeek-V2): width of the vector that keys and values of all heads follow from. head_dim is then the channels of a query, rotated ones among them. Unset: grouped attention";
    query_latent: Option<usize>, "query-latent", ["q-lora-rank"], "", Kind::Integer, "kv_latent: width of the vector that queries follow from. Unset: they follow from the residual stream";
    rotary_head_dim: usize, "rotary-head-dim", ["qk-pos-emb-head-dim"], "64", Kind::Integer, "kv_latent: channels of a query and key that rotate. Those of keys are the same for all heads";
    value_head_dim: Option<usize>, "value-head-dim", ["v-head-dim"], "", Kind::Integer, "kv_latent: channels of a value. Unset: head_dim - rotary_head_dim";
    logit_soft_cap: Option<f64>, "logit-soft-cap", [], "", Kind::Float, "The head's logits z become cap x tanh(z / cap), as in Gemma 2. Unset: no cap";
    norm: Normalization, "norm", ["normalization"], "\"layernorm\"", Kind::Choice(Normalization::WORDS), "Normalisation before attention, feed-forward and head. rmsnorm_1p multiplies by 1 + weight (as Gemma)";
    norm_eps: f64, "norm-eps", ["norm-epsilon", "layernorm-epsilon"], "1e-5", Kind::Float, "Number added to the variance in norms";
    norm_placement: NormPlacement, "norm-placement", [], "\"pre\"", Kind::Choice(NormPlacement::WORDS), "Norms of blocks: before attention and feed-forward, after them (as OLMo 2 has them), or both (as Gemma)";
    activation: FeedForward, "activation", [], "\"gelu\"", Kind::Choice(FeedForward::WORDS), "Feed-forward layer: GELU (tanh form), or SwiGLU or GeGLU with a third matrix. clamped_swiglu is that of gpt-oss: gate x sigmoid(1.702 gate) of a gate of at most 7, times 1 + a gated value within -7 and 7";
    experts: usize, "experts", ["num-experts"], "0", Kind::Integer, "Experts of a feed-forward layer. Each token passes experts_per_token of them. 0: layers are dense";
    experts_per_token: usize, "experts-per-token", ["moe-router-topk"], "2", Kind::Integer, "Experts that a token passes";
    expert_groups: usize, "expert-groups", ["moe-router-num-groups"], "1", Kind::Integer, "Groups of neighbouring experts. A token chooses from the expert_groups_per_token of them with the highest scores (as DeepSeek-V3). 1: from all experts";
    expert_groups_per_token: usize, "expert-groups-per-token", [], "1", Kind::Integer, "expert_groups: groups that a token chooses from";
    expert_group_score: ExpertGroupScore, "expert-group-score", [], "\"two_highest\"", Kind::Choice(ExpertGroupScore::WORDS), "expert_groups: a group's score, from those of its experts: the highest (DeepSeek-V2), or the sum of the two highest (DeepSeek-V3)";
    expert_ffn: Option<usize>, "expert-ffn", ["moe-ffn-hidden-size"], "", Kind::Integer, "Width of an expert. Unset: as ffn";
    shared_expert_ffn: usize, "shared-expert-ffn", ["moe-shared-expert-intermediate-size"], "0", Kind::Integer, "Width of the shared expert, which every token passes too. 0: there is none";
    expert_pattern: Vec<usize>, "expert-pattern", [], "[]", Kind::Integers, "Which blocks have experts: 1 with, 0 dense, repeated over all blocks. Empty: all";
    expert_capacity_factor: Option<f64>, "expert-capacity-factor", ["moe-expert-capacity-factor"], "", Kind::Float, "Training only: an expert takes at most this times the mean number of choices of a microbatch, rounded up. Choices beyond it are dropped: they add nothing to their token. Unset: nothing is dropped";
    token_drop_policy: Keeps, "token-drop-policy", ["moe-token-drop-policy"], "\"probs\"", Kind::Choice(Keeps::WORDS), "expert_capacity_factor: an expert keeps the choices with the highest weights (of equal ones those of the first tokens), or position: those of the first tokens of the microbatch";
    router_score: RouterScore, "router-score", ["moe-router-score-function"], "\"softmax\"", Kind::Choice(RouterScore::WORDS), "Scores of experts: softmax over all, or the logistic function of each (as DeepSeek-V3). A token passes the experts with the highest scores";
    router_normalise: bool, "router-normalise", [], "true", Kind::Bool, "The weights of a token's experts, which are their scores, are divided by their sum";
    router_scale: f64, "router-scale", ["moe-router-topk-scaling-factor"], "1.0", Kind::Float, "The weights of a token's experts are multiplied by it";
    router_bias: bool, "router-bias", ["moe-router-enable-expert-bias"], "false", Kind::Bool, "Each expert has a bias that is added to its score for the choice alone. Training moves it towards an equal load (as DeepSeek-V3)";
    position: PositionEmbedding, "position", ["position-embedding-type"], "\"learned\"", Kind::Choice(PositionEmbedding::WORDS), "How the model knows positions: learned vectors, rotated queries and keys, or the causal mask alone";
    rope_base: f64, "rope-base", ["rotary-base"], "10000.0", Kind::Float, "rotary: base of the wavelengths (RoPE theta)";
    rope_scaling: Vec<f64>, "rope-scaling", [], "[]", Kind::Floats, "rotary: numbers of the scaling for longer contexts; see rope_scaling_type. Empty: none";
    rope_scaling_type: RopeScalingType, "rope-scaling-type", [], "\"llama3\"", Kind::Choice(RopeScalingType::WORDS), "rotary: what rope_scaling has. llama3: [factor, low frequency factor, high frequency factor, original context]; yarn: [factor, original context, beta fast, beta slow, attention factor]; yarn_exact: the same, without rounding the numbers of channel pairs (as gpt-oss); linear: [factor]";
    rope_window_base: Option<f64>, "rope-window-base", [], "", Kind::Float, "rotary: base in blocks with the sliding_window, whose wavelengths rope_scaling then leaves alone (as Gemma 3). Unset: as in the others";
    bias: bool, "bias", ["add-bias-linear"], "true", Kind::Bool, "Linear layers and LayerNorms have biases, routers and experts too";
    qkv_bias: bool, "qkv-bias", ["add-qkv-bias"], "false", Kind::Bool, "Queries, keys and values have biases, also with bias = false";
    qk_norm: bool, "qk-norm", ["qk-layernorm"], "false", Kind::Bool, "Queries and keys are normalised, before they are rotated (with norm = \"rmsnorm\" or \"rmsnorm_1p\")";
    qk_norm_over: QkNorm, "qk-norm-over", [], "\"each_head\"", Kind::Choice(QkNorm::WORDS), "qk_norm: over each head (as Qwen3), or over all query heads and all key heads (as OLMo 2)";
    init_std: f64, "init-std", ["init-method-std"], "0.02", Kind::Float, "Standard deviation of the first values of matrices";
    residual_init: ResidualInit, "residual-init", [], "\"scaled\"", Kind::Choice(ResidualInit::WORDS), "First values of matrices that write to the residual stream: standard deviation init_std / sqrt(2 layers) as in GPT-2, or init_std";
    tie_embeddings: bool, "tie-embeddings", [], "true", Kind::Bool, "The head uses the embedding's table";
    scale_embeddings: bool, "scale-embeddings", [], "false", Kind::Bool, "Embedded tokens are multiplied by the root of hidden, as in Gemma";
    mtp_layers: usize, "mtp-layers", ["mtp-num-layers"], "0", Kind::Integer, "Layers that predict tokens beyond the next one, as DeepSeek-V3's: each is one block like the last. They are trained beside the model; evaluation and sampling leave them out. At most 4; 0: none";
    hidden_dropout: f64, "hidden-dropout", [], "0.0", Kind::Float, "Dropout of embeddings, and of what blocks add to the residual stream";
    attention_dropout: f64, "attention-dropout", [], "0.0", Kind::Float, "Dropout of attention probabilities";
    lora_rank: usize, "lora-rank", [], "0", Kind::Integer, "Rank of low-rank adapters (LoRA). With adapters all other parameters keep their values. 0: none";
    lora_alpha: f64, "lora-alpha", [], "16.0", Kind::Float, "What adapters add is multiplied by lora_alpha / lora_rank";
    lora_dropout: f64, "lora-dropout", [], "0.0", Kind::Float, "Dropout of what adapters read";
    lora_target_modules: Vec<String>, "lora-target-modules", [], "[\"all-linear\"]", Kind::Texts, "Linear layers with adapters, by their names in PEFT: for example q_proj v_proj, or for GPT-2 c_attn. all-linear: all in blocks";
    loss_pieces: Option<usize>, "loss-pieces", [], "", Kind::Integer, "Number of pieces in which a microbatch's logits are computed, one in memory at a time. Unset: as few as keep a piece within 1 GiB, or within 3 tensors of (tokens, hidden) for each block";
    layer_sizes: Vec<usize>, "layer-sizes", [], "[4096, 2048, 1024, 512, 256]", Kind::Integers, "mlp: widths of the input, of each hidden layer, and of the output";
    dropouts: Vec<f64>, "dropouts", [], "[0.2, 0.1, 0.1]", Kind::Floats, "mlp: dropout after each hidden layer";
}

/// The options of the section `data`, whose struct is [`DataConfig`](data::DataConfig).
#[rustfmt::skip]
const DATA: &[OptionSpec] = &[
    option("data.path", "data-path", &[], "", Kind::Paths, "Files of text, JSON lines, Parquet or tokens, or folders of them. Several are read end to end, or blended if each has a weight before it. Unset: the embedded Markov source"),
    option("data.validation_path", "validation-path", &["valid-data-path"], "", Kind::Paths, "Data to evaluate on. All of data.path is then for training"),
    option("data.validation_sets", "validation-sets", &[], "[]", Kind::Texts, "Further data to evaluate on, each NAME=PATH with a loss of its own in the log and the metrics. PATH is a file or a folder, read with the tokenizer of data.path. At each evaluation train.eval_steps global batches of its beginning are read"),
    option("data.tokenizer", "tokenizer", &["tokenizer-model"], "\"byte\"", Kind::Text, "Tokenizer for text: byte, a Hugging Face tokenizer.json, or a folder with one. Token files need none. With model.init_from the default is the tokenizer of its folder"),
    option("data.end_of_text", "end-of-text", &[], "", Kind::Text, "Token that ends a document. Unset: the first that the tokenizer has of the usual names"),
    option("data.text_key", "text-key", &["json-key", "json-keys"], "\"text\"", Kind::Text, "Key of the text in JSON lines, or its column in Parquet files"),
    option("data.reset_attention_mask", "reset-attention-mask", &[], "false", Kind::Bool, "Attention in samples of text stays within a document. The tokenizer's end-of-text token ends one, and belongs to it"),
    option("data.reset_position_ids", "reset-position-ids", &[], "false", Kind::Bool, "Learned positions in samples of text count from the first token of a document. Rotary ones are distances, so they need reset_attention_mask alone"),
    option("data.eod_mask_loss", "eod-mask-loss", &[], "false", Kind::Bool, "The first token of a document has no loss if it follows an end-of-text token in its sample of text"),
    option("data.documents_per_sample", "documents-per-sample", &[], "256", Kind::Integer, "reset_attention_mask, reset_position_ids: documents of a sample, at most 1024. A run ends at a sample with more. On a GPU attention takes less time with fewer"),
    option("data.sft", "sft", &[], "false", Kind::Bool, "Train on conversations: data.path has records of JSON or Parquet with messages, ShareGPT's conversations, prompt and completion, or Alpaca's instruction and output. The tokenizer's chat template makes text of them. The loss is on the answers of the assistant alone. A sample is a conversation, cut or filled to model.seq_length"),
    option("data.dpo", "dpo", &[], "false", Kind::Bool, "Learn from pairs of answers (DPO): data.path has records of JSON or Parquet with chosen and rejected, texts or lists of messages, and often a prompt, as TRL has them. The model learns to prefer the chosen answer, compared with the model that training starts from. A sample is a pair, so model.seq_length holds both answers, each with its prompt, and each is cut to half of it"),
    option("data.kto", "kto", &[], "false", Kind::Bool, "Learn from answers with a label (KTO): data.path has records of JSON or Parquet with prompt and completion, texts or lists of messages, and label: whether the answer is desirable, as TRL has them. The model learns to give desirable answers and not to give others, compared with the model that training starts from. A sample is an answer with its prompt, cut or filled to model.seq_length"),
    option("data.sft_packing", "sft-packing", &[], "1", Kind::Integer, "data.sft, data.dpo, data.kto: conversations, pairs or answers that are packed into a sample, at most. Attention stays within a conversation, and learned positions count from its start. 1: a sample is one conversation"),
    option("data.seq_length_buckets", "seq-length-buckets", &[], "[]", Kind::Integers, "data.sft: lengths of samples, ascending; the last is model.seq_length. A step has the smallest that holds the longest conversation of its global batch, so less of it is padding. Each length has a memory plan and graphs of its own, in the same memory. An evaluation on the validation data does likewise. Empty: all samples are filled to model.seq_length"),
    option("data.group_by_length", "group-by-length", &[], "false", Kind::Bool, "With data.seq_length_buckets: the conversations of a global batch have like lengths. Each epoch is cut at random into groups of 50 batches; a group is sorted by length, and its batches come in random order. For one data set and batches of one size"),
    option("data.add_special_tokens", "add-special-tokens", &[], "false", Kind::Bool, "data.sft, data.dpo, data.kto: adds the markers of the chat template that are no tokens, such as <|im_end|>, to the tokenizer as special tokens. The table of tokens and the head get rows for them, or rows behind the tokenizer's that they have already. In a model that training starts from these rows begin as the mean of those of all other tokens. An export has the new tokens"),
    option("data.chat_template", "chat-template", &[], "", Kind::Text, "Chat template for data.sft, data.dpo and data.kto: chatml, llama3, gemma or mistral, which are built in, or a file with one. Unset: that of the tokenizer's folder, in chat_template.jinja or tokenizer_config.json, or else the built-in one of the tokenizer's family"),
    option("data.raw_tokens", "raw-tokens", &[], "\"none\"", Kind::Choice(RawTokens::WORDS), "Type of the tokens in a .bin without header or .idx; u16 for nanoGPT's. none refuses such files"),
    option("data.split", "split", &[], "0.9", Kind::Float, "Share of data.path for training. The rest, at its end, is for validation, unless files of a folder are named as validation data"),
    option("data.seed", "data-seed", &[], "1234", Kind::Integer, "Seed of the order of samples, and of the embedded source"),
];

section! { DpoConfig, "dpo":
    beta: f64, "dpo-beta", [], "0.1", Kind::Float, "data.dpo, data.kto: how strongly the model is pulled to the one that training starts from. A reward is beta times an answer's log-probability less that under this model";
    loss_type: PreferenceLoss, "dpo-loss-type", [], "\"sigmoid\"", Kind::Choice(PreferenceLoss::WORDS), "data.dpo: the loss of a pair, by its margin, the chosen answer's reward less the rejected one's. sigmoid: -log sigmoid(margin), of DPO. ipo: the square of log-ratios' difference less 1 / (2 beta), with means over an answer's tokens, of IPO";
    label_smoothing: f64, "dpo-label-smoothing", [], "0.0", Kind::Float, "sigmoid: the share of pairs that may be labelled the wrong way round (cDPO)";
    desirable_weight: f64, "kto-desirable-weight", [], "1.0", Kind::Float, "data.kto: the weight of the losses of desirable answers";
    undesirable_weight: f64, "kto-undesirable-weight", [], "1.0", Kind::Float, "data.kto: the weight of the losses of other answers. Desirable answers' weight times their number should be 1 to 1.33 times that of the others";
    references: Option<String>, "dpo-references", [], "", Kind::Text, "data.dpo, data.kto: file of the answers' log-probabilities under the model that training starts from. It is made before the first step, or read if it is there. step, for data.dpo with adapters: no file; each step computes them by the model without its adapters, with one more forward. Unset: references.json in checkpoint.dir, or none if there is no such folder";
}

section! { TrainConfig, "train":
    device: DeviceChoice, "device", [], "\"auto\"", Kind::Choice(DeviceChoice::WORDS), "Where to run. auto: on GPUs, one for each rank, if the machine has any; else on the host. cpu and gpu are other words for host and cuda";
    steps: usize, "steps", ["train-iters"], "1000", Kind::Integer, "Optimizer steps";
    epochs: Option<f64>, "epochs", [], "", Kind::Float, "Passes over the training data, in place of train.steps. The last step ends at or just behind the end of the last pass";
    seed: u64, "seed", [], "42", Kind::Integer, "Seed of weights and dropout";
    global_batch_size: usize, "global-batch-size", [], "16", Kind::Integer, "Samples in a step, over all ranks";
    rampup_batch_size: Vec<usize>, "rampup-batch-size", [], "[]", Kind::Integers, "Batch size to start from, increment, and number of samples until the global batch size is reached. Empty: the same batch size in every step";
    micro_batch_size: usize, "micro-batch-size", [], "2", Kind::Integer, "Samples in a microbatch";
    z_loss_multiplier: f64, "z-loss-multiplier", [], "0.0", Kind::Float, "gpt: the z-loss, this multiple of logsumexp(logits)^2, is added to the loss in training, and keeps logits from growing. 1e-5 is usual; 0 for none. It is reported apart from the loss";
    mtp_loss_factor: f64, "mtp-loss-factor", ["mtp-loss-scaling-factor"], "0.1", Kind::Float, "model.mtp_layers: the mean of these layers' losses, times this, is added to the loss. The losses are reported apart, without the factor";
    balance_loss_multiplier: f64, "balance-loss-multiplier", ["moe-aux-loss-coeff"], "0.0", Kind::Float, "experts: factor of the loss that keeps the loads of experts equal (1 times the factor for each layer, if they are). 0.01 is usual; 0 for none. It is reported apart from the loss";
    balance_loss_over: BalanceGroup, "balance-loss-over", [], "\"microbatch\"", Kind::Choice(BalanceGroup::WORDS), "experts: the balance loss compares the loads of a microbatch's tokens, of each sequence's, or of all data-parallel ranks' tokens in the step so far (one small transfer for each layer and microbatch)";
    router_z_loss_multiplier: f64, "router-z-loss-multiplier", ["moe-z-loss-coeff"], "0.0", Kind::Float, "experts: the mean of logsumexp(logits)^2 of routers, times this, is added to the loss. 1e-3 is usual; 0 for none. It is reported apart from the loss";
    router_bias_update_rate: f64, "router-bias-update-rate", ["moe-router-bias-update-rate"], "1e-3", Kind::Float, "experts: what every step adds to the router_bias of experts with less than the mean load, and subtracts from those with more";
    force_expert_balance: bool, "force-expert-balance", ["moe-router-force-load-balancing"], "false", Kind::Bool, "experts: tokens take experts in turn, whatever the router says. For benchmarks: such a model learns nothing of use";
    deterministic: bool, "deterministic", ["deterministic-mode"], "false", Kind::Bool, "cuda: the same bits in every run. Nothing is timed, and backward attention is slower";
    sync_debug: SyncDebugChoice, "sync-debug", [], "\"off\"", Kind::Choice(SyncDebugChoice::WORDS), "What happens at a call in a steady step that makes the host wait for the device, or allocates. warn: a warning names the call and the region, once. error: the run ends with exit code 3";
    eval_interval: usize, "eval-interval", [], "100", Kind::Integer, "Steps between evaluations; 0 for no evaluations";
    eval_steps: usize, "eval-iters", [], "8", Kind::Integer, "Batches in an evaluation, at most: a smaller set is read once; 0 for no evaluations";
    early_stop_patience: usize, "early-stop-patience", [], "0", Kind::Integer, "The run ends when its validation loss has not fallen below the lowest for so many evaluations in a row. 0: never";
    exit_interval: usize, "exit-interval", [], "0", Kind::Integer, "The run ends after a step whose number this divides, with a checkpoint and exit code 0. 0: never";
    exit_duration_minutes: Option<f64>, "exit-duration-minutes", ["exit-duration-in-mins"], "", Kind::Float, "The run ends after the step in which rank 0's process is so old, with a checkpoint and exit code 0. For the time limit of a job: what is left of it is for the last step and the checkpoint. Unset: no limit";
    threads: Option<usize>, "threads", [], "", Kind::Integer, "host: threads of a rank. Unset: its share of the cores";
}

section! { OptimizerConfig, "optimizer":
    kind: OptimizerChoice, "optimizer", [], "\"adamw\"", Kind::Choice(OptimizerChoice::WORDS), "The optimizer. muon: Muon for the matrices of blocks, with AdamW's learning rate and weight decay, and AdamW for embeddings, head, routers, norms and biases";
    lr: f64, "lr", [], "3e-3", Kind::Float, "Largest learning rate. With model.init_from or data.sft the default is 2e-5, and with adapters 2e-4; with data.dpo or data.kto 1e-6 and 1e-5";
    min_lr: Option<f64>, "min-lr", [], "", Kind::Float, "Learning rate at the end of the decay. Unset: a tenth of lr";
    warmup_steps: Option<usize>, "lr-warmup-steps", ["lr-warmup-iters"], "100", Kind::Integer, "Steps of linear warm-up. With model.init_from, data.sft, data.dpo or data.kto the default is 3 % of the steps. Step i, counted from 1, has i / (warmup_steps + 1) of the rate, as in nanoGPT. (In Megatron it has (i - 1) / warmup_steps, so the first rate is 0.)";
    decay_steps: usize, "lr-decay-steps", ["lr-wsd-decay-iters"], "100", Kind::Integer, "wsd: steps of decay at the end of the run";
    schedule: DecayStyle, "lr-schedule", ["lr-decay-style"], "\"cosine\"", Kind::Choice(DecayStyle::WORDS), "Learning rate after warm-up: constant; cosine or linear decay to the end of the run; decay with the root of the steps; or stable, then linear decay";
    betas: Vec<f64>, "betas", [], "[0.9, 0.95]", Kind::Floats, "adamw, muon: decay rates of AdamW's two moments. lion: the moment's share in the direction of an update, and its decay rate";
    eps: f64, "eps", ["adam-eps"], "1e-8", Kind::Float, "adamw, muon: number added to the root of the second moment";
    exp_avg_dtype: MomentDtype, "exp-avg-dtype", [], "\"fp32\"", Kind::Choice(MomentDtype::WORDS), "adamw, lion, muon: type in which the first moments of AdamW and Lion are kept. They are computed in f32, and rounded to nearest even";
    exp_avg_sq_dtype: MomentDtype, "exp-avg-sq-dtype", [], "\"fp32\"", Kind::Choice(MomentDtype::WORDS), "adamw, muon: type in which AdamW's second moments are kept, as the first. In bf16 betas[1] is at most 0.99: rounding to nearest would stop a slower decay";
    store_param_remainders: bool, "store-param-remainders", [], "false", Kind::Bool, "adamw, lion, sgd: of the master weights of weights in bf16 the 16 bits are kept that the weight lacks, 2 bytes in place of 4. Both together are the f32 master, to the bit. Weights are rounded with ties away from 0, not to even. Checkpoints have f32 masters either way";
    main_grads_dtype: MomentDtype, "main-grads-dtype", [], "\"fp32\"", Kind::Choice(MomentDtype::WORDS), "adamw, lion, sgd: type in which gradients of the weights of blocks are kept and summed, over microbatches and over ranks; other gradients are f32. bf16 takes 2 bytes less a parameter and rounds after each microbatch: with many of them a sum stalls, because summands below a 512th of it are lost. Needs precision.compute = \"bf16\"";
    momentum: f64, "momentum", ["sgd-momentum"], "0.0", Kind::Float, "sgd: momentum";
    muon_momentum: f64, "muon-momentum", [], "0.95", Kind::Float, "muon: decay of the momentum, which is Nesterov's";
    muon_num_ns_steps: usize, "muon-num-ns-steps", [], "5", Kind::Integer, "muon: Newton-Schulz iterations that make a matrix orthogonal";
    weight_decay: f64, "weight-decay", [], "0.1", Kind::Float, "Weight decay of matrices. Biases and norms have none";
    decay_embeddings: bool, "decay-embeddings", [], "true", Kind::Bool, "Tables of tokens and positions have weight decay, as other matrices do";
    freeze: Vec<String>, "freeze", [], "[]", Kind::Texts, "Parameters that keep their values: patterns of names, such as \"wte.*\" or \"h.[0-3].*\", with *, ? and [ ] as in a shell. They need no gradients, no master weights and no optimizer state";
    param_groups: Vec<String>, "param-groups", [], "[]", Kind::Texts, "Parameters with a learning rate of their own: PATTERN=MULTIPLIER, such as \"wte.*=0.1\", with patterns as of freeze. The learning rate of every step is multiplied. PATTERN=MULTIPLIER,WEIGHT_DECAY gives them a weight decay too. A parameter is in the first group that matches it";
    clip: f64, "clip-grad", [], "1.0", Kind::Float, "Largest gradient norm; 0 for no clipping";
    skip_step_sigma_factor: f64, "skip-step-sigma-factor", [], "0.0", Kind::Float, "A step whose loss or gradient norm is so many standard deviations above the mean of the last steps makes no update. 6 is usual; 0 lets every step update";
    skip_step_interval: usize, "skip-step-rolling-interval-length", [], "128", Kind::Integer, "With skip_step_sigma_factor: number of steps that mean and deviation are of. No step is skipped before half of them are done";
}

section! { PrecisionConfig, "precision":
    compute: Precision, "compute", [], "\"f32\"", Kind::Choice(Precision::WORDS), "Type of weights and activations in layers. Master weights are f32. tf32 is f32 with faster, less exact products on a GPU";
    fp8: Fp8Choice, "fp8-format", ["fp8"], "\"none\"", Kind::Choice(Fp8Choice::WORDS), "Linear layers of blocks multiply in 8 bits (with compute = \"bf16\"). hybrid: E4M3 for inputs and weights, E5M2 for gradients. e4m3: E4M3 for all. Attention, norms, embedding and head stay in bf16";
    fp8_recipe: Fp8Recipe, "fp8-recipe", [], "\"delayed\"", Kind::Choice(Fp8Recipe::WORDS), "How tensors in 8 bits are scaled. tensorwise: one scale, from the tensor itself, for one more pass over it. delayed: one scale, from the largest magnitudes of earlier steps. rowwise: one for each token and each row of a weight, from the row itself; for weight gradients as delayed. blockwise: one for 128 neighbours in activations and gradients, and for 128 x 128 weights, with fp8 = \"e4m3\"; GPUs of compute capability 9.0";
    fp8_amax_history: usize, "fp8-amax-history-len", [], "16", Kind::Integer, "delayed, rowwise: number of steps whose largest magnitudes are kept";
    fp8_amax_algo: AmaxAlgo, "fp8-amax-compute-algo", [], "\"max\"", Kind::Choice(AmaxAlgo::WORDS), "delayed, rowwise: the largest of these magnitudes counts, or the newest";
    fp8_margin: usize, "fp8-margin", [], "0", Kind::Integer, "delayed, rowwise: powers of two that are left free above the largest magnitude";
    fp8_param_gather: bool, "fp8-param-gather", [], "false", Kind::Bool, "delayed, tensorwise, with a distributed optimizer: each rank quantises the weights that it updates, and bytes are gathered. By default bf16 weights are gathered, and each rank quantises all of them. The bits are the same";
    bf16_blocks: Vec<usize>, "bf16-blocks", [], "[0, 0]", Kind::Integers, "Blocks at the start and at the end of the model that stay in bf16";
    frozen_weights: FrozenWeights, "frozen-weights", [], "\"compute\"", Kind::Choice(FrozenWeights::WORDS), "Memory of frozen weights of linear layers in blocks, under adapters (--lora-rank) or frozen by name (--freeze). compute: the type of weights in layers. nf4: 4 bits, as bitsandbytes makes them, with a scale for each 64 neighbours. int8: 8 bits, whole numbers from -127 to 127, with such scales. Before a layer runs its weights are made of them, in buffers that layers take turns in, for each forward and each backward";
    fp8_metrics_interval: usize, "fp8-metrics-interval", [], "0", Kind::Integer, "Steps between measurements of what 8 bits lose: the shares of values beyond the largest number, and of those that became 0, in metrics and logs. A step that measures takes longer and has graphs of its own; others cost nothing. 0: none";
}

section! { ParallelConfig, "parallel":
    tensor: usize, "tensor-model-parallel-size", [], "1", Kind::Integer, "Number of ranks that share each layer. Heads, feed-forward channels and the vocabulary are divided among them";
    expert: usize, "expert-model-parallel-size", [], "1", Kind::Integer, "Number of ranks that divide the experts of each layer. Tokens go to the ranks of their experts and come back. They are ranks that share the batch, and with parallel.expert_tensor = 1 those that share layers too";
    expert_tensor: Option<usize>, "expert-tensor-parallel-size", [], "", Kind::Integer, "Number of ranks that share each expert: parallel.tensor, or 1. With 1 experts are whole, and each of the ranks that share a layer brings its part of the tokens. Unset: parallel.tensor";
    expert_row_budget: Option<f64>, "expert-row-budget", ["moe-expert-rank-capacity-factor"], "", Kind::Float, "With parallel.expert: the room for the rows that a rank sends another one in training is this times the rows of balanced loads. A step whose rows need more makes no update, and is run again with room for all. Unset: every step has room for all. Where tokens are gathered, since each has as many experts as there are ranks or more, there is no such room";
    sequence_parallel: bool, "sequence-parallel", [], "false", Kind::Bool, "Ranks that share layers also divide the tokens between layers: less memory for the same traffic";
    tensor_transfers: TensorTransfers, "tensor-parallel-transfers", [], "\"auto\"", Kind::Choice(TensorTransfers::WORDS), "What sums and gathers over ranks that share layers. auto: kernels that read the memory of the other GPUs, if all are in one node and reach each other, and NCCL_P2P_DISABLE is not set; else NCCL. Over NVLink the kernels are faster; over PCIe they were not measured. nccl: always NCCL. Sums over three and more ranks have other bits";
    context: usize, "context-parallel-size", [], "1", Kind::Integer, "Number of ranks that divide each sequence, for long ones. A rank has two of 2 x context equal parts, one from the beginning and the mirrored one from the end, so all have as much work. In attention each rank sees the keys and values of the whole sequence, a layer at a time. Sequences are a multiple of 2 x context";
    context_transfers: ContextTransfersChoice, "context-parallel-transfers", ["cp-comm-type"], "\"auto\"", Kind::Choice(ContextTransfersChoice::WORDS), "What ranks that divide sequences exchange in attention. keys: each rank gathers the keys and values of the whole sequence. ring: keys and values travel round the ranks, beside attention over those of the rank before; in layers with windows, and of samples with documents, they are gathered. heads: each rank gets all tokens of some heads (Ulysses); the ranks divide the heads, and the key and value heads. auto: ring, unless all layers have windows or samples hold documents; of these heads if all ranks get some, else keys";
    pipeline: usize, "pipeline-model-parallel-size", [], "1", Kind::Integer, "Number of pipeline stages. Each has some of the layers and sends its results to the next";
    pipeline_schedule: PipelineSchedule, "pipeline-schedule", [], "\"1f1b\"", Kind::Choice(PipelineSchedule::WORDS), "Order of work of a stage. 1f1b: one forward, one backward in turn. zero_bubble: weight gradients are made later, in the time that a stage would wait for others; each stage then saves as many microbatches as the first one does under 1f1b, and what was recomputed, until the weight gradients are made";
    virtual_pipeline: usize, "virtual-pipeline-model-parallel-size", ["num-virtual-stages-per-pipeline-rank"], "1", Kind::Integer, "Chunks of layers on each stage, interleaved with those of the other stages: less idle time, more transfers";
    microbatch_group: Option<usize>, "microbatch-group-size-per-virtual-pipeline-stage", [], "", Kind::Integer, "With virtual_pipeline: microbatches that go through a chunk before the next chunk starts. Unset: as many as stages";
    pipeline_layers: Vec<usize>, "pipeline-layers", [], "[]", Kind::Integers, "Blocks in each part of the model: pipeline x virtual_pipeline numbers. Empty: balanced by time, the head counted as the blocks it weighs";
    distributed_optimizer: bool, "use-distributed-optimizer", ["distributed-optimizer"], "false", Kind::Bool, "Data-parallel ranks divide master weights and moments (ZeRO stage 1). Each updates its part of every bucket. The same as data_parallel_sharding = \"optim\"; it may be set beside the words after that";
    data_parallel_sharding: DataParallelSharding, "data-parallel-sharding-strategy", ["data-parallel-sharding"], "\"auto\"", Kind::Choice(DataParallelSharding::WORDS), "What data-parallel ranks divide. auto: optim with distributed_optimizer, else no_shard. optim: master weights and moments. optim_grads: gradients too (ZeRO stage 2); they are summed over ranks after each backward of a block. optim_grads_params: weights too (ZeRO stage 3, FSDP); they are gathered before each forward and each backward of a block, one block ahead. Embedding and head take turns in one buffer; they stay whole with two ranks, tied, or over stages";
    optimizer_instances: usize, "num-distributed-optimizer-instances", [], "1", Kind::Integer, "Groups of data-parallel ranks that each divide what data_parallel_sharding says, such as the ranks of a node: gathers stay within a group, and gradients are summed over groups too (HSDP). A group has neighbouring ranks";
    grad_reduce: GradReduce, "grad-reduce", [], "\"f32\"", Kind::Choice(GradReduce::WORDS), "Type in which gradients are summed over data-parallel ranks. bf16 halves the traffic, and rounds each rank's gradient and the sum; on a rank gradients accumulate in f32 either way. --grad-reduce-in-bf16 sets it too";
    bucket_mib: usize, "bucket-mib", ["bucket-cap-mb"], "25", Kind::Integer, "Smallest gradient bucket, in MiB";
    heartbeat_seconds: f64, "heartbeat-seconds", [], "1.0", Kind::Float, "Time between two heartbeats of a rank to the monitor on rank 0. 0 turns the watch off: if a rank fails, the others may then wait for ever";
    distributed_timeout_seconds: f64, "distributed-timeout-seconds", [], "45.0", Kind::Float, "The run ends when a rank is not heard of for this long, or makes no progress in a step while others wait. --distributed-timeout-minutes sets it too";
    setup_timeout_seconds: f64, "setup-timeout-seconds", [], "600.0", Kind::Float, "The same limit for progress at the start, in the steps that warm up and capture, and while a checkpoint or another file is written. Never less than distributed_timeout_seconds";
    monitor_address: Option<String>, "monitor-address", [], "", Kind::Text, "Where rank 0 listens for heartbeats, host or host:port. Unset: the loopback on one machine, else rank 0's host name and the address of its default route";
}

section! { RecomputeConfig, "recompute":
    granularity: RecomputeGranularity, "recompute-granularity", [], "\"none\"", Kind::Choice(RecomputeGranularity::WORDS), "What backward computes again instead of saving it. selective: norms and activations (GELU, SwiGLU), for about a third less activation memory. full: whole blocks from their input, for the memory of one group of blocks and up to a third more work";
    layers: usize, "recompute-num-layers", ["recompute-layers"], "1", Kind::Integer, "full: number of blocks recomputed together, and captured as one layer. More blocks save fewer inputs, and need more memory while they are recomputed";
    blocks: Option<usize>, "recompute-blocks", [], "", Kind::Integer, "full: number of blocks of each stage or virtual stage that are recomputed, from the first one on. The others save all that backward needs. Unset: all blocks are recomputed";
    keep_attention: bool, "recompute-keep-attention", [], "false", Kind::Bool, "full: each block also saves the output of attention, as large as its input, and backward does not compute attention again. The longer the samples, the more time this saves";
    mlp_tiles: usize, "mlp-tiles", ["mlp-chunks-for-training"], "1", Kind::Integer, "Dense feed-forward layers go through a microbatch's tokens in this many tiles. Of the values between their matrices one tile is in memory, and all those that weight gradients read. Backward computes the first product again, as full recompute does. The bits are the same on the host; GPUs may choose another way to multiply fewer rows. In 8 bits scales are delayed, and those of a run's first step and of evaluation are of a tile. Not with experts";
}

section! { OffloadConfig, "offload":
    activation_layers: usize, "offload-activation-layers", ["cpu-offloading-num-layers"], "0", Kind::Integer, "Number of blocks whose large activations lie in the host's memory between forward and backward: of each stage or virtual stage the first ones, but not the last. With recompute.granularity = \"full\", groups of blocks, and what they save. They leave beside the forward of the next block, and return beside its backward. The bits are the same. 0: none";
    optimizer: bool, "offload-optimizer", ["optimizer-cpu-offload"], "false", Kind::Bool, "Master weights and moments lie in the host's memory, as far as the GPU has no room for them. A step brings them to the device part by part, updates them there and moves them back. The bits are the same. Weights in bf16 and gradients stay on the device";
    optimizer_fraction: Option<f64>, "offload-optimizer-fraction", ["optimizer-offload-fraction"], "", Kind::Float, "offload.optimizer: the share of master weights and moments that lies in the host's memory, from 0 to 1: those of the last layers, in whole buckets. Unset: as much as the GPU has no room for";
}

section! { CudaGraphConfig, "cuda_graph":
    enable: bool, "enable-cuda-graph", [], "false", Kind::Bool, "Capture the step into graphs and replay them";
    scope: GraphScope, "cuda-graph-scope", [], "\"per_layer\"", Kind::Choice(GraphScope::WORDS), "What one graph holds: a layer in one direction, the layers of a stage or virtual stage in one direction for one microbatch, or the whole step. auto: steps on random samples are timed at the start, without graphs and in each scope, and the fastest that fits the memory is used";
    modules: Vec<String>, "cuda-graph-modules", [], "[]", Kind::Choices(GraphModule::WORDS), "per_layer: only these modules become graphs, the rest runs eagerly. attention and mlp are each a graph of their own in a block, with the norm before it; both together are one. In a block with experts moe is the whole layer of experts in place of mlp, moe_router its norm, router and shared expert alone, and moe_preprocess adds the order of rows to moe_router. Empty: all";
    layers: Vec<usize>, "cuda-graph-layers", [], "[]", Kind::Integers, "per_layer: only these layers become graphs, the rest runs eagerly. Layer 0 is the embedding, then come the blocks, then the head. Empty: all";
    warmup_steps: usize, "cuda-graph-warmup-steps", ["cuda-graph-num-warmup-steps"], "1", Kind::Integer, "Eager steps before the capture; at least 1";
    mempool: GraphMempool, "cuda-graph-mempool", [], "\"per_microbatch\"", Kind::Choice(GraphMempool::WORDS), "How microbatches share memory: a slot for each in flight, or one plan over the whole step";
    share_io_buffers: bool, "cuda-graph-share-io-buffers", [], "true", Kind::Bool, "Neighbouring graphs share the buffers between them. false: each copies its inputs";
    overlap_microbatches: bool, "cuda-graph-overlap-microbatches", ["overlap-microbatches"], "false", Kind::Bool, "The forward of a microbatch runs next to the backward of an earlier one: kernels of one fill the GPU where those of the other leave it idle or wait for transfers. The bits are the same. Activations of two microbatches are in memory; in 1F1B of twice as many as without, so a step should have more microbatches than twice the stages. Not with zero bubble";
    capture_optimizer: bool, "cuda-graph-capture-optimizer", ["optimizer-cuda-graph"], "true", Kind::Bool, "Capture the optimizer too";
    verify: usize, "verify-cuda-graph", [], "0", Kind::Integer, "Steps between verifications. A step that is verified also runs with its graphs and eagerly from the same state, and all that both leave must have the same bits. If not, the run ends with exit code 5 and names the first region and tensor that differ. On a GPU it needs train.deterministic. 0: none";
    verify_memory: VerifyMemory, "verify-cuda-graph-memory", [], "\"apart\"", Kind::Choice(VerifyMemory::WORDS), "Where the eager step of a verification works. apart: in memory of its own, in which no two buffers share bytes, so mistakes of the memory plan show too. shared: where graphs work";
}

section! { CheckpointConfig, "checkpoint":
    dir: Option<String>, "checkpoint-dir", ["save"], "", Kind::Text, "Folder for checkpoints. Unset: none are written";
    interval: usize, "checkpoint-interval", ["save-interval"], "1000", Kind::Integer, "Steps between checkpoints. 0: one at the end, or when a signal ends the run";
    memory_interval: usize, "memory-save-interval", ["non-persistent-save-interval"], "0", Kind::Integer, "Steps between states in shared memory, in the form of checkpoints. Under `trainer supervise`, on one machine, processes that died go on from the newest of them or of the checkpoints. It takes twice the memory of a checkpoint while one is written. 0: none";
    keep: usize, "checkpoint-keep", [], "3", Kind::Integer, "Number of the run's newest checkpoints to keep; 0 for all";
    save_best: bool, "save-best", [], "false", Kind::Bool, "Also save after each evaluation whose validation loss is the lowest so far, and keep the checkpoint with the lowest beside the newest. Its name is best, in checkpoint.dir, wherever a checkpoint is named";
    async_save: bool, "async-save", [], "true", Kind::Bool, "At an interval the state is copied to the machine's memory beside the next step, and training goes on while the copy is written. false: training waits until the checkpoint is on disk, as it does at the end of a run";
    resume: Resume, "resume", ["load"], "\"auto\"", Kind::Text, "auto: continue from the newest in checkpoint.dir, if there is one. never: refuse to start where there is one. Or a checkpoint, or a folder whose newest is taken";
}

section! { LoggingConfig, "logging":
    dir: String, "log-dir", [], "\"runs/last\"", Kind::Text, "Folder for config.toml, metrics.jsonl, run.log and a JSON log of each rank";
    interval: usize, "log-interval", [], "10", Kind::Integer, "Steps between lines on the console. metrics.jsonl has every step";
    tensorboard: bool, "tensorboard", [], "false", Kind::Bool, "Also write TensorBoard event files into logging.dir";
    wandb: bool, "wandb", [], "false", Kind::Bool, "Also write wandb-history.jsonl and wandb-summary.json, in the form of Weights & Biases, into logging.dir. If python3 has the module wandb, it also sends each step while the run goes on. With WANDB_MODE=offline it sends nothing, and writes a folder for `wandb sync`";
    sample_prompts: Option<String>, "sample-prompts", [], "", Kind::Text, "File with a prompt in each line, which the model continues while it trains: every logging.sample_interval steps, and at the end. The texts are in the log, in samples.jsonl and on the page of `trainer report`. For ranks that have the whole model each";
    sample_interval: usize, "sample-interval", [], "100", Kind::Integer, "Steps between samples, with logging.sample_prompts";
    print_activations: Vec<String>, "print-activations", [], "[]", Kind::Texts, "Outputs of which the mean, the root mean square and the largest magnitude are printed, for each microbatch of the steps that have a line: \"embedding\", \"h.3\" for the block of that number, \"h.3.attention\" or \"h.3.mlp\" (\"h.3.moe\" in a block with experts) for a module of it. The host waits for each. Graphs go around them";
    trace: Option<String>, "trace", [], "", Kind::Text, "File for a timeline of a few steps, for ui.perfetto.dev: every kernel, copy and call with its layer. Ranks other than 0 add their number to the name";
    trace_after: Option<usize>, "trace-after", ["profile-step-start"], "", Kind::Integer, "Steps before the timeline begins. Unset: it begins with the first replay";
    trace_steps: usize, "trace-steps", [], "2", Kind::Integer, "Number of steps in the timeline";
}

/// The option of that key.
pub fn find(key: &str) -> Option<&'static OptionSpec> {
    options().iter().find(|option| option.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_set_known_options() {
        for (key, _) in Preset::ALL.iter().flat_map(|preset| preset.values()) {
            assert!(find(&key).is_some(), "{key}");
        }
    }

    #[test]
    fn keys_and_flags_are_unique_and_defaults_parse() {
        let mut seen = std::collections::HashSet::new();
        for option in BUILT_IN.iter() {
            assert!(seen.insert(option.key), "{} twice", option.key);
            for flag in option.flags() {
                assert!(seen.insert(flag), "--{flag} twice");
            }
            if !option.default.is_empty() {
                let parsed: Result<toml::Table, _> = format!("x = {}", option.default).parse();
                assert!(parsed.is_ok(), "{}: default {}", option.key, option.default);
            }
        }
    }
}
