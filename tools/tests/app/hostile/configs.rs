//! A foreign `config.json` of absurd sizes.

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::refused;

/// A folder with a small `config.json` that has other values for these keys.
fn folder(model_type: &str, keys: &Json) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut config = json!({
        "model_type": model_type, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 97, "max_position_embeddings": 64,
        "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64,
    });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

const PLAN: [&str; 8] = ["plan", "--ranks", "8", "--gpu", "h200", "--", "--init-from", "."];
const DRY_RUN: [&str; 5] = ["--device", "host", "--dry-run", "--init-from", "."];

#[test]
fn absurd_sizes_of_a_foreign_config_json_are_refused_by_plan_and_by_init_from() {
    for (model_type, keys, needle) in [
        ("llama", json!({ "num_hidden_layers": 4097 }), "at most 4096"),
        ("llama", json!({ "num_hidden_layers": 1_000_000 }), "at most 4096"),
        ("gpt2", json!({ "n_layer": 1_000_000 }), "at most 4096"),
        ("qwen2", json!({ "num_hidden_layers": 1_000_000, "use_sliding_window": true }), ""),
        ("gemma3_text", json!({ "num_hidden_layers": 1_000_000 }), ""),
        ("llama", json!({ "num_hidden_layers": 1e300 }), "num_hidden_layers"),
        ("llama", json!({ "hidden_size": 1_000_000_000 }), "2^44 elements"),
        ("gpt2", json!({ "n_embd": 1_000_000_000 }), "it is at most"),
        ("llama", json!({ "num_attention_heads": 1_000_000_000 }), ""),
        ("llama", json!({ "head_dim": 1_000_000_000, "num_attention_heads": 1_000_000_000 }), ""),
        ("llama", json!({ "num_key_value_heads": 1_000_000_000 }), "kv_heads"),
        ("llama", json!({ "vocab_size": 1_000_000_000_000_i64 }), "vocab_size"),
        ("llama", json!({ "vocab_size": 1_000_000_000, "hidden_size": 1 << 20 }), "2^44 elements"),
        ("llama", json!({ "intermediate_size": 1_000_000_000, "hidden_size": 1 << 20 }), "2^44 elements"),
        ("gpt2", json!({ "n_positions": 1_000_000_000 }), "2^44 elements"),
        ("llama", json!({ "max_position_embeddings": 1_000_000_000_000_000_i64 }), "max_position_embeddings"),
        // Each tensor could be held, and the weights of all layers could not.
        (
            "llama",
            json!({ "num_hidden_layers": 4096, "hidden_size": 1 << 20, "intermediate_size": 1 << 20 }),
            "model.layers x",
        ),
    ] {
        let folder = folder(model_type, &keys);
        refused(&format!("--init-from {keys}"), folder.path(), &DRY_RUN, &[needle]);
        refused(&format!("plan {keys}"), folder.path(), &PLAN, &[needle]);
    }
}
