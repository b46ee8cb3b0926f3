//! Adapters that PEFT saved: read as PEFT reads them, trained on, and refused if the trainer has no such adapters.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use trainer::hf::{DataType, Direction, convert};

use super::models::{logits, plan, trained};
use crate::harness::{Folder, expect, metrics, printed, trainer};
use crate::tuning::lora::{TOKENS, logits_of_peft, values};

/// The layers of the adapters of these tests, with the sizes of their inputs and outputs.
const LAYERS: [(&str, usize, usize); 3] =
    [("self_attn.q_proj", 32, 32), ("self_attn.v_proj", 32, 16), ("mlp.down_proj", 48, 32)];

/// A small Llama in `base`.
fn with_base(name: &str) -> Folder {
    let folder = Folder::new(name);
    let sizes = ["--preset", "tiny-llama", "--layers", "2", "--hidden-size", "32", "--heads", "4", "--kv-heads", "2"];
    let more = ["--ffn", "48", "--vocab", "300", "--seq-length", "32", "--init-std", "0.2"];
    trained(&folder.path("ours"), &[&sizes[..], &more].concat());
    convert(&folder.path("ours"), &folder.path("base"), Direction::ToHuggingFace(DataType::F32)).unwrap();
    folder
}

/// Writes adapters over `base` as PEFT does. `rank_of`: the rank of a layer by block and name. `more` are keys of the
/// description.
fn write_adapters(folder: &Path, base: &Path, rank_of: impl Fn(usize, &str) -> usize, more: Value) {
    std::fs::create_dir_all(folder).unwrap();
    let mut tensors = Vec::new();
    for (block, (name, input, output)) in (0..2).flat_map(|block| LAYERS.map(|layer| (block, layer))) {
        let rank = rank_of(block, name);
        for (which, shape) in [("A", [rank, input]), ("B", [output, rank])] {
            let seed = tensors.len() * 13 + 5;
            let value = |at: usize| ((at * 37 + seed) % 41) as f32 / 41.0 - 0.5;
            let bytes: Vec<u8> = (0..shape[0] * shape[1]).flat_map(|at| value(at).to_le_bytes()).collect();
            let name = format!("base_model.model.model.layers.{block}.{name}.lora_{which}.weight");
            tensors.push((name, shape, bytes));
        }
    }
    fn view<'b>(shape: &[usize; 2], bytes: &'b [u8]) -> TensorView<'b> {
        TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()
    }
    let views = tensors.iter().map(|(name, shape, bytes)| (name.clone(), view(shape, bytes)));
    safetensors::serialize_to_file(views, None, &folder.join("adapter_model.safetensors")).unwrap();
    let mut config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base.display().to_string(),
        "r": 4, "lora_alpha": 6, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj", "down_proj"], "bias": "none",
        "use_dora": false, "modules_to_save": null, "init_lora_weights": true, "inference_mode": true,
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

#[test]
fn adapters_with_ranks_and_scales_by_layer_have_the_logits_that_peft_computes() {
    let folder = with_base("peft-patterns");
    let by_layer = |block: usize, name: &str| match (block, name) {
        (_, "self_attn.v_proj") => 2,
        (1, "mlp.down_proj") => 7,
        _ => 4,
    };
    let ranks = json!({ "v_proj": 2, r"layers\.1\.mlp\.down_proj": 7 });
    for (what, more, notices, alpha) in [
        ("one scale", json!({ "use_rslora": true }), &["alpha / sqrt(rank) as scale"][..], "12"),
        (
            "ranks",
            json!({ "rank_pattern": ranks }),
            &["adapters of 5 layers", "zeros to rank 7", "3 layers", "multiplied into B"],
            "10.5",
        ),
        (
            "all",
            json!({ "rank_pattern": ranks, "alpha_pattern": { "q_proj": 20.5 }, "use_rslora": true }),
            &["alpha / sqrt(rank) as scale", "zeros to rank 7", "5 layers", "multiplied into B"],
            "21",
        ),
    ] {
        let adapters = folder.path("adapters");
        match more.get("rank_pattern") {
            Some(_) => write_adapters(&adapters, &folder.path("base"), by_layer, more),
            None => write_adapters(&adapters, &folder.path("base"), |_, _| 4, more),
        }
        let _ = std::fs::remove_dir_all(folder.path("merged"));
        convert(&adapters, &folder.path("merged"), Direction::ToHuggingFace(DataType::F32)).unwrap();
        let ours = logits(&adapters, &TOKENS);
        let largest = ours.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        let apart = |b: &[f32]| ours.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / largest;
        assert!(apart(&logits(&folder.path("base"), &TOKENS)) > 1e-2, "{what}: the adapters do nothing");
        assert!(apart(&logits(&folder.path("merged"), &TOKENS)) < 1e-5, "{what}");
        // PEFT takes seconds to start: it reads the adapters that have everything.
        if what == "all" {
            logits_of_peft(&folder.0);
            for name in ["adapters", "merged"] {
                let apart = apart(&values(&folder.path("logits.safetensors"), name));
                assert!(apart < 1e-5, "{what}: {name} {apart}");
            }
        }
        let output = trainer(&folder.0, "--init-from adapters --dry-run --device host --eval-interval 0");
        expect(&output, 0, notices);
        expect(&output, 0, &["fine-tuning takes optimizer.lr = 2e-4 for adapters"]);
        let config = plan(&["--init-from", adapters.to_str().unwrap()]).unwrap().config;
        assert_eq!(config.model.lora_alpha.to_string(), alpha, "{what}");
    }
}

#[test]
fn training_goes_on_with_adapters_of_peft_and_every_command_reads_them() {
    let folder = with_base("peft-trained");
    std::fs::write(folder.path("text.txt"), "some words and other words ".repeat(100)).unwrap();
    write_adapters(&folder.path("adapters"), &folder.path("base"), |_, _| 4, json!({}));
    convert(&folder.path("adapters"), &folder.path("merged"), Direction::ToHuggingFace(DataType::F32)).unwrap();
    let eval = |name: &str| -> f64 {
        let output = trainer(&folder.0, &format!("eval {name} text.txt --device host --tokenizer byte"));
        assert!(output.status.success(), "{}", printed(&output));
        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        line["loss"].as_f64().unwrap()
    };
    let (adapters, merged, base) = (eval("adapters"), eval("merged"), eval("base"));
    assert!((adapters / merged - 1.0).abs() < 1e-5 && (adapters / base - 1.0).abs() > 1e-3);
    let output =
        trainer(&folder.0, "sample --checkpoint adapters --prompt a --tokens 3 --device host --tokenizer byte");
    assert!(output.status.success(), "{}", printed(&output));

    let common = "--data-path text.txt --eval-interval 0 --split 1 --global-batch-size 2 --log-dir log --device host";
    let line = format!("--init-from adapters --steps 2 --lr 1e-3 --save saved {common}");
    expect(&trainer(&folder.0, &line), 0, &["frozen", "done: loss"]);
    let first = metrics(&folder.0)[0][0].as_f64().unwrap();
    // The run's own adapters go on as PEFT's, to the same loss, and belong to the same base.
    for (line, says) in [
        ("convert --to peft saved exported", "exported: "),
        ("convert --to hf saved whole", "whole: "),
        ("convert --to peft adapters none", "use --to hf, which merges the adapters into their model"),
        ("convert --from hf adapters none", "use --to hf, which merges the adapters into their model"),
    ] {
        expect(&trainer(&folder.0, line), if line.ends_with("none") { 2 } else { 0 }, &[says]);
    }
    let config = std::fs::read_to_string(folder.path("exported/adapter_config.json")).unwrap();
    let named = folder.path("base").display().to_string();
    assert_eq!(serde_json::from_str::<Value>(&config).unwrap()["base_model_name_or_path"], json!(named));
    let of = |name: &str| {
        let line = format!("--init-from {name} --steps 1 --lr 1e-3 {common}");
        let _ = std::fs::remove_dir_all(folder.path("log"));
        expect(&trainer(&folder.0, &line), 0, &["done: loss"]);
        metrics(&folder.0)[0][0].clone()
    };
    let losses = [of("exported"), of("saved")];
    // Adapters of a run that went on with those of another belong to the model below both.
    for line in [
        format!("--init-from base --lora-rank 2 --steps 1 --save one {common}"),
        format!("--init-from one --steps 1 --save two {common}"),
    ] {
        expect(&trainer(&folder.0, &line), 0, &["done: loss"]);
    }
    expect(&trainer(&folder.0, "convert --to peft two both"), 0, &["both: "]);
    let config = std::fs::read_to_string(folder.path("both/adapter_config.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&config).unwrap()["base_model_name_or_path"], json!("base"));
    assert_eq!(losses[0], losses[1]);
    assert!(losses[0].as_f64().unwrap() < first, "{losses:?} after {first}");
}

#[test]
fn adapters_that_the_trainer_does_not_have_are_refused_by_name() {
    let folder = with_base("peft-refused");
    let (base, adapters) = (folder.path("base"), folder.path("adapters"));
    for (more, words) in [
        (json!({ "use_dora": true }), &["use_dora = true", "merge_and_unload"][..]),
        (json!({ "modules_to_save": ["lm_head"] }), &["modules_to_save = [\"lm_head\"]"]),
        (json!({ "bias": "lora_only" }), &["bias = \"lora_only\""]),
        (json!({ "lora_bias": true }), &["lora_bias = true"]),
        (json!({ "init_lora_weights": "pissa_niter_4" }), &["init_lora_weights = \"pissa_niter_4\""]),
        (json!({ "layers_to_transform": [0] }), &["layers_to_transform = [0]"]),
        (json!({ "trainable_token_indices": [1, 2] }), &["trainable_token_indices"]),
        (json!({ "a_later_key": 3 }), &["a_later_key = 3"]),
        (json!({ "peft_type": "IA3" }), &["peft_type = \"IA3\""]),
        (
            json!({ "base_model_name_or_path": null }),
            &["has no base_model_name_or_path", "the folder of the base model"],
        ),
        (
            json!({ "base_model_name_or_path": "meta-llama/Llama-3" }),
            &["base_model_name_or_path = \"meta-llama/Llama-3\", which is no folder here", "hf download"],
        ),
        (json!({ "r": 8 }), &["of rank 4, and adapter_config.json gives 8"]),
        (json!({ "r": 0 }), &["adapter_config.json has r = 0"]),
        (json!({ "rank_pattern": { "q_proj": 4, "self_attn.q_proj": 5 } }), &["several numbers", "rank_pattern"]),
    ] {
        write_adapters(&adapters, &base, |_, _| 4, more);
        let error = plan(&["--init-from", adapters.to_str().unwrap()]).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
    write_adapters(&adapters, &base, |_, _| 4, json!({}));
    for flags in [["--lora-rank", "8"], ["--lora-rank", "0"], ["--lora-target-modules", "q_proj"]] {
        let line = format!("--init-from adapters --steps 1 --device host {}", flags.join(" "));
        expect(&trainer(&folder.0, &line), 2, &["the adapters of ", "leave out the options model.lora_"]);
    }
    // Beside a model they may be merged already. The model of their own folder is named by them.
    std::fs::copy(base.join("config.json"), adapters.join("config.json")).unwrap();
    std::fs::copy(base.join("model.safetensors"), adapters.join("model.safetensors")).unwrap();
    for line in ["--init-from adapters --steps 1", "sample --checkpoint adapters", "eval adapters text.txt"] {
        expect(
            &trainer(&folder.0, line),
            2,
            &["has adapters (adapter_config.json) beside a model, and they belong to "],
        );
    }
    expect(&trainer(&folder.0, "convert --to hf adapters none"), 2, &["beside a model"]);
    let alone = logits(&base, &TOKENS);
    write_adapters(&adapters, &adapters, |_, _| 4, json!({}));
    assert_ne!(logits(&adapters, &TOKENS), alone);
}
