//! Low-rank adapters: trained from a model of Hugging Face, saved, continued, merged, and loaded by PEFT.

use std::path::Path;

use engine::model::is_adapter;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use trainer::hf::{DataType, Direction, convert};

use crate::harness::{Folder, assert_same, expect, losses, resume_at, run, stdout_of};
use crate::hugging_face::models::{logits, plan, python, save, stage_of, trained};

pub const TOKENS: [i32; 11] = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 264];

/// A small Qwen3 with experts.
const MIXTURE: &str = "qwen3-30b-a3b --layers 2 --hidden-size 32 --heads 4 --kv-heads 2 --head-dim 8 --ffn 48 --expert-ffn 24 \
                       --experts 4 --experts-per-token 2 --expert-pattern [0,1] --seq-length 32";

/// A small gpt-oss.
const GPT_OSS: &str = "gpt-oss-20b --layers 2 --hidden-size 32 --heads 4 --kv-heads 2 --head-dim 8 --ffn 24 --experts 4 \
                       --experts-per-token 2 --seq-length 32";

/// A small model with latent attention, and a shared expert behind a dense block.
const LATENT: &str = "glm-4.7-flash --layers 2 --hidden-size 32 --heads 4 --ffn 48 --experts 4 --experts-per-token 2 \
                      --expert-ffn 12 --shared-expert-ffn 12 --expert-pattern [0,1] --kv-latent 18 --query-latent 14 \
                      --head-dim 10 --rotary-head-dim 4 --value-head-dim 8 --seq-length 32";

/// Another one, whose queries follow from no latent.
const HALF_LATENT: &str = "moonlight-16b-a3b --layers 2 --hidden-size 32 --heads 4 --ffn 48 --experts 4 \
                           --experts-per-token 2 --expert-ffn 12 --shared-expert-ffn 12 --expert-pattern [0,1] \
                           --kv-latent 18 --head-dim 10 --rotary-head-dim 4 --value-head-dim 8 --seq-length 32";

/// The values of a tensor of a file, f32.
pub fn values(path: &Path, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    f32s(file.tensor(name).unwrap().data())
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A folder of ours with adapters that are not 0, over the model in `base`.
fn with_adapters(folder: &Path, base: &Path, flags: &[&str]) {
    let plan = plan(&[&["--init-from", base.to_str().unwrap()], flags].concat()).unwrap();
    let (device, stage) = stage_of(&plan).unwrap();
    for (index, spec) in stage.params().specs.iter().enumerate().filter(|(_, spec)| spec.name.ends_with(".lora_B")) {
        let value = |at: usize| ((at * 37 + index * 11) % 41) as f32 / 41.0 - 0.5;
        stage.params().set(&device, index, &spec.stored_values(value)).unwrap();
    }
    save(folder, &plan, &device, &stage);
}

/// Writes `logits.safetensors` for the folders `base`, `adapters` and `merged` in a folder.
pub fn logits_of_peft(folder: &Path) {
    let bytes = bytemuck::cast_slice::<i32, u8>(&TOKENS);
    let tokens = TensorView::new(Dtype::I32, vec![1, TOKENS.len()], bytes).unwrap();
    safetensors::serialize_to_file([("tokens", tokens)], None, &folder.join("tokens.safetensors")).unwrap();
    python("adapters.py", "logits", folder);
}

#[test]
fn peft_loads_the_adapters_and_transformers_the_merged_model_with_the_logits_that_they_have_here() {
    for (preset, rank, targets) in [
        ("tiny", "4", "all-linear"),
        ("tiny", "3", "attn.c_proj c_attn"),
        ("tiny-llama", "4", "all-linear"),
        ("tiny-llama", "5", "v_proj q_proj down_proj"),
        // A dense block, and one with experts.
        (MIXTURE, "3", "v_proj gate_proj up_proj down_proj"),
        // Parameters of all experts.
        (GPT_OSS, "3", "all-linear"),
        (GPT_OSS, "2", "q_proj down_proj"),
        (LATENT, "3", "all-linear"),
        (HALF_LATENT, "2", "q_proj kv_a_proj_with_mqa kv_b_proj"),
    ] {
        let what = format!("{preset} {targets}");
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        let preset: Vec<&str> = preset.split(' ').collect();
        trained(&at("ours"), &[&["--vocab", "300", "--init-std", "0.2", "--preset"], &preset[..]].concat());
        convert(&at("ours"), &at("base"), Direction::ToHuggingFace(DataType::F32)).unwrap();
        let flags = [
            &["--lora-rank", rank, "--lora-alpha", "6", "--lora-target-modules"][..],
            &targets.split(' ').collect::<Vec<_>>(),
        ];
        with_adapters(&at("lora"), &at("base"), &flags.concat());
        convert(&at("lora"), &at("adapters"), Direction::ToPeft(DataType::F32)).unwrap();
        convert(&at("lora"), &at("merged"), Direction::ToHuggingFace(DataType::F32)).unwrap();

        logits_of_peft(folder.path());

        let theirs = |name| values(&at("logits.safetensors"), name);
        let largest = theirs("adapters").iter().fold(0.0f32, |a, b| a.max(b.abs()));
        let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / largest;
        let ours = logits(&at("lora"), &TOKENS);
        assert!(apart(&ours, &theirs("base")) > 1e-2, "{what}: the adapters do nothing");
        for name in ["adapters", "merged"] {
            assert_eq!(ours.len(), theirs(name).len());
            assert!(apart(&ours, &theirs(name)) < 1e-5, "{what}: {name} {}", apart(&ours, &theirs(name)));
        }
        // The folder of PEFT is a model: its base with the same adapters.
        assert_eq!(logits(&at("adapters"), &TOKENS), ours, "{what}");
        convert(&at("adapters"), &at("again"), Direction::ToHuggingFace(DataType::F32)).unwrap();
        let bytes = |name: &str| std::fs::read(at(name).join("model.safetensors")).unwrap();
        assert!(bytes("again") == bytes("merged"), "{what}");
    }
}

#[test]
fn frozen_weights_in_bf16_are_saved_so_and_the_run_goes_on_with_the_same_bits() {
    let base = Folder::new("lora-bf16-base");
    expect(&run(1, &base.0, "--preset tiny-llama --hidden-size 64 --ffn 192 --steps 2"), 0, &["done: loss"]);
    // In memory they have 4 bits, and the values of these are saved.
    let flags = format!(
        "--init-from {} --compute bf16 --steps 8 --save-interval 4 --lora-rank 4 --lora-target-modules q_proj,v_proj \
         --hidden-size 64 --ffn 192 --frozen-weights nf4",
        base.path("saved").display()
    );
    let whole = Folder::new("lora-bf16");
    expect(&run(1, &whole.0, &flags), 0, &["done: loss"]);
    let bytes = std::fs::read(whole.path("saved/step-00000008/model.safetensors")).unwrap();
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let wanted = if is_adapter(&name) { Dtype::F32 } else { Dtype::BF16 };
        assert_eq!(tensor.dtype(), wanted, "{name}");
    }
    let resumed = resume_at(&whole, 4, 1, &flags);
    assert_same(&resumed, &whole, "");
    // Norms have no adapters.
    let merged = whole.path("merged/model.safetensors");
    convert(&whole.path("saved"), &whole.path("merged"), Direction::ToHuggingFace(DataType::F32)).unwrap();
    let frozen = SafeTensors::deserialize(&bytes).unwrap();
    let widened = |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    let norm: Vec<f32> = frozen.tensor("h.0.ln_1.weight").unwrap().data().chunks_exact(2).map(widened).collect();
    assert_eq!(values(&merged, "model.layers.0.input_layernorm.weight"), norm);
}

#[test]
fn a_run_with_adapters_trains_them_alone_and_goes_on_from_its_checkpoint_in_any_layout() {
    let base = Folder::new("lora-base");
    let sizes = "--preset tiny-llama --steps 8 --save-interval 4";
    expect(&run(1, &base.0, sizes), 0, &["done: loss"]);
    let from = base.path("saved");
    let flags = format!(
        "--init-from {} --lr 3e-3 --steps 8 --save-interval 4 --lora-rank 4 --lora-dropout 0.1 --lora-target-modules q_proj,v_proj,down_proj",
        from.display()
    );
    let whole = Folder::new("lora");
    let output = run(1, &whole.0, &flags);
    expect(&output, 0, &["frozen", "done: loss"]);
    let model = |folder: &Folder, step: usize| folder.path(&format!("saved/step-{step:08}/model.safetensors"));
    let bytes = std::fs::read(model(&whole, 8)).unwrap();
    let mut adapters = 0;
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        if is_adapter(&name) {
            adapters += 1;
        } else {
            let before = values(&model(&base, 8), &name);
            assert!(f32s(tensor.data()) == before, "{name} was trained");
        }
    }
    assert_eq!(adapters, 2 * 2, "A and B: q and v share theirs");

    // From the checkpoint of step 4, to the same losses: to the bit in the same layout.
    for (ranks, layout, within) in [
        (1, "", 0.0),
        (2, "--data-parallel-sharding-strategy optim_grads_params", 1e-5),
        // Each rank drops inputs of `down_proj` by a mask of its own.
        (2, "--tensor-model-parallel-size 2", 1e-2),
    ] {
        let folder = resume_at(&whole, 4, ranks, &format!("{flags} {layout}"));
        let (ours, theirs) = (losses(&folder), losses(&whole));
        let close = ours.iter().rev().zip(theirs.iter().rev()).take(4).all(|(a, b)| (a / b - 1.0).abs() <= within);
        assert!(close, "{layout}: {ours:?} and {theirs:?}");
    }
    // The same folder without flags of adapters goes on with them, and says so before the first step.
    let without = format!("--init-from {} --lr 3e-3 --steps 8 --save-interval 4", from.display());
    let output = run(1, &whole.0, &without);
    expect(
        &output,
        0,
        &["step-00000008 has adapters (model.lora_rank = 4), and the run trains them on", "another --save"],
    );
    // Another scale of the same adapters is another model.
    let other = flags.replace("--lora-rank 4", "--lora-rank 4 --lora-alpha 8");
    let output = run(1, &whole.0, &other.replace("--steps 8", "--steps 9"));
    expect(&output, 2, &["model.lora_alpha = 8 (was 16)"]);

    // The checkpoint is a model of its own.
    let saved = whole.path("saved");
    let text = stdout_of(&["sample", "--checkpoint", saved.to_str().unwrap(), "--prompt", "a", "--tokens", "4"]);
    assert!(!text.is_empty());
    let refused = convert(&from, &whole.path("none"), Direction::ToPeft(DataType::F32)).unwrap_err().to_string();
    assert!(refused.contains("has no adapters"), "{refused}");
}
