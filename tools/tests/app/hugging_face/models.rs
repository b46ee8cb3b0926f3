//! Hugging Face models in and out: training starts from a model that `transformers` saved, and it comes back the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use common::UserError;
use device::{Device, HostOptions, HostValues};
use engine::model::gpt;
use engine::params::Params;
use engine::step::{Stage, StepSettings};
use safetensors::SafeTensors;
use tempfile::TempDir;
use tools::commands::cli::{Request, parse};
use trainer::config::plan::{ModelPlan, RunPlan};
use trainer::error::RunError;
use trainer::generation::Generator;
use trainer::hf::{DataType, Direction, Pretrained, convert};
use trainer::process_group::ProcessGroup;
use trainer::run::set_up::{load_start, stage};

/// Plans a run from a command line.
pub fn plan(flags: &[&str]) -> Result<RunPlan, UserError> {
    let fixed = ["trainer", "--micro-batch-size", "2", "--global-batch-size", "2", "--eval-interval", "1"];
    let Request::Train(request) = parse(fixed.iter().chain(flags).map(Into::into))? else { panic!("not a run") };
    RunPlan::new(request.config, 1)
}

pub fn stage_of(plan: &RunPlan) -> Result<(Device, Stage), RunError> {
    let device = Device::host(HostOptions { threads: 1, check: true, dry: false })?;
    let group = ProcessGroup::single(1);
    let stage = stage(plan, &device, &group, false)?;
    load_start(plan, &device, &stage)?;
    Ok((device, stage))
}

pub fn python(script: &str, action: &str, folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("PARITY_PYTHON")
        .map_or_else(|| root.parent().unwrap().join(".venv/bin/python"), PathBuf::from);
    let mut command = Command::new(&python);
    command.args(["-E", "-S"]).arg(root.parent().unwrap().join("tests/warm.py"));
    let output = command.arg(root.join("tests/hf").join(script)).arg(action).arg(folder).output();
    let output = output.unwrap_or_else(|e| panic!("{} cannot be started ({e}): run `./x test`", python.display()));
    assert!(output.status.success(), "{action}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Logits after each token, of a model read from `folder`: all but the last as a token at a time is read through the
/// cache, the last as the text is read at once. `(tokens, vocab)`.
pub fn logits(folder: &Path, tokens: &[i32]) -> Vec<f32> {
    let plan = plan(&["--init-from", folder.to_str().unwrap()]).unwrap();
    let ModelPlan::Gpt(shape) = plan.model else { panic!("not a gpt") };
    let device = Device::host(HostOptions { threads: 1, check: true, dry: false }).unwrap();
    let params = Params::without_gradients(&device, gpt(shape.clone()).specs).unwrap();
    Pretrained::open(folder).unwrap().load(&shape, &params, &device, 0..0).unwrap();
    let mut generator = Generator::new(&device, &shape, &params, tokens.len()).unwrap();
    let mut all = generator.start(&tokens[..1]).unwrap();
    for &token in &tokens[1..tokens.len() - 1] {
        all.extend(generator.read(token).unwrap());
    }
    all.extend(generator.start(tokens).unwrap());
    all
}

#[test]
fn models_of_transformers_have_their_logits_and_loss_here_and_come_back_the_same_bytes() {
    let folder = TempDir::new().unwrap();
    let at = |name: String| folder.path().join(name);
    python("models.py", "make", folder.path());
    for (name, dtype) in [
        ("gpt2", DataType::F32),
        ("gpt2-untied", DataType::F16),
        ("llama", DataType::F32),
        ("llama-sharded", DataType::Bf16),
        ("llama-wide", DataType::F32),
        ("mistral", DataType::F32),
        ("mistral-full", DataType::F32),
        ("qwen2", DataType::F32),
        ("qwen2-tied", DataType::F16),
        ("qwen2-yarn", DataType::F32),
        ("llama-linear", DataType::F32),
        ("qwen3", DataType::F32),
        ("qwen3-tied", DataType::Bf16),
        ("olmo2", DataType::F32),
        ("olmo2-tied", DataType::Bf16),
        ("mixtral", DataType::F32),
        ("mixtral-sharded", DataType::Bf16),
        ("qwen3-moe", DataType::F32),
        ("qwen3-moe-step", DataType::Bf16),
        ("olmoe", DataType::F32),
        ("olmoe-tied", DataType::F16),
        ("deepseek-v2", DataType::F32),
        ("deepseek-v3", DataType::F32),
        ("gpt-oss", DataType::F32),
        ("gpt-oss-mxfp4", DataType::Bf16),
        ("gemma2", DataType::F32),
        ("gemma2-untied", DataType::Bf16),
        ("gemma3", DataType::F32),
        ("gemma3-capped", DataType::F16),
    ] {
        let (theirs, ours, back) = (at(name.into()), at(format!("{name}-ours")), at(format!("{name}-back")));
        convert(&theirs, &ours, Direction::FromHuggingFace).unwrap();
        convert(&ours, &back, Direction::ToHuggingFace(dtype)).unwrap();
        if !name.ends_with("-sharded") {
            let bytes = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
            assert!(bytes(&theirs) == bytes(&back), "{name}: the file differs");
        }
        let batch = std::fs::read(theirs.join("tokens.safetensors")).unwrap();
        let batch = SafeTensors::deserialize(&batch).unwrap();
        let tokens = |name: &str| -> Vec<i32> {
            let bytes = batch.tensor(name).unwrap().data().chunks(4);
            bytes.map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let f64s = |name: &str| -> Vec<f64> {
            let bytes = batch.tensor(name).unwrap().data().chunks(8);
            bytes.map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
        };
        // Theirs are in f64, so the only difference is the rounding of f32 here.
        let inputs = tokens("tokens");
        let (first, second) = inputs.split_at(inputs.len() / 2);
        let ours_of_all = [logits(&theirs, first), logits(&theirs, second)].concat();
        let wanted = f64s("logits");
        assert_eq!(ours_of_all.len(), wanted.len(), "{name}");
        let largest = wanted.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        for (at, (ours, wanted)) in ours_of_all.iter().zip(&wanted).enumerate() {
            let difference = (f64::from(*ours) - wanted).abs() / largest;
            assert!(difference < 2e-6, "{name}: logit {at} is {ours} here, {wanted} in transformers");
        }
        let wanted = f64s("loss")[0];
        let targets = tokens("targets");
        let seq = inputs.len() / 2;
        let rows: Vec<i32> = (0..2)
            .flat_map(|row| [&inputs[row * seq..][..seq], &targets[row * seq + seq - 1..][..1]].concat())
            .collect();
        // Started from their folder and from ours, as a user would.
        for folder in [&theirs, &ours] {
            let (_device, mut stage) = stage_of(&plan(&["--init-from", folder.to_str().unwrap()]).unwrap()).unwrap();
            let batch = HostValues::I32(rows.clone().into());
            let settings = StepSettings::default();
            let loss = stage.evaluate(settings, Some(&batch)).unwrap().wait().unwrap().loss;
            assert!((loss / wanted - 1.0).abs() < 1e-6, "{name}: loss {loss} here, {wanted} in transformers");
        }
    }
    python("models.py", "check", folder.path());
    // Numbers of 4 bits are those that `transformers` makes of them.
    let (packed, ours) = (at("gpt-oss-mxfp4-packed".into()), at("unpacked".into()));
    convert(&packed, &ours, Direction::FromHuggingFace).unwrap();
    let weights = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
    assert!(weights(&ours) == weights(&at("gpt-oss-mxfp4-ours".into())), "MXFP4 differs");
    let back = at("unpacked-back".into());
    convert(&ours, &back, Direction::ToHuggingFace(DataType::Bf16)).unwrap();
    assert!(weights(&back) == weights(&at("gpt-oss-mxfp4".into())), "it came back otherwise");
    let config = std::fs::read_to_string(back.join("config.json")).unwrap();
    assert!(!config.contains("quantization_config") && config.contains("gpt_oss"), "{config}");
}

/// A folder of ours with a model of its first weights, as `--preset` and flags make it.
pub fn trained(folder: &Path, flags: &[&str]) {
    let plan = plan(flags).unwrap();
    let (device, stage) = stage_of(&plan).unwrap();
    save(folder, &plan, &device, &stage);
}

/// Writes the model of a stage as a folder of ours.
pub fn save(folder: &Path, plan: &RunPlan, device: &Device, stage: &Stage) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.toml"), toml::to_string(&plan.config).unwrap()).unwrap();
    let tensors: Vec<_> = stage
        .params()
        .iter()
        .map(|(spec, param)| {
            let mut shape = spec.shape.sizes().to_vec();
            shape[0] = spec.rows;
            let values = device.download::<f32>(&param.master).unwrap();
            let real: usize = shape.iter().product();
            (spec.name.clone(), shape, bytemuck::cast_slice::<f32, u8>(&values[..real]).to_vec())
        })
        .collect();
    let view = |shape: &Vec<usize>, bytes| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap()
    };
    let views = tensors.iter().map(|(name, shape, bytes)| (name.clone(), view(shape, bytes)));
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

#[test]
fn what_is_exported_and_imported_again_is_the_same_tensors() {
    let small = "--layers 2 --hidden 32 --heads 4 --kv-heads 1 --ffn 48 --seq-length 16 --compute f32";
    let small: Vec<&str> = small.split(' ').collect();
    for (preset, sizes) in [
        ("tiny", vec![]),
        ("tiny-llama", vec![]),
        ("tiny-llama", vec!["--head-dim", "12"]),
        ("mistral-7b", small.clone()),
        ("qwen2.5-0.5b", small.clone()),
        ("qwen3-8b", [&small[..], &["--head-dim", "12"]].concat()),
        ("olmo2-7b", [&small[..], &["--head-dim", "12"]].concat()),
        ("mixtral-8x7b", [&small[..], &["--head-dim", "12", "--experts", "4"]].concat()),
        (
            "qwen3-30b-a3b",
            [&small[..], &["--head-dim", "12", "--experts", "12", "--expert-ffn", "20", "--expert-pattern", "[0,1]"]]
                .concat(),
        ),
        ("olmoe-1b-7b", small.clone()),
        ("gpt-oss-20b", [&small[..], &["--head-dim", "12", "--experts", "4"]].concat()),
        ("gemma2-27b", [&small[..], &["--head-dim", "12"]].concat()),
        ("gemma3-4b", [&small[..], &["--head-dim", "6"]].concat()),
    ] {
        let folder = TempDir::new().unwrap();
        let [ours, theirs, back] = ["ours", "theirs", "back"].map(|name| folder.path().join(name));
        trained(&ours, &[&["--preset", preset, "--vocab", "300"], &sizes[..]].concat());
        convert(&ours, &theirs, Direction::ToHuggingFace(DataType::F32)).unwrap();
        convert(&theirs, &back, Direction::FromHuggingFace).unwrap();
        let [before, after] = [&ours, &back].map(|folder| std::fs::read(folder.join("model.safetensors")).unwrap());
        let [before, after] = [&before, &after].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
        assert_eq!(before.len(), after.len());
        for (name, tensor) in before.tensors() {
            let other = after.tensor(&name).unwrap();
            assert!(tensor.shape() == other.shape() && tensor.data() == other.data(), "{preset}: {name}");
        }
        let options = |folder: &Path| Pretrained::open(folder).unwrap().options().clone();
        for (key, value) in options(&theirs) {
            let of_run = options(&ours).into_iter().find(|(name, _)| *name == key);
            assert!(of_run.is_none_or(|(_, of_run)| of_run == value), "{preset}: {key} = {value}");
        }
    }
}

#[test]
fn options_override_those_of_the_folder_and_shorter_sequences_leave_the_model_its_learned_positions() {
    let folder = TempDir::new().unwrap();
    let ours = folder.path().join("ours");
    trained(&ours, &["--seq-length", "48", "--hidden", "32"]);
    let from = ours.to_str().unwrap();
    let plan = plan(&["--init-from", from, "--seq-length", "16"]).unwrap();
    let model = &plan.config.model;
    assert_eq!((model.hidden, model.seq_length, model.max_position_embeddings), (32, 16, Some(48)));
    let (device, stage) = stage_of(&plan).unwrap();
    let file = std::fs::read(ours.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let read: Vec<f32> = device.download(&stage.params().get("wpe.weight").master).unwrap();
    assert_eq!(bytemuck::cast_slice::<f32, u8>(&read), file.tensor("wpe.weight").unwrap().data());
    let [again, theirs] = ["again", "theirs"].map(|name| folder.path().join(name));
    save(&again, &plan, &device, &stage);
    convert(&again, &theirs, Direction::ToHuggingFace(DataType::F32)).unwrap();
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(theirs.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["n_positions"], 48);
    let longer = self::plan(&["--init-from", theirs.to_str().unwrap(), "--seq-length", "64"]).unwrap_err().to_string();
    assert!(longer.contains("model.seq_length = 64 with model.max_position_embeddings = 48"), "{longer}");
}

/// The error of converting a good export after `spoil` has changed it.
fn refusal(spoil: impl Fn(&Path)) -> String {
    let folder = TempDir::new().unwrap();
    let [ours, theirs, back] = ["ours", "theirs", "back"].map(|name| folder.path().join(name));
    trained(&ours, &["--preset", "tiny-llama"]);
    convert(&ours, &theirs, Direction::ToHuggingFace(DataType::F32)).unwrap();
    spoil(&theirs);
    convert(&theirs, &back, Direction::FromHuggingFace).unwrap_err().to_string()
}

fn replace(folder: &Path, file: &str, from: &str, to: &str) {
    let path = folder.join(file);
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect(from);
    std::fs::write(path, [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()).unwrap();
}

#[test]
fn folders_that_are_not_whole_or_not_ours_are_refused_by_name() {
    let says = |error: String, words: &str| assert!(error.contains(words), "{error}\nshould say: {words}");
    let weights = "model.safetensors";
    says(refusal(|f| std::fs::remove_file(f.join(weights)).unwrap()), "model.safetensors cannot be read");
    says(
        refusal(|f| {
            let bytes = std::fs::read(f.join(weights)).unwrap();
            std::fs::write(f.join(weights), &bytes[..bytes.len() - 1]).unwrap();
        }),
        "ends before its tensor",
    );
    says(refusal(|f| std::fs::write(f.join(weights), [255; 64]).unwrap()), "its header has");
    says(
        refusal(|f| replace(f, weights, "model.norm.weight", "model.morn.weight")),
        "has a tensor `model.morn.weight` that no parameter",
    );
    says(refusal(|f| replace(f, weights, "\"F32\"", "\"F99\"")), "not F32, F16 or BF16");
    says(refusal(|f| replace(f, "config.json", "\"model_type\": \"llama\"", "\"model_type\": \"bert\"")), "model_type");
    says(refusal(|f| replace(f, "config.json", "\"silu\"", "\"relu\"")), "hidden_act = \"relu\"");
    says(
        refusal(|f| replace(f, "config.json", "\"intermediate_size\": 176", "\"intermediate_size\": 177")),
        "has shape",
    );
    says(
        refusal(|f| replace(f, "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")),
        "no parameter",
    );
}

/// Replaces the header of the weights, with its length.
fn with_header(folder: &Path, change: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = folder.join("model.safetensors");
    let content = std::fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&content[8..data]).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length[..], &header, &content[data..]].concat()).unwrap();
}

#[test]
fn tensors_that_overlap_absurd_sizes_and_names_that_lead_elsewhere_are_refused() {
    let says = |error: String, words: &str| assert!(error.contains(words), "{error}\nshould say: {words}");
    let (up, gate) = ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight");
    let same_bytes =
        |f: &Path| with_header(f, |header| header[up]["data_offsets"] = header[gate]["data_offsets"].clone());
    says(refusal(same_bytes), "overlaps another");
    let axes = |f: &Path| with_header(f, |header| header[up]["shape"] = serde_json::json!([176, 64, 1]));
    says(refusal(axes), "has shape [176, 64, 1], the model [176, 64]");
    let huge = |f: &Path| with_header(f, |header| header[up]["shape"] = serde_json::json!([1u64 << 62, 1u64 << 62]));
    says(refusal(huge), "with shape [4611686018427387904, 4611686018427387904]");
    for layers in ["2147483648", "1e300", "-1", "4097", "\"\\u001b[2J\""] {
        let layers = |f: &Path| {
            replace(f, "config.json", "\"num_hidden_layers\": 2", &format!("\"num_hidden_layers\": {layers}"))
        };
        let error = refusal(layers);
        assert!(error.contains("Rule: ") && !error.contains(char::is_control), "{error}");
    }
    let many_heads = |f: &Path| replace(f, "config.json", "\"head_dim\": 16", "\"head_dim\": 9223372036854775807");
    says(refusal(many_heads), "head_dim = 9223372036854775807");
    says(
        refusal(|f| replace(f, "config.json", "\"rms_norm_eps\"", "\"rms_norn_eps\"")),
        "a key `rms_norn_eps` and no `rms_norm_eps`",
    );
    says(
        refusal(|f| replace(f, "config.json", "\"rms_norm_eps\": 0.00001", "\"rms_norm_eps\": 1e39")),
        "no larger than f32 can hold",
    );
    let index = |name: &str| {
        let text = format!("{{\"weight_map\": {{\"a\": \"{name}\"}}}}");
        refusal(|f| {
            // A file of all weights would be read in place of those that an index lists.
            std::fs::remove_file(f.join("model.safetensors")).unwrap();
            std::fs::write(f.join("model.safetensors.index.json"), &text).unwrap();
        })
    };
    for name in ["../ours/model.safetensors", "/dev/zero", "..", ""] {
        says(index(name), "which is no name of a file in its folder");
    }
    for (file, said) in
        [("config.json", "config.json cannot be read"), ("model.safetensors", "model.safetensors cannot be read")]
    {
        let zero = |f: &Path| {
            std::fs::remove_file(f.join(file)).unwrap();
            std::os::unix::fs::symlink("/dev/zero", f.join(file)).unwrap();
        };
        says(refusal(zero), &format!("{said}: it is not a regular file"));
        let pipe = |f: &Path| {
            std::fs::remove_file(f.join(file)).unwrap();
            assert!(Command::new("mkfifo").arg(f.join(file)).status().unwrap().success());
        };
        says(refusal(pipe), &format!("{said}: it is not a regular file"));
    }
}

#[test]
fn a_folder_of_links_is_read_as_the_library_of_hugging_face_leaves_it() {
    let folder = TempDir::new().unwrap();
    let [ours, blobs, theirs, back] = ["ours", "blobs", "snapshot", "back"].map(|name| folder.path().join(name));
    trained(&ours, &["--preset", "tiny-llama"]);
    convert(&ours, &blobs, Direction::ToHuggingFace(DataType::F32)).unwrap();
    std::fs::create_dir(&theirs).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(blobs.join(name), theirs.join(name)).unwrap();
    }
    convert(&theirs, &back, Direction::FromHuggingFace).unwrap();
}

#[test]
fn models_of_no_family_are_not_exported() {
    let folder = TempDir::new().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
    trained(&ours, &["--position", "none"]);
    let error = convert(&ours, &theirs, Direction::ToHuggingFace(DataType::F32)).unwrap_err().to_string();
    assert!(error.contains("model.position") && !theirs.exists(), "{error}");
    let error = plan(&["--init-from", "/nowhere"]).unwrap_err().to_string();
    assert!(error.contains("/nowhere does not exist"), "{error}");
}

#[test]
fn a_conversion_that_a_full_disk_stops_is_a_fault_and_leaves_no_part_of_a_file() {
    let folder = TempDir::new().unwrap();
    let [ours, target] = ["ours", "target"].map(|name| folder.path().join(name));
    trained(&ours, &[]);
    let limited = |kib: usize, target: &Path| {
        let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" convert --to hf \"$@\"");
        let trainer = env!("CARGO_BIN_EXE_trainer");
        let output = Command::new("bash").args(["-c", &script, trainer]).arg(&ours).arg(target).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = limited(16, &target);
    assert!(code == Some(3) && text.contains("model.safetensors.partial was not written: "), "{code:?} {text}");
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
    let (code, text) = limited(16, &ours.join("config.toml"));
    assert!(code == Some(2) && text.contains("config.toml cannot be made: "), "{code:?} {text}");
}
