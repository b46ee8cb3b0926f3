//! A run that stopped and went on has the bits of one that never stopped.

use launch::watch::activity::Activity;
use sha2::{Digest, Sha256};

use crate::harness::{Folder, assert_same, bits, expect, logged_steps, metrics, resume_at, run, saved, trainer};

const OFF: &str = "";
const PER_LAYER: &str = "--enable-cuda-graph";
const FULL: &str = "--enable-cuda-graph --cuda-graph-scope full_iteration";

/// Eight steps with a checkpoint after every fourth.
fn flags(graphs: &str) -> String {
    format!("--steps 8 --save-interval 4 {graphs}")
}

/// A run that goes on after the first of two checkpoints ends as one that was never broken off.
#[test]
fn one_two_and_four_ranks_go_on_with_the_same_bits_whatever_the_graphs() {
    for ranks in [1, 2, 4] {
        let unbroken = Folder::new(&format!("unbroken-{ranks}"));
        expect(&run(ranks, &unbroken.0, &flags(OFF)), 0, &["done: loss"]);
        assert_eq!(saved(&unbroken.0), [4, 8]);
        assert_ne!(bits(&unbroken.0, 4), bits(&unbroken.0, 8), "nothing is learnt");
        for graphs in [OFF, PER_LAYER, FULL] {
            let resumed = resume_at(&unbroken, 4, ranks, &flags(graphs));
            assert_same(&resumed, &unbroken, &format!("{ranks} ranks, graphs `{graphs}`"));
        }
    }
}

#[test]
fn a_run_that_skips_spikes_goes_on_with_the_same_bits_and_skips_the_same_steps() {
    // So near the mean that some step is a spike, and so slow that losses do not fall from step to step.
    let spikes = "--lr 1e-5 --min-lr 0 --skip-step-sigma-factor 0.5 --skip-step-rolling-interval-length 4";
    let skipped = |folder: &Folder| -> Vec<u64> {
        let steps = logged_steps(&folder.path("log"));
        steps.iter().map(|step| step["skipped"].as_u64().unwrap_or(0)).collect()
    };
    for ranks in [1, 2] {
        let unbroken = Folder::new("spikes-unbroken");
        let output = run(ranks, &unbroken.0, &flags(&format!("{spikes} {OFF}")));
        expect(&output, 0, &["the update was skipped, because loss or gradient norm is a spike", " skipped, in "]);
        let resumed = resume_at(&unbroken, 4, ranks, &flags(&format!("{spikes} {FULL}")));
        assert_eq!(skipped(&resumed), skipped(&unbroken), "{ranks} ranks");
        assert!(skipped(&unbroken)[7] > skipped(&unbroken)[3], "{:?}", skipped(&unbroken));
        assert_eq!(bits(&resumed.0, 8), bits(&unbroken.0, 8), "{ranks} ranks");
    }
}

#[test]
fn a_bf16_run_and_an_mlp_with_momentum_go_on_with_the_same_bits() {
    let mlp = "--preset mlp --layer-sizes [24,32,8] --micro-batch-size 4 --global-batch-size 8 --sgd-momentum 0.9";
    let moments = "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16";
    for kind in ["--compute bf16 --tie-embeddings=false", mlp, moments] {
        let unbroken = Folder::new("kind-unbroken");
        expect(&run(1, &unbroken.0, &flags(kind)), 0, &[]);
        assert_same(&resume_at(&unbroken, 4, 1, &flags(kind)), &unbroken, kind);
    }
}

#[test]
fn moments_in_bf16_are_half_as_large_on_disk_and_a_run_with_f32_takes_them() {
    let bytes = |folder: &Folder| {
        std::fs::metadata(crate::harness::checkpoint(&folder.0, 4).join("optimizer.safetensors")).unwrap().len()
    };
    let moments = flags("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16");
    let (wide, beside, waiting) = (Folder::new("moments-f32"), Folder::new("moments"), Folder::new("moments-waiting"));
    expect(&run(1, &wide.0, &flags("")), 0, &[]);
    expect(&run(1, &beside.0, &moments), 0, &[]);
    expect(&run(1, &waiting.0, &format!("{moments} --async-save=false")), 0, &[]);
    assert!(bytes(&beside) * 100 < bytes(&wide) * 60, "{} of {}", bytes(&beside), bytes(&wide));
    assert_eq!(bits(&beside.0, 4), bits(&waiting.0, 4));
    expect(&run(1, &beside.0, "--steps 9"), 0, &["at step 8", "done: loss"]);
}

#[test]
fn masters_kept_as_remainders_are_f32_in_checkpoints_and_runs_with_and_without_take_them() {
    let of = |more: &str| flags(&format!("--bf16 {more}"));
    let remainders = of("--store-param-remainders --use-distributed-optimizer");
    let [unbroken, waiting] = ["rest", "rest-waiting"].map(Folder::new);
    expect(&run(2, &unbroken.0, &remainders), 0, &["done: loss"]);
    let on_host = format!("{remainders} --async-save=false --offload-optimizer --offload-optimizer-fraction 1");
    expect(&run(2, &waiting.0, &on_host), 0, &[]);
    assert_eq!(bits(&waiting.0, 4), bits(&unbroken.0, 4));
    let resumed = resume_at(&unbroken, 4, 2, &remainders);
    assert_eq!(bits(&resumed.0, 8), bits(&unbroken.0, 8));
    let wide = resume_at(&unbroken, 4, 1, &of(""));
    expect(&run(1, &wide.0, "--steps 9 --bf16 --store-param-remainders"), 0, &["at step 8", "done: loss"]);
}

#[test]
fn a_checkpoint_of_two_ranks_goes_on_with_one_and_of_one_with_two() {
    for (ranks, others) in [(2, 1), (1, 2)] {
        let unbroken = Folder::new("across-unbroken");
        expect(&run(ranks, &unbroken.0, &flags(PER_LAYER)), 0, &[]);
        let resumed = resume_at(&unbroken, 4, others, &flags(PER_LAYER));
        let (theirs, ours) = (metrics(&unbroken.0), metrics(&resumed.0));
        assert_eq!(theirs[..4], ours[..4], "lines before the checkpoint stay");
        for step in 4..8 {
            // The same samples and masks; ranks add the same numbers in another order.
            let loss = |lines: &[serde_json::Value]| lines[step][0].as_f64().unwrap();
            let difference = (loss(&ours) / loss(&theirs) - 1.0).abs();
            let allowed = if step == 4 { 1e-6 } else { 1e-4 };
            assert!(difference <= allowed, "{ranks} to {others} ranks, step {step}: {difference}");
        }
    }
}

#[test]
fn another_global_batch_goes_on_at_the_next_sample_and_is_told_of() {
    let folder = Folder::new("batch");
    expect(&run(1, &folder.0, "--steps 4"), 0, &[]);
    let output = run(1, &folder.0, "--steps 6 --global-batch-size 4");
    let changed = "train.global_batch_size = 4 (was 8), train.steps = 6 (was 4)";
    expect(&output, 0, &["at step 4, sample 32", changed]);
    let manifest =
        trainer::checkpoint::verify(&crate::harness::checkpoint(&folder.0, 6), &Activity::default()).unwrap();
    assert_eq!((manifest.step, manifest.samples, manifest.applied, manifest.skipped), (6, 40, 6, 0));
}

#[test]
fn settings_that_a_run_changes_on_its_way_are_in_its_log_its_metrics_and_its_page_by_step() {
    let folder = Folder::new("changed-settings");
    let flags = |steps: usize, length: usize, rate: &str| {
        format!("--steps {steps} --max-position-embeddings 64 --seq-length {length} --lr {rate}")
    };
    expect(&run(1, &folder.0, &flags(2, 16, "1e-3")), 0, &[]);
    let second = run(1, &folder.0, &flags(4, 32, "2e-3"));
    let changed = "notice: changed since the checkpoint, so the numbers may differ: model.seq_length = 32 (was 16), \
                   optimizer.lr = 0.002 (was 0.001), train.steps = 4 (was 2)";
    expect(&second, 0, &[changed]);
    let log = std::fs::read_to_string(folder.path("log/run.log")).unwrap();
    assert!(log.contains(changed), "{log}");
    let steps = logged_steps(&folder.path("log"));
    let of_step = |step: usize| &steps[step - 1]["changed_settings"];
    assert_eq!(of_step(3)["optimizer.lr"], serde_json::json!({ "was": 0.001, "now": 0.002 }));
    assert!([1, 2, 4].iter().all(|step| of_step(*step).is_null()));
    expect(&trainer(&folder.0, "report log --output page.html"), 0, &["page.html"]);
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    let row: Vec<&str> = page.split("<tr>").filter(|row| row.contains("optimizer.lr")).collect();
    assert!(row[0].contains(">3<") && row[0].contains(">0.001<") && row[0].contains(">0.002<"), "{row:?}");
    // Tokens up to each step: 8 samples of 16, then of 32.
    assert!(page.contains("[128.0,256.0,512.0,768.0]"), "the page counts tokens by the length of each step");
}

#[test]
fn the_newest_are_kept_and_a_finished_run_does_nothing_more() {
    let folder = Folder::new("keep");
    expect(&run(1, &folder.0, "--steps 9 --save-interval 2 --checkpoint-keep 2"), 0, &[]);
    assert_eq!(saved(&folder.0), [8, 9]);
    let before = (metrics(&folder.0), bits(&folder.0, 9));
    expect(&run(1, &folder.0, "--steps 9 --save-interval 2"), 0, &["done before: 9 of 9 steps", "train.steps"]);
    assert_eq!(before, (metrics(&folder.0), bits(&folder.0, 9)));
}

#[test]
fn checkpoints_of_another_run_in_the_folder_are_neither_counted_nor_removed() {
    let (folder, other) = (Folder::new("keep-theirs"), Folder::new("keep-from"));
    expect(&run(1, &folder.0, "--steps 6 --save-interval 2"), 0, &[]);
    expect(&run(1, &other.0, "--steps 8"), 0, &[]);
    let from = crate::harness::checkpoint(&other.0, 8);
    let flags = format!("--steps 14 --save-interval 2 --checkpoint-keep 2 --resume {}", from.display());
    expect(&run(1, &folder.0, &flags), 0, &["at step 8"]);
    assert_eq!(saved(&folder.0), [2, 4, 6, 12, 14]);
    // One that goes on with its own counts those that it wrote before.
    expect(&run(1, &folder.0, "--steps 16 --save-interval 2 --checkpoint-keep 2"), 0, &["at step 14"]);
    assert_eq!(saved(&folder.0), [2, 4, 6, 14, 16]);
}

#[test]
fn data_that_changed_are_told_of_and_the_run_goes_on() {
    let folder = Folder::new("resume-data");
    let [shards, text] = ["shards", "text"].map(|name| folder.path(name));
    std::fs::create_dir(&shards).unwrap();
    std::fs::create_dir(&text).unwrap();
    let shard = |name: &str| shards.join(name);
    let tokens = |first: u16| (0..600).flat_map(|i| ((first + i * 7) % 256).to_le_bytes()).collect::<Vec<u8>>();
    std::fs::write(shard("a.bin"), tokens(0)).unwrap();
    std::fs::write(shard("b.bin"), tokens(100)).unwrap();
    std::fs::write(text.join("a.txt"), "one document. ".repeat(50)).unwrap();
    std::fs::write(text.join("b.txt"), "and the other ".repeat(50)).unwrap();
    let data = format!("--raw-tokens u16 --data-path 0.5 {} 0.5 {}", shards.display(), text.display());
    let steps = std::cell::Cell::new(1);
    let told = || {
        steps.set(steps.get() + 1);
        // Flags of several values come last.
        let output = run(1, &folder.0, &format!("--steps {} {data}", steps.get()));
        expect(&output, 0, &["done: loss", &format!("at step {}", steps.get() - 1)]);
        let text = crate::harness::printed(&output);
        let notice =
            text.lines().find(|line| line.contains("changed since the checkpoint, so the numbers may differ: "));
        notice.and_then(|line| Some(line[line.find("data of ")?..].to_string()))
    };
    expect(&run(1, &folder.0, &format!("--steps 1 {data}")), 0, &[]);
    assert_eq!(told(), None, "nothing changed");
    // The same number of tokens in another order.
    std::fs::rename(shard("a.bin"), shard("c.bin")).unwrap();
    let order =
        |number: usize| format!("data of data.path, dataset {number} = other tokens, or their files in another order");
    assert_eq!(told(), Some(order(1)));
    std::fs::rename(text.join("a.txt"), text.join("c.txt")).unwrap();
    assert_eq!(told(), Some(order(2)));
    std::fs::write(shard("d.bin"), tokens(200)).unwrap();
    assert_eq!(told().unwrap(), "data of data.path, dataset 1 = 1800 tokens (was 1200)");
    std::fs::remove_file(shard("b.bin")).unwrap();
    assert_eq!(told().unwrap(), "data of data.path, dataset 1 = 1200 tokens (was 1800)");
    assert_eq!(told(), None, "the new checkpoint knows the new data");
    // A run goes on from a checkpoint of an older build without such a field.
    let path = crate::harness::checkpoint(&folder.0, steps.get()).join("manifest.json");
    let mut manifest = trainer::checkpoint::Manifest::read(path.parent().unwrap()).unwrap();
    assert_eq!(manifest.data.take().unwrap().len(), 2);
    manifest.sha256 = String::new();
    manifest.sha256 = format!("{:x}", Sha256::digest(serde_json::to_vec(&manifest).unwrap()));
    std::fs::write(path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    std::fs::remove_file(shard("d.bin")).unwrap();
    assert_eq!(told(), None);
}

#[test]
fn the_weights_that_a_run_began_with_may_be_gone_when_it_goes_on() {
    let (folder, whole) = (Folder::new("init-gone"), Folder::new("init-whole"));
    let start = folder.path("start");
    expect(&run(1, &folder.0, "--steps 1 --ffn 80 --resume never"), 0, &[]);
    std::fs::rename(folder.path("saved"), &start).unwrap();
    // The width of the MLP is the start's. No flag gives it.
    let flags = format!("--eval-interval 0 --init-from {}/step-00000001 --steps", start.display());
    expect(&run(1, &whole.0, &format!("{flags} 4")), 0, &[]);
    expect(&run(1, &folder.0, &format!("{flags} 2")), 0, &[]);
    std::fs::remove_dir_all(&start).unwrap();
    expect(&run(1, &folder.0, &format!("{flags} 4")), 0, &["at step 2", "done: loss"]);
    assert_same(&folder, &whole, "");
    let elsewhere = Folder::new("init-elsewhere");
    expect(&run(1, &elsewhere.0, &format!("{flags} 4")), 2, &["start/step-00000001 does not exist", "check the path"]);
}

#[test]
fn a_start_that_would_mix_two_runs_is_refused_and_one_from_elsewhere_is_not() {
    let folder = Folder::new("mix");
    expect(&run(1, &folder.0, "--steps 4 --save-interval 2"), 0, &[]);
    let path = folder.path("saved");
    let older = path.join("step-00000002");
    let newer = "step-00000004 exists. Rule: ";
    expect(&run(1, &folder.0, "--steps 6 --resume never"), 2, &["checkpoint.resume = never", newer, "auto"]);
    expect(&run(1, &folder.0, &format!("--steps 6 --resume {}", older.display())), 2, &[newer]);
    expect(&run(1, &folder.0, "--steps 6 --resume nowhere"), 2, &["nowhere does not exist", "check the path"]);
    assert_eq!(saved(&folder.0), [2, 4], "nothing was touched");

    let other = Folder::new("mix-other");
    expect(&run(1, &other.0, &format!("--steps 6 --resume {}", older.display())), 0, &["at step 2"]);
    let last = Folder::new("mix-last");
    expect(&run(1, &last.0, &format!("--steps 6 --load {}", path.display())), 0, &["at step 4"]);
    assert_eq!(bits(&other.0, 6), bits(&last.0, 6));
}

#[test]
fn a_first_start_that_is_told_to_load_what_it_saves_begins_anew_and_the_next_goes_on() {
    let folder = Folder::new("save-load");
    let saved = folder.path("saved");
    let flags = |steps: usize| format!("--steps {steps} --load {}/../saved/", saved.display());
    std::fs::create_dir(&saved).unwrap();
    expect(
        &run(2, &folder.0, &flags(2)),
        0,
        &["saved/ holds no checkpoint yet: the run starts at step 0", "done: loss"],
    );
    expect(&run(2, &folder.0, &flags(4)), 0, &["at step 2", "done: loss"]);
    // Weights to start from count if the run begins anew, checkpoints in their folder as well as one alone.
    let other = Folder::new("save-load-other");
    let start = format!("--init-from {} --steps 1", saved.display());
    expect(&run(1, &other.0, &start), 0, &["done: loss"]);
    let alone = Folder::new("save-load-alone");
    let start = format!("--init-from {}/step-00000004 --steps 1", saved.display());
    expect(&run(1, &alone.0, &start), 0, &["done: loss"]);
    assert_eq!(bits(&other.0, 1), bits(&alone.0, 1));
}
