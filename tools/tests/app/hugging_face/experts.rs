//! Mixtures of experts from and to Hugging Face: the keys of `config.json`, the tensors of each expert, and shares of ranks.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use tempfile::TempDir;
use trainer::config::{ExpertGroupScore, RouterScore};
use trainer::hf::{DataType, Direction, convert};

use super::configs::imported;
use super::models::trained;
use crate::harness::{Folder, assert_same, checkpoint, expect, metrics, resume_at, run};

/// The sizes of small models, of each family.
const SMALL: [(&str, &str); 4] = [
    ("mixtral-8x7b", "--kv-heads 2 --experts 4"),
    ("qwen3-30b-a3b", "--kv-heads 2 --head-dim 12 --experts 12 --expert-ffn 20 --expert-pattern [1,0]"),
    ("olmoe-1b-7b", "--experts 8 --experts-per-token 3"),
    (
        "glm-4.7-flash",
        "--experts 6 --experts-per-token 2 --expert-groups 3 --expert-ffn 12 --shared-expert-ffn 24 --expert-pattern [0,1] \
         --kv-latent 18 --query-latent 14 --head-dim 10 --rotary-head-dim 4 --value-head-dim 8",
    ),
];

const SIZES: &str = "--layers 2 --hidden 32 --heads 4 --ffn 48 --vocab 257 --seq-length 16 --compute f32";

/// Saves a model of its first weights as files of its family.
fn make(folder: &Path, (preset, sizes): (&str, &str), dtype: DataType) {
    let flags = format!("--preset {preset} {SIZES} {sizes}");
    let ours = folder.join("ours");
    trained(&ours, &flags.split(' ').collect::<Vec<_>>());
    convert(&ours, &folder.join("theirs"), Direction::ToHuggingFace(dtype)).unwrap();
}

/// Tensors by name: shape and bytes.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn read(folder: &Path) -> Tensors {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensors().into_iter().map(|(name, t)| (name, (t.shape().to_vec(), t.data().to_vec()))).collect()
}

fn write(file: &Path, tensors: &Tensors) {
    let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.into(), bytes).unwrap();
    let views = tensors.iter().map(|(name, (shape, bytes))| (name, view(shape, bytes)));
    safetensors::serialize_to_file(views, None, file).unwrap();
}

/// The tensors whose names have that end after `experts.N.`, one after the other.
fn taken(tensors: &mut Tensors, block: &str, matrices: &[&str]) -> (Vec<usize>, Vec<u8>) {
    let (mut shape, mut bytes) = (vec![0, 0, 0], Vec::new());
    for expert in 0.. {
        let names = matrices.iter().map(|matrix| format!("{block}.experts.{expert}.{matrix}.weight"));
        let parts: Vec<_> = names.filter_map(|name| tensors.remove(&name)).collect();
        let Some((sizes, _)) = parts.first() else { return (shape, bytes) };
        shape = vec![expert + 1, sizes[0] * parts.len(), sizes[1]];
        parts.iter().for_each(|(_, part)| bytes.extend(part));
    }
    unreachable!("experts end")
}

#[test]
fn experts_that_transformers_5_saved_as_one_tensor_are_read_and_each_is_written_alone() {
    for (preset, sizes) in SMALL {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        make(folder.path(), (preset, sizes), DataType::F32);
        let single = read(&at("theirs"));
        let mut fused = single.clone();
        for block in 0..2 {
            let (old, new) = (format!("model.layers.{block}.block_sparse_moe"), format!("model.layers.{block}.mlp"));
            let is_old = fused.contains_key(&format!("{old}.gate.weight"));
            let (module, up, down) =
                if is_old { (&old, ["w1", "w3"], "w2") } else { (&new, ["gate_proj", "up_proj"], "down_proj") };
            if !is_old && !fused.contains_key(&format!("{new}.gate.weight")) {
                continue; // dense
            }
            let up = taken(&mut fused, module, &up);
            let down = taken(&mut fused, module, &[down]);
            let router = fused.remove(&format!("{module}.gate.weight")).unwrap();
            fused.insert(format!("{new}.experts.gate_up_proj"), up);
            fused.insert(format!("{new}.experts.down_proj"), down);
            fused.insert(format!("{new}.gate.weight"), router);
        }
        assert!(fused.len() < single.len(), "{preset}");
        write(&at("theirs/model.safetensors"), &fused);
        convert(&at("theirs"), &at("read"), Direction::FromHuggingFace).unwrap();
        assert!(read(&at("read")) == read(&at("ours")), "{preset}: other weights");
        convert(&at("read"), &at("back"), Direction::ToHuggingFace(DataType::F32)).unwrap();
        assert!(read(&at("back")) == single, "{preset}: it came back otherwise");

        let name = fused.keys().find(|name| name.ends_with("gate_up_proj")).unwrap().clone();
        fused.get_mut(&name).unwrap().0.swap(1, 2);
        write(&at("theirs/model.safetensors"), &fused);
        let error = convert(&at("theirs"), &at("not"), Direction::FromHuggingFace).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor `{name}` of ")) && error.contains("has shape"), "{error}");
    }
}

#[test]
fn a_tensor_of_an_expert_that_is_missing_or_one_too_many_is_named() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    make(folder.path(), SMALL[2], DataType::F32);
    let whole = read(&at("theirs"));
    let name = |expert: usize| format!("model.layers.1.mlp.experts.{expert}.up_proj.weight");
    let mut without = whole.clone();
    let tensor = without.remove(&name(5)).unwrap();
    let mut with = whole;
    with.insert(name(8), tensor);
    for (tensors, words) in [
        (without, format!("has no tensor `{}`", name(5))),
        (with, format!("has a tensor `{}` that no parameter of the model takes", name(8))),
    ] {
        write(&at("theirs/model.safetensors"), &tensors);
        let error = convert(&at("theirs"), &at("not"), Direction::FromHuggingFace).unwrap_err().to_string();
        assert!(error.contains(&words), "{error}");
    }
}

#[test]
fn layers_that_predict_further_tokens_are_left_out_with_a_word() {
    let folder = Folder::new("experts-further");
    make(&folder.0, SMALL[3], DataType::F32);
    let (theirs, back) = (folder.path("theirs"), folder.path("back"));
    let mut tensors = read(&theirs);
    let whole = tensors.clone();
    for name in ["eh_proj.weight", "mlp.experts.0.up_proj.weight", "shared_head.head.weight"] {
        tensors.insert(format!("model.layers.2.{name}"), (vec![1], vec![0; 4]));
    }
    write(&theirs.join("model.safetensors"), &tensors);
    let config = theirs.join("config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    json["model_type"] = json!("glm4_moe_lite");
    json["num_nextn_predict_layers"] = json!(1);
    std::fs::write(&config, json.to_string()).unwrap();
    let flags = format!(
        "--init-from {} --layers 2 --heads 4 --hidden-dropout 0 --attention-dropout 0 --compute f32 --save-interval 1 \
         --eval-interval 0 --lr 1e-30 --min-lr 1e-30 --router-bias-update-rate 0 --steps 1",
        theirs.display()
    );
    let words = ["num_nextn_predict_layers = 1 in ", "layers that predict further tokens are not read"];
    expect(&run(1, &folder.0, &flags), 0, &words);
    convert(&checkpoint(&folder.0, 1), &back, Direction::ToHuggingFace(DataType::F32)).unwrap();
    assert!(read(&back) == whole, "other tensors");
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(back.join("config.json")).unwrap()).unwrap();
    let kept = ["model_type", "architectures", "n_group", "topk_group"].map(|key| config[key].clone());
    assert_eq!(kept, [json!("glm4_moe_lite"), json!(["Glm4MoeLiteForCausalLM"]), json!(3), json!(1)]);
    assert_eq!(config.get("num_nextn_predict_layers"), None);
}

/// Such a layer that is asked for is read, and written with copies of the tables that it shares.
#[test]
fn layers_that_predict_further_tokens_are_read_and_written_if_they_are_asked_for() {
    let folder = Folder::new("experts-asked");
    make(&folder.0, SMALL[3], DataType::F32);
    let (theirs, back) = (folder.path("theirs"), folder.path("back"));
    let mut tensors = read(&theirs);
    let inner = |name: &String| Some(format!("model.layers.2.{}", name.strip_prefix("model.layers.1.")?));
    let block: Vec<_> = tensors.iter().filter_map(|(name, tensor)| Some((inner(name)?, tensor.clone()))).collect();
    let hidden = tensors["model.norm.weight"].0[0];
    // A weight of 0 would show the step.
    let join = (1..=2 * hidden * hidden).flat_map(|at| (at as f32 * 1e-3).to_le_bytes()).collect();
    let join = ("model.layers.2.eh_proj.weight".to_string(), (vec![hidden, 2 * hidden], join));
    let copies = [
        ("enorm.weight", "model.norm.weight"),
        ("hnorm.weight", "model.norm.weight"),
        ("shared_head.norm.weight", "model.norm.weight"),
        ("embed_tokens.weight", "model.embed_tokens.weight"),
        ("shared_head.head.weight", "lm_head.weight"),
    ];
    let copies = copies.map(|(copy, of)| (format!("model.layers.2.{copy}"), tensors[of].clone()));
    tensors.extend(block.into_iter().chain(copies).chain([join]));
    write(&theirs.join("model.safetensors"), &tensors);
    let config = theirs.join("config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    json["num_nextn_predict_layers"] = json!(1);
    std::fs::write(&config, json.to_string()).unwrap();
    let flags = format!(
        "--init-from {} --layers 2 --heads 4 --hidden-dropout 0 --attention-dropout 0 --compute f32 --save-interval 1 \
         --eval-interval 0 --lr 1e-30 --min-lr 1e-30 --router-bias-update-rate 0 --steps 1 --mtp-num-layers 1",
        theirs.display()
    );
    expect(&run(1, &folder.0, &flags), 0, &["1 layer for further tokens", "mtp-1-loss "]);
    convert(&checkpoint(&folder.0, 1), &back, Direction::ToHuggingFace(DataType::F32)).unwrap();
    let written = read(&back);
    let names = |of: &dyn Fn(&str) -> bool| tensors.keys().filter(|name| of(name)).cloned().collect::<Vec<_>>();
    assert_eq!(names(&|name| written.get(name) != Some(&tensors[name])), [""; 0], "other tensors");
    assert_eq!(written.len(), tensors.len());
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(back.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["num_nextn_predict_layers"], json!(1));
}

/// Ranks that share experts, that divide them in a pipeline, and that divide whole ones among those that share layers.
const LAYOUTS: [&str; 3] = [
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
    "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer",
    "--expert-model-parallel-size 4 --expert-tensor-parallel-size 1 --tensor-model-parallel-size 2 --sequence-parallel",
];

#[test]
fn ranks_that_share_or_divide_experts_have_the_imported_weights_and_export_them() {
    for ((preset, sizes), layout) in SMALL.into_iter().zip(LAYOUTS) {
        let made = Folder::new("experts");
        make(&made.0, (preset, sizes), DataType::Bf16);
        let flags = format!(
            "--init-from {} --layers 2 --heads 4 --hidden-dropout 0 --attention-dropout 0 --compute f32 \
             --save-interval 1 --eval-interval 0 --balance-loss-multiplier 0.01",
            made.path("theirs").display()
        );
        let (alone, shared) = (Folder::new("experts-1"), Folder::new("experts-4"));
        expect(&run(1, &alone.0, &format!("{flags} --steps 4")), 0, &["done: loss"]);
        // Next to nothing is learned, so the checkpoint has the weights that were read.
        let still = format!("{flags} {layout} --lr 1e-30 --min-lr 1e-30 --steps 1");
        expect(&run(4, &shared.0, &still), 0, &["done: loss"]);
        let loss = |folder: &Folder| metrics(&folder.0)[0][0].as_f64().unwrap();
        assert!((loss(&alone) / loss(&shared) - 1.0).abs() < 1e-6, "{preset}: {} {}", loss(&alone), loss(&shared));
        let back = made.path("back");
        convert(&checkpoint(&shared.0, 1), &back, Direction::ToHuggingFace(DataType::Bf16)).unwrap();
        for file in ["model.safetensors", "config.json"] {
            let [before, after] = [&made.path("theirs"), &back].map(|folder| std::fs::read(folder.join(file)).unwrap());
            assert!(before == after, "{preset}: {file} differs");
        }

        let resumed = resume_at(&alone, 2, 1, &format!("{flags} --steps 4"));
        assert_same(&resumed, &alone, preset);
    }
}

#[test]
fn keys_about_experts_are_those_of_transformers_and_what_it_would_not_compute_is_refused_by_name() {
    let model = |kind, keys| imported(kind, keys, &[]).unwrap().config.model;
    let mixtral = model("mixtral", json!({}));
    assert_eq!((mixtral.experts, mixtral.experts_per_token, mixtral.router_normalise), (8, 2, true));
    assert_eq!((mixtral.ffn, mixtral.expert_ffn, mixtral.sliding_window), (Some(48), None, None));
    assert_eq!((mixtral.norm_eps, mixtral.rope_base, mixtral.qk_norm), (1e-5, 1e6, false));
    let windows = model("mixtral", json!({ "sliding_window": 48, "router_jitter_noise": 0.0, "num_local_experts": 6 }));
    assert_eq!((windows.sliding_window, windows.experts), (Some(48), 6));
    // Training has its own.
    let losses = json!({ "router_aux_loss_coef": 0.5, "output_router_logits": true });
    assert_eq!(imported("mixtral", losses, &[]).unwrap().config.train.balance_loss_multiplier, 0.0);

    let olmoe = model("olmoe", json!({ "clip_qkv": null, "head_dim": 8 }));
    assert_eq!((olmoe.experts, olmoe.experts_per_token, olmoe.router_normalise), (64, 8, false));
    assert_eq!((olmoe.norm_eps, olmoe.rope_base, olmoe.qk_norm), (1e-5, 1e4, true));
    assert!(model("olmoe", json!({ "norm_topk_prob": true })).router_normalise);

    let qwen3 = model("qwen3_moe", json!({}));
    assert_eq!((qwen3.experts, qwen3.experts_per_token, qwen3.router_normalise), (128, 8, false));
    assert_eq!((qwen3.head_dim, qwen3.ffn, qwen3.expert_ffn), (None, Some(48), Some(768)));
    assert_eq!((qwen3.norm_eps, qwen3.qk_norm, qwen3.expert_pattern), (1e-6, true, vec![]));
    assert_eq!(model("qwen3_moe", json!({ "head_dim": 128 })).head_dim, Some(128), "as released");
    for (keys, pattern) in [
        (json!({ "decoder_sparse_step": 2 }), vec![0, 1, 0, 1, 0]),
        (json!({ "mlp_only_layers": [0, 3] }), vec![0, 1, 1, 0, 1]),
        (json!({ "mlp_only_layers": [1], "decoder_sparse_step": 2 }), vec![0, 0, 0, 1, 0]),
        (json!({ "mlp_only_layers": null, "decoder_sparse_step": 1 }), vec![]),
        (json!({ "mlp_only_layers": [7] }), vec![]),
    ] {
        let mut keys = keys;
        keys["num_hidden_layers"] = 5.into();
        assert_eq!(model("qwen3_moe", keys.clone()).expert_pattern, pattern, "{keys}");
    }
    // As version 5 of `transformers` writes it.
    let version_5 =
        json!({ "num_local_experts": 16, "rope_parameters": { "rope_type": "default", "rope_theta": 1e6 } });
    let qwen3 = model("qwen3_moe", version_5);
    assert_eq!((qwen3.experts, qwen3.rope_base), (16, 1e6));

    let small = json!({ "num_hidden_layers": 4, "kv_lora_rank": 18 });
    let with = |keys: serde_json::Value| {
        let mut all = small.clone();
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        all
    };
    let v3 = model("deepseek_v3", small.clone());
    assert_eq!((v3.experts, v3.expert_groups, v3.expert_groups_per_token), (256, 8, 4));
    assert_eq!((v3.query_latent, v3.head_dim, v3.value_head_dim), (Some(1536), Some(192), Some(128)));
    assert_eq!((v3.expert_pattern, v3.router_scale), (vec![0, 0, 0, 1], 2.5));
    // As released, and as `transformers` writes it.
    let dense =
        [json!({ "first_k_dense_replace": 2 }), json!({ "mlp_layer_types": ["dense", "dense", "sparse", "sparse"] })];
    for dense in dense {
        let glm = model("glm4_moe_lite", with(dense));
        assert_eq!((glm.experts, glm.experts_per_token, glm.expert_groups), (64, 4, 1));
        assert_eq!((glm.query_latent, glm.head_dim, glm.value_head_dim), (Some(768), Some(256), Some(256)));
        assert_eq!((glm.expert_pattern, glm.router_scale, glm.shared_expert_ffn), (vec![0, 0, 1, 1], 1.8, 1536));
    }

    let v2 = with(json!({ "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3 }));
    let v2 = model("deepseek_v2", v2);
    assert_eq!((v2.expert_groups, v2.expert_groups_per_token), (8, 3));
    assert_eq!((v2.expert_group_score, v2.router_score), (ExpertGroupScore::Highest, RouterScore::Softmax));
    // Version 5 of `transformers` ignores groups with this method, and so does DeepSeek's code.
    let lite = model("deepseek_v2", with(json!({ "topk_method": "greedy", "n_group": 8, "topk_group": 3 })));
    assert_eq!((lite.expert_groups, lite.experts), (1, 64));

    for (kind, key, value) in [
        ("deepseek_v2", "topk_method", json!("noaux_tc")),
        ("glm4_moe_lite", "rope_interleave", json!(false)),
        ("glm4_moe_lite", "n_group", json!(0)),
        ("glm4_moe_lite", "first_k_dense_replace", json!(2)),
        ("glm4_moe_lite", "mlp_layer_types", json!(["sparse", "dense"])),
        ("mixtral", "router_jitter_noise", json!(0.1)),
        ("mixtral", "num_local_experts", json!(0)),
        ("mixtral", "num_experts_per_tok", json!("2")),
        ("mixtral", "sliding_window", json!(0)),
        ("mixtral", "hidden_act", json!("gelu")),
        ("olmoe", "clip_qkv", json!(8.0)),
        ("olmoe", "attention_bias", json!(true)),
        ("olmoe", "head_dim", json!(16)),
        ("olmoe", "norm_topk_prob", json!("yes")),
        ("qwen3_moe", "attention_bias", json!(true)),
        ("qwen3_moe", "decoder_sparse_step", json!(0)),
        ("qwen3_moe", "decoder_sparse_step", json!(3)),
        ("qwen3_moe", "mlp_only_layers", json!([0, 1])),
        ("qwen3_moe", "mlp_only_layers", json!([-1])),
        ("qwen3_moe", "mlp_only_layers", json!("all")),
        ("qwen3_moe", "moe_intermediate_size", json!(0)),
    ] {
        let error = imported(kind, json!({ key: value }), &[]).unwrap_err();
        assert!(error.contains(&format!("{key} = ")), "{error}");
    }
    let two = json!({ "num_experts": 8, "num_local_experts": 4 });
    let error = imported("olmoe", two, &[]).unwrap_err();
    assert!(error.contains("num_local_experts = 4"), "{error}");
    let few = json!({ "num_experts": 2, "num_experts_per_tok": 3 });
    let error = imported("olmoe", few, &[]).unwrap_err();
    assert!(error.contains("model.experts_per_token = 3 with model.experts = 2"), "{error}");
    let near = imported("olmoe", json!({ "num_expert": 8 }), &[]).unwrap_err();
    assert!(near.contains("a key `num_expert` and no `num_experts`"), "{near}");
}
