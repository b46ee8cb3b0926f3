//! The `config.json` of an export describes the model that was trained, whatever form the one that training began with had.

use std::path::Path;

use serde_json::{Value, json};
use trainer::hf::{DataType, Direction, convert};

use super::configs::imported;
use super::models::{logits, trained};
use crate::harness::{Folder, expect, trainer};

/// The content of a `config.json`.
fn config(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// A small Hugging Face model in `FOLDER/model`, of a preset with these flags, and with these keys in its `config.json`. Null
/// removes a key.
fn model(folder: &Folder, preset: &str, flags: &str, keys: &Value) {
    let small = "--layers 2 --hidden 32 --heads 2 --ffn 48 --vocab 256 --seq-length 64 --init-std 0.3 --compute f32";
    let flags: Vec<&str> = ["--preset", preset].into_iter().chain(small.split(' ')).chain(flags.split(' ')).collect();
    trained(&folder.path("ours"), &flags);
    convert(&folder.path("ours"), &folder.path("model"), Direction::ToHuggingFace(DataType::F32)).unwrap();
    let mut all = config(&folder.path("model"));
    let object = all.as_object_mut().unwrap();
    object.extend(keys.as_object().unwrap().clone());
    object.retain(|_, value| !value.is_null());
    std::fs::write(folder.path("model/config.json"), all.to_string()).unwrap();
}

/// Trains the model for a step, with these flags. Its weights stay nearly the same.
fn train(folder: &Folder, flags: &str) {
    let text: String = (0..1200u32).map(|i| char::from(97 + ((i * i + i / 7) % 23) as u8)).collect();
    std::fs::write(folder.path("text.txt"), text).unwrap();
    let run = "--init-from model --data-path text.txt --split 1 --eval-interval 0 --steps 1 --global-batch-size 1 \
               --micro-batch-size 1 --lr 1e-9 --device host --threads 1 --save saved --log-dir log";
    expect(&trainer(&folder.0, &format!("{run} {flags}")), 0, &["done: loss"]);
}

#[test]
fn a_changed_value_is_written_in_every_form_that_the_config_of_the_model_has() {
    let llama = "--kv-heads 1 --head-dim 32";
    let scaled = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32 });
    let of_base = |base: f64| json!({ "rope_type": "default", "rope_theta": base });
    let scaled_with_base = {
        let mut all = scaled.clone();
        all["rope_theta"] = json!(5e5);
        all
    };
    let gemma = json!({ "full_attention": of_base(1e6), "sliding_attention": of_base(1e4) });
    let changed_gemma = json!({ "full_attention": of_base(3000.0), "sliding_attention": of_base(77.0) });
    let version_5 = json!({ "rope_theta": null, "rope_scaling": null, "rope_parameters": of_base(5e5) });
    let both = json!({ "rope_theta": 5e5, "rope_scaling": null, "rope_parameters": of_base(5e5) });
    let gemma_5 =
        json!({ "rope_theta": null, "rope_scaling": null, "rope_local_base_freq": null, "rope_parameters": gemma });
    let yarn = json!({ "rope_scaling": { "type": "yarn", "factor": 4.0 } });
    // Preset, its flags, keys of the model's file, flags of training, keys of the export's file.
    let cases = [
        (
            "tiny-llama",
            llama,
            &version_5,
            "--rope-base 3000",
            json!({ "rope_theta": null, "rope_scaling": null, "rope_parameters": of_base(3000.0) }),
        ),
        (
            "tiny-llama",
            llama,
            &both,
            "--rope-base 3000",
            json!({ "rope_theta": 3000.0, "rope_parameters": of_base(3000.0) }),
        ),
        (
            "tiny-llama",
            llama,
            &version_5,
            "--rope-scaling 8 1 4 32",
            json!({ "rope_theta": null, "rope_scaling": null, "rope_parameters": scaled_with_base }),
        ),
        (
            "gemma3-270m",
            "--kv-heads 1 --head-dim 32 --sliding-window 8 --window-pattern [1,0]",
            &gemma_5,
            "--rope-base 3000 --rope-window-base 77",
            json!({ "rope_theta": null, "rope_local_base_freq": null, "rope_parameters": changed_gemma }),
        ),
        (
            "tiny-llama",
            llama,
            &yarn,
            "--seq-length 256",
            json!({ "max_position_embeddings": 256,
                 "rope_scaling": { "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                                   "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 0.1 * 4f64.ln() + 1.0 } }),
        ),
    ];
    let tokens: Vec<i32> = (0..48).map(|i| 97 + i * i % 23).collect();
    for (preset, flags, keys, training, wanted) in cases {
        let folder = Folder::new("export-configs");
        model(&folder, preset, flags, keys);
        train(&folder, training);
        convert(&folder.path("saved"), &folder.path("export"), Direction::ToHuggingFace(DataType::F32)).unwrap();
        let written = config(&folder.path("export"));
        for (key, value) in wanted.as_object().unwrap() {
            assert_eq!(&written[key], value, "{training}: {key}");
        }
        let [before, saved, export] = ["model", "saved", "export"].map(|name| logits(&folder.path(name), &tokens));
        assert_eq!(saved, export, "{training}");
        let largest = before.iter().zip(&export).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert_eq!(largest > 1e-3, !training.contains("seq-length"), "{training}: {largest}");
    }
}

#[test]
fn the_type_of_values_is_written_under_both_of_its_names() {
    let folder = Folder::new("export-dtype");
    model(&folder, "tiny-llama", "--kv-heads 1", &json!({ "dtype": "float32", "torch_dtype": "float32" }));
    train(&folder, "");
    convert(&folder.path("saved"), &folder.path("export"), Direction::ToHuggingFace(DataType::Bf16)).unwrap();
    let written = config(&folder.path("export"));
    assert_eq!((&written["dtype"], &written["torch_dtype"]), (&json!("bfloat16"), &json!("bfloat16")));
}

#[test]
fn layers_with_a_window_are_told_in_one_form_if_training_changed_them() {
    let folder = Folder::new("export-windows");
    let keys = json!({ "layer_types": null, "sliding_window_pattern": 2 });
    model(&folder, "gemma3-270m", "--kv-heads 1 --sliding-window 8 --window-pattern [1,0]", &keys);
    train(&folder, "--window-pattern [0,1]");
    convert(&folder.path("saved"), &folder.path("export"), Direction::ToHuggingFace(DataType::F32)).unwrap();
    let written = config(&folder.path("export"));
    assert_eq!(written["layer_types"], json!(["full_attention", "sliding_attention"]));
    assert_eq!(written.get("sliding_window_pattern"), None);
}

#[test]
fn two_forms_of_a_value_that_differ_are_refused_when_a_config_is_read() {
    let linear = json!({ "rope_type": "linear", "factor": 8.0, "rope_theta": 5e5 });
    let base = json!({ "rope_type": "default", "rope_theta": 5e5 });
    let windows = json!({ "sliding_attention": { "rope_type": "default", "rope_theta": 77.0 } });
    let other = json!({ "rope_type": "linear", "factor": 4.0 });
    let two_types = json!({ "rope_type": "linear", "type": "yarn", "factor": 4.0 });
    for (kind, keys, key) in [
        ("llama", json!({ "rope_theta": 1e4, "rope_parameters": base }), "rope_theta"),
        ("llama", json!({ "rope_scaling": other, "rope_parameters": linear }), "rope_scaling"),
        ("llama", json!({ "rope_scaling": two_types }), "rope_scaling"),
        ("gemma3_text", json!({ "rope_local_base_freq": 1e4, "rope_parameters": windows }), "rope_local_base_freq"),
    ] {
        let error = imported(kind, keys.clone(), &[]).unwrap_err();
        assert!(error.contains(&format!("{key} = ")) && error.contains("if both are there"), "{keys}: {error}");
    }
    let same =
        json!({ "rope_theta": 5e5, "rope_scaling": { "type": "linear", "factor": 8.0 }, "rope_parameters": linear });
    let model = imported("llama", same, &[]).unwrap().config.model;
    assert_eq!((model.rope_base, model.rope_scaling), (5e5, vec![8.0]));
}
