//! A checkpoint is read as it was written, to the bit, and other programs can read it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::{MarkovSource, Source, Split};
use device::ops::{Rule, Status};
use device::{DType, Device, HostOptions, Staging};
use engine::graph_options::GraphOptions;
use engine::model::{GptShape, Position, gpt};
use engine::optimizer::{Muon, ParamGroup};
use engine::precision::Precision;
use engine::step::{Stage, StageOptions, StepSettings};
use launch::watch::activity::{Activity, Doing};
use safetensors::SafeTensors;
use trainer::checkpoint::{Occasion, Origin, Progress, SaveRequest, Validated, Writers, load, save, verify};

/// The usual groups of one rule.
type Groups = fn() -> Vec<ParamGroup>;

fn adamw() -> Vec<ParamGroup> {
    ParamGroup::decay_matrices(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 0.1)
}

fn lion() -> Vec<ParamGroup> {
    ParamGroup::decay_matrices(Rule::Lion { beta1: 0.9, beta2: 0.99 }, 0.1)
}

fn muon() -> Vec<ParamGroup> {
    let muon = Muon { momentum: 0.95, steps: 5, products: DType::F32 };
    let matrices = ParamGroup::new(Muon::takes, Arc::new(muon), 0.1);
    [vec![matrices], adamw()].concat()
}

fn sgd(momentum: f32) -> Vec<ParamGroup> {
    ParamGroup::decay_matrices(Rule::Sgd { momentum }, 0.1)
}

/// A small model.
#[derive(Clone, Debug)]
struct Case {
    layers: usize,
    hidden: usize,
    vocab: usize,
    padded_vocab: usize,
    seq: usize,
    tied: bool,
    precision: Precision,
    optimizer: Groups,
    frozen: fn(&str) -> bool,
}

fn device() -> Device {
    Device::host(HostOptions::default()).unwrap()
}

impl Case {
    fn stage(&self, device: &Device, seed: u64) -> Stage {
        let Case { layers, hidden, vocab, padded_vocab, seq, tied, precision, optimizer, frozen } = *self;
        let shape = GptShape {
            layers,
            hidden,
            heads: 1,
            kv_heads: 1,
            ffn: 2 * hidden,
            vocab,
            padded_vocab,
            max_seq_len: seq,
            tied,
            hidden_dropout: 0.1,
            seed,
            precision,
            position: Position::Learned { positions: seq },
            ..GptShape::default()
        };
        let options = StageOptions {
            seed: Some(seed),
            micro_batch_size: 2,
            optimizer: optimizer(),
            bucket_bytes: 4096,
            graphs: GraphOptions { enable: false, ..GraphOptions::default() },
            ..StageOptions::default()
        };
        Stage::new(device, &gpt(shape).freeze(frozen), options).unwrap()
    }

    fn step(&self, stage: &mut Stage, step: u32) {
        let first_sample = 2 * u64::from(step);
        let settings = StepSettings {
            step,
            microbatches: 1,
            first_sample,
            learning_rate: 1e-2,
            clip: 1.0,
            ..StepSettings::default()
        };
        let batch = MarkovSource::new(1, self.seq).batch(Split::Train, first_sample, 2, &Staging::default());
        stage.train_step(settings, Some(&batch.unwrap())).unwrap().wait().unwrap();
    }
}

/// Writes the stage of a rank that has everything.
fn save_alone(dir: &Path, stage: &mut Stage, progress: Progress, writers: &Writers) -> PathBuf {
    save_from(dir, stage, progress, (writers, None))
}

/// [`save_alone`], from a copy in that memory if there is one.
fn save_from(dir: &Path, stage: &mut Stage, progress: Progress, from: (&Writers, Option<&Staging>)) -> PathBuf {
    let (origin, occasion) = (&Arc::new(Origin::default()), Occasion::Interval);
    let ((writers, memory), validated, make_room) = (from, Validated::default(), &|| Ok(()));
    let metrics = b"";
    save(stage, &SaveRequest { dir, progress, validated, origin, metrics, writers, occasion, memory, make_room })
        .unwrap()
}

/// Every bit that a checkpoint has to bring back: real rows of weights and moments by name, compute weights, counters.
fn bits(stage: &Stage) -> Vec<(String, Vec<u32>)> {
    let (device, params) = (stage.device(), stage.params());
    let mut all = Vec::new();
    for (index, (spec, param)) in params.iter().enumerate() {
        let real = spec.shape.elements() / spec.shape.sizes()[0] * spec.rows;
        let mut add = |name: &str, tensor| {
            let values = device.download::<f32>(&tensor).unwrap();
            assert!(
                values[real..].iter().all(|value| value.to_bits() == 0),
                "padding of {} {name} is not 0",
                spec.name
            );
            all.push((format!("{} {name}", spec.name), values[..real].iter().map(|value| value.to_bits()).collect()));
        };
        if param.master.dtype == DType::F32 {
            add("master", param.master);
        }
        stage.optimizer().state(index).iter().for_each(|state| add(state.name, state.tensor));
        if param.weight.dtype == DType::Bf16 {
            let values = device.download::<device::bf16>(&param.weight).unwrap();
            all.push((
                format!("{} weight", spec.name),
                values[..real].iter().map(|value| value.to_bits().into()).collect(),
            ));
        }
    }
    let status: Status = bytemuck::pod_read_unaligned(&device.download::<u8>(&stage.optimizer().status()).unwrap());
    all.push(("status".into(), vec![status.applied, status.skipped]));
    all
}

#[test]
fn models_of_many_shapes_come_back_with_every_bit() {
    let kinds: [Groups; 5] = [adamw, || sgd(0.9), || sgd(0.0), lion, muon];
    for number in 0..20 {
        // Odd sizes and every combination of type, tying and optimizer among them.
        let case = Case {
            layers: 1 + number % 3,
            hidden: [1, 6, 17, 32][number % 4],
            vocab: 256 - number,
            padded_vocab: 256,
            seq: 3 + number,
            tied: number % 2 == 0,
            precision: if number % 4 < 2 { Precision::F32 } else { Precision::Bf16 },
            optimizer: kinds[number % 5],
            frozen: if number % 3 == 1 { |name| name.starts_with("h.0.") || name == "wte.weight" } else { |_| false },
        };
        let dir = tempfile::tempdir().unwrap();
        let (device, others) = (device(), self::device());
        let mut stage = case.stage(&device, 1);
        (0..3).for_each(|step| case.step(&mut stage, step));
        let progress = Progress { step: 3, samples: 6 };
        let path = save_alone(dir.path(), &mut stage, progress, &Writers::alone());
        let copied = (&Writers::alone(), Some(&Staging::default()));
        let copied = save_from(&dir.path().join("copied"), &mut stage, progress, copied);
        for file in verify(&path, &Activity::default()).unwrap().files {
            let [fed, copied] = [&path, &copied].map(|folder| std::fs::read(folder.join(&file.name)).unwrap());
            assert!(fed == copied, "{} of case {number}", file.name);
        }
        // Another seed, so that values that are not loaded differ, and more padding, as with more tensor-parallel
        // ranks.
        let other = Case { padded_vocab: 384, ..case.clone() };
        let mut loaded = other.stage(&others, 2);
        assert_ne!(bits(&loaded), bits(&stage), "{case:?}");
        let manifest = verify(&path, &Activity::default()).unwrap();
        load(&path, &manifest, &loaded, &Activity::default()).unwrap();
        assert_eq!(bits(&loaded), bits(&stage), "{case:?}");
        assert_eq!(manifest.progress(), Progress { step: 3, samples: 6 });
        // The seed decides dropout masks too, so the next step is compared with the seed of the first.
        loaded = case.stage(&others, 1);
        load(&path, &manifest, &loaded, &Activity::default()).unwrap();
        case.step(&mut stage, 3);
        case.step(&mut loaded, 3);
        assert_eq!(bits(&loaded), bits(&stage), "{case:?}, a step later");
    }
}

#[test]
fn files_are_safetensors_with_the_names_of_gpt_2_and_no_padding() {
    let case = Case {
        layers: 1,
        hidden: 8,
        vocab: 250,
        padded_vocab: 256,
        seq: 5,
        tied: true,
        precision: Precision::F32,
        optimizer: adamw,
        frozen: |_| false,
    };
    let (device, dir) = (device(), tempfile::tempdir().unwrap());
    let mut stage = case.stage(&device, 1);
    let path = save_alone(dir.path(), &mut stage, Progress { step: 7, samples: 14 }, &Writers::alone());
    assert!(path.ends_with("step-00000007"));
    let content = std::fs::read(path.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&content).unwrap();
    let mut names = file.names();
    names.sort();
    let block = ["attn.c_attn", "attn.c_proj", "ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj"];
    let mut expected: Vec<String> =
        block.iter().flat_map(|name| [format!("h.0.{name}.bias"), format!("h.0.{name}.weight")]).collect();
    expected.extend(["ln_f.bias", "ln_f.weight", "wpe.weight", "wte.weight"].map(String::from));
    assert_eq!(names, expected);
    let table = file.tensor("wte.weight").unwrap();
    assert_eq!(table.shape(), [250, 8]);
    let master = device.download::<f32>(&stage.params().get("wte.weight").master).unwrap();
    assert_eq!(table.data(), bytemuck::cast_slice::<f32, u8>(&master[..250 * 8]));
    assert_eq!(file.tensor("h.0.attn.c_attn.weight").unwrap().shape(), [24, 8]);
    let content = std::fs::read(path.join("optimizer.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&content).unwrap();
    assert_eq!(file.names().len(), 2 * names.len());
    assert_eq!(file.tensor("ln_f.weight.exp_avg_sq").unwrap().shape(), [8]);
}

#[test]
fn writing_checking_and_loading_a_checkpoint_are_seen_to_go_on_mib_by_mib() {
    let case = Case {
        layers: 1,
        hidden: 256,
        vocab: 40_000,
        padded_vocab: 40_064,
        seq: 5,
        tied: true,
        precision: Precision::F32,
        optimizer: adamw,
        frozen: |_| false,
    };
    let (device, dir) = (device(), tempfile::tempdir().unwrap());
    let mut stage = case.stage(&device, 1);
    let writers = Writers::alone();
    writers.activity.set(Doing::Writes);
    let path = save_alone(dir.path(), &mut stage, Progress { step: 1, samples: 2 }, &writers);
    let (checked, loaded) = (Activity::default(), Activity::default());
    let manifest = verify(&path, &checked).unwrap();
    load(&path, &manifest, &stage, &loaded).unwrap();
    let mib = manifest.bytes() >> 20;
    // There are fewer tensors than that: one that is large is seen to go on too.
    assert!(mib >= 120, "{mib} MiB show nothing");
    for (what, activity) in [("written", writers.activity), ("checked", checked), ("loaded", loaded)] {
        assert!(activity.changes() >= mib, "{what}: {} of {mib}", activity.changes());
    }
}
