//! The options of a model that a `config.json` of Hugging Face describes, by its family.

use serde_json::{Value, json};
use tempfile::TempDir;
use trainer::config::ModelConfig;
use trainer::config::plan::RunPlan;
use trainer::families::Preset;

use super::models::plan;

/// The plan from a small `config.json` with these keys added or replaced, or the error. A key with the value "absent" is removed.
pub fn imported(model_type: &str, keys: Value, flags: &[&str]) -> Result<RunPlan, String> {
    let folder = TempDir::new().unwrap();
    let mut config = json!({
        "model_type": model_type, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 97, "max_position_embeddings": 64,
    });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    config.as_object_mut().unwrap().retain(|_, value| value != "absent");
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let from = folder.path().to_str().unwrap();
    plan(&[&["--init-from", from], flags].concat()).map_err(|error| error.to_string())
}

#[test]
fn keys_that_a_family_s_files_lack_have_the_values_of_transformers() {
    let model = |kind, keys| imported(kind, keys, &[]).unwrap().config.model;
    let llama = model("llama", json!({}));
    assert_eq!((llama.head_dim, llama.bias, llama.qkv_bias, llama.qk_norm), (None, false, false, false));
    let qwen2 = model("qwen2", json!({}));
    assert_eq!((qwen2.head_dim, qwen2.bias, qwen2.qkv_bias, qwen2.qk_norm), (None, false, true, false));
    let qwen3 = model("qwen3", json!({}));
    assert_eq!((qwen3.head_dim, qwen3.bias, qwen3.qkv_bias, qwen3.qk_norm), (Some(128), false, false, true));
    assert_eq!((qwen3.norm_eps, qwen3.rope_base, qwen3.tie_embeddings), (1e-6, 10_000.0, false));
    // Null means as many as heads, absent the default of the class.
    for (kind, absent) in [("llama", 64), ("mistral", 8), ("qwen2", 32), ("qwen3", 32)] {
        let kv_heads = |value: Value| {
            model(kind, json!({ "num_attention_heads": 64, "head_dim": 2, "num_key_value_heads": value })).kv_heads
        };
        assert_eq!((kv_heads(json!(null)), kv_heads(json!("absent"))), (Some(64), Some(absent)), "{kind}");
    }
}

#[test]
fn windows_are_those_of_the_layers_that_use_them_and_contradictions_are_refused_by_name() {
    let says = |error: String, words: &str| assert!(error.contains(words), "{error}\nshould say: {words}");
    let windows = |kind, keys| {
        let model = imported(kind, keys, &[]).unwrap().config.model;
        assert_eq!(model.seq_length, 64);
        (model.sliding_window, model.window_pattern)
    };
    assert_eq!(windows("mistral", json!({ "sliding_window": 48 })), (Some(48), vec![]));
    assert_eq!(windows("mistral", json!({})), (Some(4096), vec![]), "absent");
    assert_eq!(windows("mistral", json!({ "sliding_window": null })), (None, vec![]));
    for kind in ["qwen2", "qwen3"] {
        let used = json!({ "sliding_window": 48, "use_sliding_window": true, "num_hidden_layers": 4 });
        let with = |key: &str, value: Value| {
            let mut used = used.clone();
            used[key] = value;
            used
        };
        assert_eq!(windows(kind, json!({ "sliding_window": 48 })), (None, vec![]), "{kind}");
        assert_eq!(windows(kind, used.clone()), (None, vec![]), "{kind}: from layer 28 on");
        assert_eq!(windows(kind, with("max_window_layers", json!(0))), (Some(48), vec![]), "{kind}");
        assert_eq!(windows(kind, with("max_window_layers", json!(3))), (Some(48), vec![0, 0, 0, 1]), "{kind}");
        let [full, sliding] = ["full_attention", "sliding_attention"];
        let types = with("layer_types", json!([sliding, full, sliding, full]));
        assert_eq!(windows(kind, types), (Some(48), vec![1, 0]), "{kind}");
        for (key, value) in [
            ("layer_types", json!([full, full, full, "linear_attention"])),
            ("layer_types", json!([full, full, full])),
            ("max_window_layers", json!("all")),
        ] {
            says(imported(kind, with(key, value), &[]).unwrap_err(), &format!("{key} = "));
        }
        says(imported(kind, json!({ "layer_types": [full, sliding] }), &[]).unwrap_err(), "layer_types = [");
    }
    says(imported("qwen3", json!({ "attention_bias": true }), &[]).unwrap_err(), "attention_bias = true");
    for scaling in [
        json!({ "rope_type": "yarn" }),
        json!({ "rope_type": "dynamic", "factor": 2.0 }),
        json!({ "rope_type": "yarn", "factor": 2.0, "truncate": 0 }),
        json!({ "rope_type": "yarn", "factor": 2.0, "beta_fast": "32" }),
        json!({ "type": "longrope" }),
    ] {
        says(imported("qwen3", json!({ "rope_scaling": scaling }), &[]).unwrap_err(), "rope_scaling = ");
    }
    let part = json!({ "partial_rotary_factor": 0.5 });
    says(imported("llama", part.clone(), &[]).unwrap_err(), "partial_rotary_factor = 0.5");
    says(imported("llama", json!({ "rope_parameters": part }), &[]).unwrap_err(), "rope_parameters = ");
    let yarn = json!({ "type": "yarn", "factor": 4.0 });
    let model = imported("qwen2", json!({ "rope_scaling": yarn }), &[]).unwrap().config.model;
    assert_eq!(model.rope_scaling, [4.0, 64.0, 32.0, 1.0, 0.1 * 4f64.ln() + 1.0], "what is absent");
    says(imported("mistral", json!({ "hidden_act": "gelu" }), &[]).unwrap_err(), "hidden_act = \"gelu\"");
}

#[test]
fn a_gemma_has_the_values_of_transformers_and_what_it_would_not_compute_is_refused_by_name() {
    let says = |error: String, words: &str| assert!(error.contains(words), "{error}\nshould say: {words}");
    let model = |kind, keys| imported(kind, keys, &[]).unwrap().config.model;
    let gemma2 = model("gemma2", json!({}));
    assert_eq!((gemma2.head_dim, gemma2.norm_eps, gemma2.rope_base), (Some(256), 1e-6, 10_000.0));
    assert_eq!((gemma2.query_pre_attn_scalar, gemma2.attention_soft_cap), (Some(256.0), Some(50.0)));
    assert_eq!((gemma2.logit_soft_cap, gemma2.tie_embeddings, gemma2.scale_embeddings), (Some(30.0), true, true));
    assert_eq!((gemma2.sliding_window, gemma2.window_pattern), (Some(4096), vec![1, 0]));
    let no_caps = model("gemma2", json!({ "attn_logit_softcapping": null, "final_logit_softcapping": null }));
    assert_eq!((no_caps.attention_soft_cap, no_caps.logit_soft_cap), (None, None));

    let layers = json!({ "num_hidden_layers": 8 });
    let gemma3 = model("gemma3_text", layers.clone());
    assert_eq!((gemma3.head_dim, gemma3.qk_norm, gemma3.tie_embeddings), (Some(256), true, true));
    assert_eq!((gemma3.rope_base, gemma3.rope_window_base, gemma3.rope_scaling), (1e6, Some(1e4), vec![]));
    assert_eq!((gemma3.sliding_window, gemma3.window_pattern), (Some(4096), vec![1, 1, 1, 1, 1, 0]));
    assert_eq!((gemma3.attention_soft_cap, gemma3.logit_soft_cap), (None, None));
    let with = |keys: Value| {
        let mut all = layers.clone();
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        all
    };
    let third = model("gemma3_text", with(json!({ "sliding_window_pattern": 3 })));
    assert_eq!(third.window_pattern, [1, 1, 0]);
    // As version 4 and version 5 of `transformers` write the frequencies.
    let linear = json!({ "rope_type": "linear", "factor": 8.0 });
    let version_4 = json!({ "rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": linear });
    let version_5 = json!({ "rope_parameters": {
        "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 2e6 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 2e4 },
    } });
    for keys in [version_4, version_5] {
        let model = model("gemma3_text", with(keys));
        assert_eq!((model.rope_base, model.rope_window_base, model.rope_scaling), (2e6, Some(2e4), vec![8.0]));
    }

    let sliding = json!({ "sliding_attention": { "rope_type": "linear", "factor": 8.0 } });
    for (kind, key, value) in [
        ("gemma2", "hidden_activation", json!("relu")),
        ("gemma2", "attention_bias", json!(true)),
        ("gemma2", "sliding_window", json!(null)),
        ("gemma2", "final_logit_softcapping", json!("30")),
        ("gemma3_text", "use_bidirectional_attention", json!(true)),
        ("gemma3_text", "attn_logit_softcapping", json!(50.0)),
        ("gemma3_text", "rope_local_base_freq", json!("1e4")),
        ("gemma3_text", "rope_parameters", sliding),
        ("gemma3_text", "rope_parameters", json!({ "rope_theta": 2e6, "rope_type": "default" })),
    ] {
        says(imported(kind, json!({ key: value }), &[]).unwrap_err(), &format!("{key} = "));
    }
    says(imported("gemma3", json!({}), &[]).unwrap_err(), "model_type = \"gemma3\"");
}

#[test]
fn a_model_has_nothing_of_a_preset_that_is_given_beside_its_folder() {
    let of = |flags: &[&str]| {
        let model = imported("llama", json!({}), flags).unwrap().config.model;
        format!("{:?}", ModelConfig { preset: Preset::default(), init_from: None, ..model })
    };
    for preset in ["olmo2-1b", "gemma2-2b", "gemma3-1b", "mixtral-8x7b", "qwen3-8b"] {
        assert_eq!(of(&["--preset", preset]), of(&[]), "{preset}");
    }
}
