//! Preference tuning: a model learns from pairs of answers, compared with the model that it was.

use std::path::Path;
use std::process::Output;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::sft::{TEMPLATE, answers};
use crate::harness::{Folder, cases, expect, logged_steps, mpirun, printed};

/// Tokens of the model: 256 bytes, and the token that ends a text.
const VOCAB: usize = 257;

/// Pairs of texts, each with a prompt.
const PAIRS: [[&str; 3]; 4] = [
    ["The sky is", " blue.", " green as grass."],
    ["Two and two make", " four", " five"],
    ["Q: where is it?\nA:", " Here, on the table.", " No idea"],
    ["abc", "def", "xyz!"],
];

/// The letters that byte-level tokenizers have for bytes.
fn letters() -> Vec<char> {
    let shown = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    (0..256u32)
        .map(|byte| {
            let letter = if shown(byte) { byte } else { next };
            next += u32::from(!shown(byte));
            char::from_u32(letter).unwrap()
        })
        .collect()
}

/// Answers with a label: the pair, and which of its answers.
const LABELLED: [(usize, bool); 5] = [(0, true), (1, true), (2, true), (2, false), (3, true)];

/// Writes a Llama of two layers whose weights are a formula, with a tokenizer of bytes, the pairs, and answers with a label.
pub fn write(folder: &Path) {
    let base = folder.join("base");
    std::fs::create_dir_all(&base).unwrap();
    let (hidden, kv, ffn) = (16, 8, 24);
    let mut shapes = vec![("model.embed_tokens".to_string(), vec![VOCAB, hidden])];
    for layer in 0..2 {
        let named = |name: &str, shape: &[usize]| (format!("model.layers.{layer}.{name}"), shape.to_vec());
        shapes.extend([
            named("input_layernorm", &[hidden]),
            named("self_attn.q_proj", &[hidden, hidden]),
            named("self_attn.k_proj", &[kv, hidden]),
            named("self_attn.v_proj", &[kv, hidden]),
            named("self_attn.o_proj", &[hidden, hidden]),
            named("post_attention_layernorm", &[hidden]),
            named("mlp.gate_proj", &[ffn, hidden]),
            named("mlp.up_proj", &[ffn, hidden]),
            named("mlp.down_proj", &[hidden, ffn]),
        ]);
    }
    shapes.extend([("model.norm".to_string(), vec![hidden]), ("lm_head".to_string(), vec![VOCAB, hidden])]);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .enumerate()
        .map(|(seed, (name, shape))| {
            let value = |at: usize| ((at * 37 + at / 41 * 5 + seed * 13) % 41) as f32 / 82.0 - 0.25;
            let value = |at: usize| if shape.len() == 1 { 1.0 + value(at) } else { value(at) };
            let bytes = (0..shape.iter().product()).flat_map(|at| value(at).to_le_bytes()).collect();
            (format!("{name}.weight"), shape, bytes)
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &base.join("model.safetensors")).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": ffn, "vocab_size": VOCAB,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 256, "torch_dtype": "float32",
    });
    std::fs::write(base.join("config.json"), config.to_string()).unwrap();
    let vocab: serde_json::Map<String, Value> =
        letters().into_iter().zip(0..).map(|(letter, id)| (letter.to_string(), json!(id))).collect();
    let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let end = json!({
        "id": 256, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] },
    });
    std::fs::write(base.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let pair = |[prompt, chosen, rejected]: [&str; 3]| {
        json!({ "prompt": prompt, "chosen": chosen, "rejected": rejected }).to_string() + "\n"
    };
    std::fs::write(folder.join("pairs.jsonl"), PAIRS.map(pair).concat()).unwrap();
    let answer = |(pair, is_desirable): (usize, bool)| {
        let [prompt, chosen, rejected] = PAIRS[pair];
        let completion = if is_desirable { chosen } else { rejected };
        json!({ "prompt": prompt, "completion": completion, "label": is_desirable }).to_string() + "\n"
    };
    std::fs::write(folder.join("labelled.jsonl"), LABELLED.map(answer).concat()).unwrap();
}

/// Layouts of two ranks.
pub const LAYOUTS: [&str; 3] = [
    "--tensor-model-parallel-size 2 --sequence-parallel",
    "--pipeline-model-parallel-size 2 --enable-cuda-graph",
    "--use-distributed-optimizer --recompute-granularity full",
];

/// Runs the trainer on the pairs in `folder`: three steps on all of them.
fn train(ranks: usize, folder: &Path, more: &str) -> Output {
    train_on("--dpo --data-path pairs.jsonl --seq-length 80 --global-batch-size 4", ranks, folder, more)
}

/// Runs the trainer on data in `folder`.
pub fn train_on(data: &str, ranks: usize, folder: &Path, more: &str) -> Output {
    let fixed = "--init-from base --split 1 --eval-interval 0 --lr 1e-2 --clip-grad 0 --lr-warmup-steps 0 \
                 --lr-decay-style constant --weight-decay 0 --micro-batch-size 1 --steps 3 --log-dir log --log-interval 1 \
                 --threads 1 --device host";
    let more: Vec<&str> = more.split_whitespace().collect();
    let fixed: Vec<&str> = fixed.split_whitespace().chain(data.split_whitespace()).collect();
    // A flag of a test is in place of a fixed one.
    let pairs = fixed.chunk_by(|_, next| !next.starts_with("--")).filter(|flag| !more.contains(&flag[0]));
    mpirun(ranks, folder, &pairs.flatten().chain(&more).copied().collect::<Vec<_>>())
}

const NAMES: [&str; 8] = [
    "loss",
    "grad_norm",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
];

/// The numbers of each step.
fn numbers(folder: &Path) -> Vec<Vec<f64>> {
    numbers_of(&NAMES, folder)
}

/// The numbers of these names of each step.
pub fn numbers_of(names: &[&str], folder: &Path) -> Vec<Vec<f64>> {
    let steps = logged_steps(&folder.join("log"));
    steps.iter().map(|step| names.iter().map(|name| step[name].as_f64().unwrap_or(f64::NAN)).collect()).collect()
}

/// The numbers of these names that TRL has for each step with a loss.
pub fn numbers_of_trl(names: &[&str], loss: &str) -> Vec<Vec<f64>> {
    let trl = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hf/pairs_trl.json");
    let trl: Value = serde_json::from_str(&std::fs::read_to_string(trl).unwrap()).unwrap();
    let steps = trl[loss].as_array().unwrap().iter();
    steps.map(|step| names.iter().map(|name| step[name].as_f64().unwrap()).collect()).collect()
}

#[track_caller]
pub fn assert_close(what: &str, ours: &[Vec<f64>], theirs: &[Vec<f64>], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (step, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let close = (ours - theirs).abs() <= tolerance * theirs.abs().max(0.1);
            assert!(close, "{what}, step {step}, number {at}: {ours} and {theirs}");
        }
    }
}

#[test]
fn pairs_have_the_losses_rewards_and_gradients_of_trl() {
    let kept = std::env::var_os("DPO_FOLDER");
    kept.iter().for_each(|folder| write(Path::new(folder)));
    for (loss, more) in [
        ("sigmoid", "--dpo-beta 0.5 --micro-batch-size 2"),
        ("ipo", "--dpo-beta 0.25 --micro-batch-size 4"),
        // Two pairs fit one sample.
        ("sigmoid", "--dpo-beta 0.5 --sft-packing 4 --seq-length 128 --global-batch-size 2"),
        ("ipo", "--dpo-beta 0.25 --enable-cuda-graph --cuda-graph-scope full_iteration"),
    ] {
        let folder = Folder::new("dpo-trl");
        write(&folder.0);
        let output = train(1, &folder.0, &format!("--dpo-loss-type {loss} {more}"));
        expect(&output, 0, &["read as pairs of answers, texts", "4 pairs, 0 cut to", "accuracy"]);
        assert_close(&format!("{loss} {more}"), &numbers(&folder.0), &numbers_of_trl(&NAMES, loss), 2e-4);
    }
}

#[test]
fn layouts_have_the_numbers_of_one_rank_and_references_are_kept() {
    let folder = Folder::new("dpo-layouts");
    write(&folder.0);
    // Half of the pairs are for validation.
    let more = "--save saved --split 0.5 --eval-interval 1 --eval-iters 1 --global-batch-size 2";
    let output = train(1, &folder.0, more);
    let computes = "computes the log-probabilities of 4 pairs under the first weights";
    expect(&output, 0, &[computes, "they are kept in saved/references.json", "validation margin"]);
    let alone = numbers(&folder.0);
    assert!(alone[0][2..5].iter().all(|reward| *reward == 0.0), "{alone:?}");
    let kept = std::fs::read_to_string(folder.path("saved/references.json")).unwrap();
    for layout in LAYOUTS {
        let ranks = 2;
        let other = Folder::new("dpo-layout");
        write(&other.0);
        expect(&train(ranks, &other.0, &format!("{more} {layout}")), 0, &[computes, "done: loss"]);
        assert_close(layout, &numbers(&other.0), &alone, 1e-4);
        // Another run reads the file of the first.
        std::fs::write(other.path("kept.json"), &kept).unwrap();
        if layout.contains("tensor") {
            let output = train(
                ranks,
                &other.0,
                &format!("{} {layout} --dpo-references kept.json", more.replace("saved", "again")),
            );
            expect(&output, 0, &["done: loss"]);
            assert!(!printed(&output).contains("computes the log-prob"), "{}", printed(&output));
            // Rounded otherwise, so rewards of the first step are near 0, and no accuracy is in them.
            let [ours, theirs] = [&numbers(&other.0), &alone]
                .map(|all| all.iter().map(|step| [&step[..5], &step[6..]].concat()).collect::<Vec<_>>());
            assert_close(layout, &ours, &theirs, 1e-4);
        }
    }
}

#[test]
fn a_run_goes_on_with_its_references_and_others_are_refused() {
    let folder = Folder::new("dpo-resumed");
    write(&folder.0);
    let through = Folder::new("dpo-through");
    write(&through.0);
    expect(&train(1, &through.0, "--save saved --steps 4"), 0, &["done: loss"]);
    expect(&train(1, &folder.0, "--save saved --steps 2"), 0, &["done: loss"]);
    let output = train(1, &folder.0, "--save saved --steps 4");
    expect(&output, 0, &["done: loss"]);
    assert!(!printed(&output).contains("computes the log-prob"), "{}", printed(&output));
    assert_eq!(numbers(&folder.0), numbers(&through.0));
    // Without the file the first weights are gone.
    let file = folder.path("saved/references.json");
    let kept = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let on = "--save saved --steps 6";
    expect(&train(1, &folder.0, on), 2, &["references.json is not there", "start a new run"]);
    // Those of other pairs, and of another model.
    std::fs::write(&file, kept.replace("\"sha256\":\"", "\"sha256\":\"0")).unwrap();
    expect(&train(1, &folder.0, on), 2, &["references.json is about 4 pairs with other tokens"]);
    for damaged in ["{}", ""] {
        std::fs::write(&file, damaged).unwrap();
        expect(&train(1, &folder.0, on), 2, &["references.json is no file of references"]);
    }
    std::fs::write(&file, kept.replace("[[-", "[[-9")).unwrap();
    let anew = "--save anew --dpo-references saved/references.json";
    expect(&train(1, &folder.0, anew), 2, &["is of another model: an answer of pair 1 has log-probability -9"]);
}

#[test]
fn adapters_learn_from_pairs_and_wrong_settings_are_refused() {
    let folder = Folder::new("dpo-adapters");
    write(&folder.0);
    let output = train(1, &folder.0, "--lora-rank 4 --lora-alpha 8 --steps 12 --dpo-label-smoothing 0.1");
    expect(&output, 0, &["done: loss"]);
    let steps = numbers(&folder.0);
    assert!(steps[0][2] == 0.0 && steps[11][4] > 0.2 && steps[11][5] == 1.0, "{steps:?}");
    for (more, says) in cases("pairs") {
        expect(&train(1, &folder.0, more), 2, &says);
    }
}

#[test]
fn steps_that_compute_their_references_have_the_numbers_of_kept_ones_without_a_file() {
    let lora = "--lora-rank 4 --lora-alpha 8 --save saved --split 0.5 --eval-interval 1 --eval-iters 1 \
                --global-batch-size 2 --steps 4";
    let folder = Folder::new("dpo-kept");
    write(&folder.0);
    expect(&train(1, &folder.0, lora), 0, &["they are kept in", "validation margin"]);
    let kept = numbers(&folder.0);
    let on = format!("{lora} --dpo-references step");
    expect(&train(1, &folder.0, &on.replace("--steps 4", "--steps 6")), 2, &["whose run has no such references"]);
    for (ranks, layout) in [
        (1, "--enable-cuda-graph --cuda-graph-scope full_iteration"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full"),
        (2, "--pipeline-model-parallel-size 2 --enable-cuda-graph"),
    ] {
        let folder = Folder::new("dpo-step");
        write(&folder.0);
        let more = format!("{lora} --dpo-references step {layout}");
        // A run goes on without a file.
        expect(&train(ranks, &folder.0, &more.replace("--steps 4", "--steps 2")), 0, &["validation margin"]);
        let output = train(ranks, &folder.0, &more);
        expect(&output, 0, &["done: loss"]);
        assert!(!printed(&output).contains("log-probabilities"), "{}", printed(&output));
        assert!(!folder.path("saved/references.json").exists());
        match ranks {
            1 => assert_eq!(numbers(&folder.0), kept, "{layout}"),
            _ => {
                // Rewards of the first step are 0 in any layout, and so is their accuracy.
                assert_eq!(numbers(&folder.0)[0][2..6], [0.0; 4], "{layout}");
                assert_close(layout, &numbers(&folder.0), &kept, 1e-4);
            }
        }
    }
}

/// Questions, each with two answers. A model learns both, and the second twice as often. Then it learns to prefer the first.
const TAUGHT: [[&str; 3]; 4] =
    [["sky", "grey", "blue"], ["sun", "warm", "high"], ["grass", "lush", "tall"], ["snow", "cold", "deep"]];

#[test]
fn a_model_that_knows_two_answers_comes_to_give_the_preferred_one() {
    let folder = Folder::new("dpo-answers");
    let messages = |role: &str, content: &str| json!([{ "role": role, "content": content }]);
    let chat = |question: &str, answer: &str| {
        json!({ "prompt": messages("user", question), "completion": messages("assistant", answer) }).to_string() + "\n"
    };
    let chats = TAUGHT.map(|[question, a, b]| chat(question, a) + &chat(question, b).repeat(2)).concat();
    let pair = |[question, chosen, rejected]: [&str; 3]| {
        let [chosen, rejected] = [chosen, rejected].map(|answer| messages("assistant", answer));
        json!({ "prompt": messages("user", question), "chosen": chosen, "rejected": rejected }).to_string() + "\n"
    };
    let asked = |[question, chosen, rejected]: [&str; 3]| {
        let choices = [chosen, rejected].map(|answer| format!("{answer};"));
        json!({ "context": format!("Q {question} A"), "choices": choices, "gold": 0 }).to_string() + "\n"
    };
    for (name, text) in [
        ("chats.jsonl", chats),
        ("pairs.jsonl", TAUGHT.map(pair).concat()),
        ("questions.jsonl", TAUGHT.map(asked).concat()),
        ("template.jinja", TEMPLATE.into()),
    ] {
        std::fs::write(folder.path(name), text).unwrap();
    }
    let train = |of: &str| {
        let line = format!(
            "{of} --chat-template template.jinja --split 1 --eval-interval 0 --seq-length 48 --threads 1 --device host \
             --micro-batch-size 4 --lr-warmup-steps 0"
        );
        mpirun(1, &folder.0, &line.split_whitespace().collect::<Vec<_>>())
    };
    let model = "--layers 1 --hidden-size 64 --heads 4 --lr 5e-3 --steps 150 --global-batch-size 12";
    let output = train(&format!("--sft --data-path chats.jsonl {model} --save saved --log-dir log"));
    expect(&output, 0, &["done: loss"]);
    let dpo = "--init-from saved --dpo --data-path pairs.jsonl --lr 5e-4 --steps 20 --global-batch-size 4";
    let output = train(&format!("{dpo} --save preferred --log-dir dpo"));
    expect(&output, 0, &["read as pairs of answers, lists of messages", "done: loss"]);
    for (model, share, answer) in [("saved", 0.0, 2), ("preferred", 1.0, 1)] {
        let line =
            format!("eval {model} --multiple-choice questions.jsonl --micro-batch-size 4 --threads 1 --device host");
        let output = mpirun(1, &folder.0, &line.split_whitespace().collect::<Vec<_>>());
        expect(&output, 0, &[]);
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["acc"].as_f64(), Some(share), "{model}");
        for taught in TAUGHT {
            assert_eq!(answers(&folder.path(model), &format!("{}\n", taught[0])), format!("{}\n", taught[answer]));
        }
    }
}
