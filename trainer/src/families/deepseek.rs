//! DeepSeek-V2 and V3 (DeepSeek-AI, 2024): latent attention, and experts of which one is shared. `DeepseekV2ForCausalLM` and
//! `DeepseekV3ForCausalLM` in `transformers`; Moonlight (Liu et al., 2025) is of the second kind. GLM-4.7-Flash computes as
//! it does (`Glm4MoeLiteForCausalLM`).

use common::UserError;
use device::ops::{GroupScore, Score};
use engine::model::{AttentionKind, GptShape, Latent, Position, Scaling};
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::{ConfigJson, MOST_LAYERS};
use super::expert_files::{self, every, value};
use super::family::{FileTensor, HuggingFace, Keys, ModelFamily, NamedOptions, Requirement, TensorNames, sizes};
use super::llama_files;
use super::requirements::{
    EXPERTS, NO_BIAS, NO_QKV_BIAS, NO_SCORE_CAP, NO_WINDOWS, ONE_BASE, PRE_NORM, RMS_NORM, ROTARY, SWIGLU,
};
use super::training::large_with_experts;

/// The family of V2.
pub const DEEPSEEK_V2: ModelFamily = ModelFamily {
    name: "DeepSeek-V2",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-6; activation = "swiglu"; position = "rotary"; rope_base = 10000.0;
                bias = false; residual_init = "plain"; tie_embeddings = false; kv_latent = 512; rotary_head_dim = 64;
                router_normalise = false"#,
    // config.json of deepseek-ai/DeepSeek-V2-Lite. Learning rates are as in the paper.
    sizes: sizes! {
        "deepseek-v2-lite", large_with_experts("4.2e-4", "0.003"),
            r#"layers = 27; hidden = 2048; heads = 16; head_dim = 192; value_head_dim = 128; ffn = 10944;
               experts = 64; experts_per_token = 6; expert_ffn = 1408; shared_expert_ffn = 2816; vocab = 102400;
               seq_length = 4096; rope_scaling = [40.0, 4096.0, 32.0, 1.0, 1.0]; rope_scaling_type = "yarn";
               query_pre_attn_scalar = 75.98208793209287;
               expert_pattern = [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"#;
    },
    hugging_face: Some(&FILES_V2),
};

/// The family of V3.
pub const DEEPSEEK_V3: ModelFamily = ModelFamily {
    name: "DeepSeek-V3",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-6; activation = "swiglu"; position = "rotary"; rope_base = 10000.0;
                bias = false; residual_init = "plain"; tie_embeddings = false; kv_latent = 512; rotary_head_dim = 64;
                router_score = "sigmoid"; router_bias = true"#,
    // config.json of moonshotai/Moonlight-16B-A3B.
    sizes: sizes! {
        "moonlight-16b-a3b", large_with_experts("4.2e-4", "0.001"),
            r#"layers = 27; hidden = 2048; heads = 16; head_dim = 192; value_head_dim = 128; ffn = 11264;
               experts = 64; experts_per_token = 6; expert_ffn = 1408; shared_expert_ffn = 2816; vocab = 163840;
               seq_length = 8192; rope_base = 50000.0; norm_eps = 1e-5; router_scale = 2.446;
               expert_pattern = [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"#;
    },
    hugging_face: Some(&FILES_V3),
};

/// The family of GLM-4.7-Flash.
pub const GLM4_MOE_LITE: ModelFamily = ModelFamily {
    name: "GLM-4.7-Flash",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-5; activation = "swiglu"; position = "rotary"; rope_base = 10000.0;
                bias = false; residual_init = "plain"; tie_embeddings = false; kv_latent = 512; rotary_head_dim = 64;
                router_score = "sigmoid"; router_bias = true"#,
    // config.json of zai-org/GLM-4.7-Flash.
    sizes: sizes! {
        "glm-4.7-flash", large_with_experts("4.2e-4", "0.001"),
            r#"layers = 47; hidden = 2048; heads = 20; query_latent = 768; head_dim = 256; value_head_dim = 256;
               ffn = 10240; experts = 64; experts_per_token = 4; expert_ffn = 1536; shared_expert_ffn = 1536;
               vocab = 154880; seq_length = 8192; rope_base = 1000000.0; router_scale = 1.8;
               expert_pattern = [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"#;
    },
    hugging_face: Some(&FILES_GLM),
};

/// The requirements of all families of this file.
const REQUIREMENTS: &[Requirement] = &[
    (|shape| latent(shape).is_some(), "no model.kv_latent"),
    RMS_NORM,
    SWIGLU,
    ROTARY,
    ONE_BASE,
    PRE_NORM,
    NO_BIAS,
    NO_QKV_BIAS,
    NO_WINDOWS,
    NO_SCORE_CAP,
    (|shape| shape.logit_soft_cap.is_none(), "model.logit_soft_cap"),
    (|shape| !shape.scaled_embedding, "model.scale_embeddings = true"),
    EXPERTS,
    (
        |shape| every(shape, |experts| experts.shared_ffn > 0 && experts.shared_ffn.is_multiple_of(experts.ffn)),
        "a model.shared_expert_ffn that is no multiple of expert_ffn",
    ),
    (dense_blocks_come_first, "dense blocks of model.expert_pattern behind others"),
];

const FILES_V2: HuggingFace = HuggingFace {
    model_type: "deepseek_v2",
    class: "DeepseekV2ForCausalLM",
    requirements: &[
        REQUIREMENTS,
        &[
            (
                |shape| every(shape, |experts| experts.router.score == Score::Softmax),
                "a model.router_score other than \"softmax\"",
            ),
            (|shape| every(shape, |experts| !experts.router.normalise), "model.router_normalise = true"),
            (|shape| every(shape, |experts| experts.bias_update_rate.is_none()), "model.router_bias = true"),
            (|shape| groups_have(shape, GroupScore::Highest), "a model.expert_group_score other than \"highest\""),
        ],
    ],
    absent: "max_position_embeddings = 2048; rms_norm_eps = 1e-6; rope_theta = 10000.0; q_lora_rank = 1536;
             qk_nope_head_dim = 128; v_head_dim = 128; n_routed_experts = 64; num_experts_per_tok = 8;
             n_shared_experts = 2; moe_intermediate_size = 1407; first_k_dense_replace = 0; routed_scaling_factor = 1.0;
             n_group = 1; topk_group = 1",
    keys: &[
        Keys { read: options, write: config_json },
        Keys {
            read: |config| {
                config.is_known("topk_method", &[json!("greedy"), json!("group_limited_greedy")])?;
                config.is_known("scoring_func", &[json!("softmax")])?;
                config.is_known("norm_topk_prob", &[json!(false)])?;
                match config.get("topk_method").as_str() {
                    Some("group_limited_greedy") => {
                        let mut options = groups(config)?;
                        options.push(("expert_group_score", "highest".into()));
                        Ok(options)
                    }
                    _ => Ok(Vec::new()),
                }
            },
            write: |shape| {
                let mut keys = groups_json(shape);
                let method = if keys["n_group"] == 1 { "greedy" } else { "group_limited_greedy" };
                (keys["topk_method"], keys["norm_topk_prob"]) = (json!(method), json!(false));
                keys
            },
        },
    ],
    tensors: TensorNames { has_further_tokens: false, ..TENSORS },
};

/// Of families whose routers have sigmoids and biases.
const BIASED_SIGMOIDS: &[Requirement] = &[
    (
        |shape| every(shape, |experts| experts.router.score == Score::Sigmoid),
        "a model.router_score other than \"sigmoid\"",
    ),
    (|shape| every(shape, |experts| experts.bias_update_rate.is_some()), "model.router_bias = false"),
    (|shape| groups_have(shape, GroupScore::TwoHighest), "a model.expert_group_score other than \"two_highest\""),
];

/// The keys of families whose routers have sigmoids and biases, beside the keys of all families of this file.
const OF_BIASED_SIGMOIDS: Keys = Keys {
    read: |config| {
        config.is_known("topk_method", &[json!("noaux_tc")])?;
        config.is_known("scoring_func", &[json!("sigmoid")])?;
        config.is_known("rope_interleave", &[json!(true)])?;
        Ok(vec![("router_normalise", config.flag_or("norm_topk_prob", true)?.into())])
    },
    write: |shape| json!({ "rope_interleave": true, "norm_topk_prob": value(shape, |experts| experts.router.normalise) }),
};

const FILES_V3: HuggingFace = HuggingFace {
    model_type: "deepseek_v3",
    class: "DeepseekV3ForCausalLM",
    requirements: &[REQUIREMENTS, BIASED_SIGMOIDS],
    absent: "max_position_embeddings = 4096; rms_norm_eps = 1e-6; rope_theta = 10000.0; q_lora_rank = 1536;
             qk_nope_head_dim = 128; v_head_dim = 128; n_routed_experts = 256; num_experts_per_tok = 8;
             n_shared_experts = 1; moe_intermediate_size = 2048; first_k_dense_replace = 3; routed_scaling_factor = 2.5;
             n_group = 8; topk_group = 4",
    keys: &[Keys { read: options, write: config_json }, Keys { read: groups, write: groups_json }, OF_BIASED_SIGMOIDS],
    tensors: TENSORS,
};

const FILES_GLM: HuggingFace = HuggingFace {
    model_type: "glm4_moe_lite",
    class: "Glm4MoeLiteForCausalLM",
    requirements: &[REQUIREMENTS, BIASED_SIGMOIDS],
    absent: "max_position_embeddings = 202752; rms_norm_eps = 1e-5; rope_theta = 10000.0; q_lora_rank = 768;
             qk_nope_head_dim = 192; v_head_dim = 256; n_routed_experts = 64; num_experts_per_tok = 4;
             n_shared_experts = 1; moe_intermediate_size = 1536; first_k_dense_replace = 1; routed_scaling_factor = 1.8;
             n_group = 1; topk_group = 1",
    keys: &[
        Keys { read: options, write: config_json },
        Keys { read: groups, write: groups_json },
        OF_BIASED_SIGMOIDS,
        Keys {
            read: |_| Ok(Vec::new()),
            write: |shape| {
                let kind = |block| if shape.block_experts(block).is_some() { "sparse" } else { "dense" };
                json!({ "mlp_layer_types": (0..shape.layers).map(kind).collect::<Vec<_>>() })
            },
        },
    ],
    tensors: TENSORS,
};

/// The groups of experts.
fn groups(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let (count, per_token) = (config.usual_whole("n_group")?, config.usual_whole("topk_group")?);
    Ok(vec![("expert_groups", count.into()), ("expert_groups_per_token", per_token.into())])
}

fn groups_json(shape: &GptShape) -> Json {
    let groups = shape.experts.as_ref().and_then(|experts| experts.router.groups);
    json!({
        "n_group": groups.map_or(1, |groups| groups.count),
        "topk_group": groups.map_or(1, |groups| groups.per_token),
    })
}

/// The shortest decimal number that is `number` in f32.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// Whether groups of experts, if there are such, have that score.
fn groups_have(shape: &GptShape, score: GroupScore) -> bool {
    let groups = shape.experts.as_ref().and_then(|experts| experts.router.groups);
    groups.is_none_or(|groups| groups.score == score)
}

fn latent(shape: &GptShape) -> Option<Latent> {
    match shape.attention {
        AttentionKind::Latent(latent) => Some(latent),
        AttentionKind::None | AttentionKind::Grouped { .. } => None,
    }
}

/// The number of dense blocks before the blocks of experts.
fn dense_blocks(shape: &GptShape) -> usize {
    (0..shape.layers).take_while(|&block| shape.block_experts(block).is_none()).count()
}

fn dense_blocks_come_first(shape: &GptShape) -> bool {
    (dense_blocks(shape)..shape.layers).all(|block| shape.block_experts(block).is_some())
}

fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    config.is_known("attention_bias", &[json!(false)])?;
    config.is_known("moe_layer_freq", &[json!(1)])?;
    let mut options = llama_files::options(config)?;
    options.retain(|(name, _)| !["kv_heads", "head_dim"].contains(name));
    let plain = config.usual_whole("qk_nope_head_dim")?;
    let rotated = config.whole_or("qk_rope_head_dim", 64)?;
    let query_rank = match config.has("q_lora_rank") && config.get("q_lora_rank").is_null() {
        true => None,
        false => Some(config.usual_whole("q_lora_rank")?),
    };
    let width = config.usual_whole("moe_intermediate_size")?;
    let layers = config.whole("num_hidden_layers")?.min(MOST_LAYERS);
    let dense = dense_layers(config, layers)?;
    options.extend([
        ("kv_latent", config.whole_or("kv_lora_rank", 512)?.into()),
        ("head_dim", (plain + rotated).into()),
        ("rotary_head_dim", rotated.into()),
        ("value_head_dim", config.usual_whole("v_head_dim")?.into()),
        ("experts", config.usual_whole("n_routed_experts")?.into()),
        ("experts_per_token", config.usual_whole("num_experts_per_tok")?.into()),
        ("expert_ffn", width.into()),
        ("shared_expert_ffn", (width * config.usual_whole("n_shared_experts")?).into()),
        ("router_scale", config.usual_number("routed_scaling_factor")?.into()),
    ]);
    if dense > 0 {
        let pattern = (0..layers).map(|layer| Value::Integer(i64::from(layer >= dense)));
        options.push(("expert_pattern", Value::Array(pattern.collect())));
    }
    options.extend(query_rank.map(|rank| ("query_latent", rank.into())));
    let scaling = ["rope_parameters", "rope_scaling"].map(|key| config.get(key));
    let numbers = scaling.iter().find_map(|of| Some((of["factor"].as_f64()?, of["mscale_all_dim"].as_f64()?)));
    if let Some((factor, all)) = numbers.filter(|(factor, all)| *factor > 1.0 && *all != 0.0) {
        let scalar = (plain + rotated) as f64 / (0.1 * all * factor.ln() + 1.0).powi(4);
        options.push(("query_pre_attn_scalar", scalar.into()));
    }
    Ok(options)
}

/// The number of dense layers, which come first.
fn dense_layers(config: &ConfigJson<'_>, layers: i64) -> Result<i64, UserError> {
    let Some(kinds) = config.get("mlp_layer_types").as_array() else {
        let dense = match config.get("first_k_dense_replace") {
            Json::Null => config.absent("first_k_dense_replace").map(|usual| usual as i64),
            number => number.as_i64(),
        };
        let rule = "it is a number of layers, from 0 on, and at least one layer has experts";
        let dense = dense.filter(|dense| (0..layers).contains(dense));
        return dense.ok_or_else(|| config.refuse("first_k_dense_replace", rule));
    };
    let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
    let is_known = kinds.len() as i64 == layers && dense < kinds.len() && kinds[dense..].iter().all(|k| k == "sparse");
    is_known.then_some(dense as i64).ok_or_else(|| {
        config.refuse(
            "mlp_layer_types",
            "each layer is \"dense\" or \"sparse\", dense ones come first, and one is sparse",
        )
    })
}

fn config_json(shape: &GptShape) -> Json {
    let mut config = llama_files::config_json(shape);
    let Some(Latent { query_rank, rank, head }) = latent(shape) else { return config };
    let keys = json!({
        "num_key_value_heads": shape.heads, "head_dim": head.rotated, "attention_bias": false,
        "q_lora_rank": query_rank, "kv_lora_rank": rank, "qk_nope_head_dim": head.plain,
        "qk_rope_head_dim": head.rotated, "v_head_dim": head.value, "first_k_dense_replace": dense_blocks(shape),
        "n_routed_experts": value(shape, |experts| experts.count),
        "num_experts_per_tok": value(shape, |experts| experts.per_token),
        "n_shared_experts": value(shape, |experts| experts.shared_ffn / experts.ffn),
        "moe_intermediate_size": value(shape, |experts| experts.ffn),
        "routed_scaling_factor": value(shape, |experts| decimal(experts.router.scale)),
    });
    config.as_object_mut().into_iter().for_each(|config| config.extend(keys.as_object().cloned().unwrap_or_default()));
    if let (Some(scalar), Position::Rotary { scaling: Some(Scaling::Yarn { factor, .. }), .. }) =
        (shape.query_pre_attn_scalar, shape.position)
    {
        let all = ((head.query() as f64 / scalar).powf(0.25) - 1.0) / (0.1 * factor.ln());
        config["rope_scaling"]["mscale_all_dim"] = json!((all * 1e6).round() / 1e6);
    }
    config
}

const TENSORS: TensorNames =
    TensorNames { of: tensors, has_further_tokens: true, is_leftover, ..expert_files::TENSORS };

/// Layers that predict further tokens lie behind the last one. Each has copies of the tables that it shares with the model.
fn is_leftover(tensor: &str, layers: usize) -> bool {
    let layer = tensor.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let is_behind = |(layer, inner): (&str, &str)| {
        let is_copy = super::COPIED_TABLES.iter().any(|(_, copy)| inner == *copy);
        is_copy || layer.parse().is_ok_and(|layer: usize| layer >= layers)
    };
    layer.is_some_and(is_behind) || llama_files::is_leftover(tensor, layers)
}

fn tensors(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    let inner = parameter.strip_prefix("h.").and_then(|rest| rest.split_once('.'));
    let (Some((block, inner)), Some(Latent { query_rank, rank, head })) = (inner, latent(shape)) else {
        return expert_files::of_most(shape, parameter);
    };
    let name = |of: &str| format!("model.layers.{block}.{of}");
    let theirs = match inner {
        "attn.c_attn.weight" => {
            let (queries, rows) = query_rank.map_or(("q_proj", shape.heads * head.query()), |rank| ("q_a_proj", rank));
            return vec![
                FileTensor::rows(name(&format!("self_attn.{queries}.weight")), rows),
                FileTensor::rows(name("self_attn.kv_a_proj_with_mqa.weight"), rank + head.rotated),
            ];
        }
        "mlp.shared.c_fc.weight" => {
            let width = shape.experts.as_ref().map_or(0, |experts| experts.shared_ffn);
            let rows = |of: &str| FileTensor::rows(name(&format!("mlp.shared_experts.{of}_proj.weight")), width);
            return vec![rows("gate"), rows("up")];
        }
        "mtp.enorm.weight" => "enorm.weight",
        "mtp.hnorm.weight" => "hnorm.weight",
        "mtp.eh_proj.weight" => "eh_proj.weight",
        "mtp.norm.weight" => "shared_head.norm.weight",
        "attn.q_b.weight" => "self_attn.q_b_proj.weight",
        "attn.q_b_norm.weight" => "self_attn.q_a_layernorm.weight",
        "attn.kv_b.weight" => "self_attn.kv_b_proj.weight",
        "attn.kv_b_norm.weight" => "self_attn.kv_a_layernorm.weight",
        "mlp.shared.c_proj.weight" => "mlp.shared_experts.down_proj.weight",
        "mlp.router.bias" => "mlp.gate.e_score_correction_bias",
        _ => return expert_files::of_most(shape, parameter),
    };
    FileTensor::whole(name(theirs))
}
