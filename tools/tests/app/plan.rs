//! `trainer plan` tells the layouts that fit and their speed. A run that cannot fit is refused before it is submitted.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Folder, expect, printed};

fn trainer(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainer")).args(line.split_whitespace()).output().unwrap()
}

/// The only layout of a line with `--as-given --json`.
fn layout(line: &str) -> Value {
    let output = trainer(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    page["layouts"][0].clone()
}

fn step_ms(line: &str) -> f64 {
    layout(line)["step_ms"].as_f64().unwrap()
}

/// The file of a GPU with one text in place of another.
fn changed_card(folder: &Path, from: &str, to: &str) -> String {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/gpus/h200.toml")).unwrap();
    assert!(text.contains(from), "{from}");
    let path = folder.join("card.toml");
    std::fs::write(&path, text.replace(from, to)).unwrap();
    path.display().to_string()
}

const WHOLE: &str = "--bf16 --enable-cuda-graph --cuda-graph-scope full_iteration --eval-interval 0";

/// bench/results/2026-11-29-ranks-and-pairs-h200.md has it, and with attention kept.
const LONG: &str = "--preset llama-8b --seq-length 32768 --micro-batch-size 1 --global-batch-size 1 \
                    --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --recompute-granularity full";

/// Graphs of layers.
const LAYERS: &str = "--bf16 --enable-cuda-graph --eval-interval 0";

#[test]
fn measured_steps_and_memory_are_met() {
    let kept = format!("{LONG} --recompute-keep-attention");
    let whole = |flags: &str| format!("{flags} {WHOLE}");
    let layers = |flags: &str| format!("{kept} {flags} {LAYERS}");
    let experts = "--preset olmoe-1b-7b --seq-length 4096 --micro-batch-size 2 --balance-loss-multiplier 0.01 \
                   --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --global-batch-size";
    // bench/results/2026-11-23-plan.md and 2026-11-29-two-h200.md have all of them, and how far off they are.
    for (ranks, flags, ms, gib) in [
        (1, whole("--preset gpt-1.3b --loss-pieces 2 --micro-batch-size 8 --global-batch-size 8"), 249.7, Some(47.8)),
        (
            1,
            whole("--preset gpt2-124m --loss-pieces 8 --micro-batch-size 64 --global-batch-size 64"),
            108.2,
            Some(22.1),
        ),
        (
            4,
            whole(
                "--preset gpt-1.3b --loss-pieces 2 --micro-batch-size 8 --global-batch-size 32 \
                 --use-distributed-optimizer",
            ),
            258.2,
            Some(37.6),
        ),
        (1, whole(LONG), 5145.0, Some(123.2)),
        (1, whole(&kept), 4748.0, Some(131.3)),
        (
            2,
            layers("--use-distributed-optimizer --context-parallel-size 2 --context-parallel-transfers heads"),
            2698.0,
            Some(89.5),
        ),
        (2, layers("--layers 8 --use-distributed-optimizer --context-parallel-size 2"), 699.7, None),
        (2, layers("--tensor-model-parallel-size 2 --sequence-parallel"), 2620.0, Some(66.9)),
        (1, layers("--offload-activation-layers 32"), 4791.0, Some(115.9)),
        (
            1,
            layers("--mlp-tiles 16 --loss-pieces 16 --store-param-remainders --main-grads-dtype bf16")
                .replace("32768", "65536"),
            12986.0,
            Some(121.3),
        ),
        (4, whole(&format!("{experts} 8 --expert-model-parallel-size 4")), 190.9, Some(55.3)),
    ] {
        let layout = layout(&format!("plan --gpu h200 --as-given --json --ranks {ranks} -- {flags}"));
        let (step, bytes) = (layout["step_ms"].as_f64().unwrap(), layout["memory_bytes"].as_f64().unwrap());
        // Products of experts are smaller than those that rates are of.
        let bound = if flags.contains("olmoe") { 0.1 } else { 0.05 };
        assert!((step / ms - 1.0).abs() < bound, "{flags}: {step} ms, measured {ms}");
        let predicted = bytes / f64::from(1 << 30);
        let off = gib.map_or(0.0, |gib| predicted / gib - 1.0);
        assert!(off.abs() < 0.03, "{flags}: {predicted} GiB, measured {gib:?}");
    }
}

#[test]
fn more_bandwidth_and_faster_products_are_never_slower() {
    let folder = Folder::new("plan-faster");
    for flags in [
        "--ranks 4 -- --preset gpt2-350m --micro-batch-size 4 --global-batch-size 32 --tensor-model-parallel-size 2",
        "--ranks 4 -- --preset gpt2-350m --micro-batch-size 4 --global-batch-size 32 --pipeline-model-parallel-size 4",
        "--ranks 16 -- --preset gpt2-350m --micro-batch-size 4 --global-batch-size 64 --use-distributed-optimizer",
    ] {
        let with = |gpu: &str| step_ms(&format!("plan --gpu {gpu} --as-given --json {flags} {WHOLE}"));
        let known = with("h200");
        for (from, to) in [
            ("bus_gb_per_s = [245.0, 350.0]", "bus_gb_per_s = [490.0, 700.0]"),
            ("bf16_tflops = 671.3", "bf16_tflops = 800.0"),
            ("transfer_share = 0.", "transfer_share = 0.0"),
        ] {
            let faster = with(&changed_card(&folder.path(""), from, to));
            assert!(faster <= known * 1.0001, "{flags}: {faster} with {to}, {known} with {from}");
        }
    }
}

#[test]
fn of_experts_those_take_time_that_tokens_take_and_all_take_memory() {
    let sizes = "--layers 4 --hidden 1024 --heads 8 --swiglu --bias=false --seq-length 1024 --micro-batch-size 8 \
                 --global-batch-size 8";
    let of = |ranks: usize, more: &str| {
        let layout = layout(&format!("plan --gpu h200 --as-given --json --ranks {ranks} -- {sizes} {WHOLE} {more}"));
        ["step_ms", "memory_bytes"].map(|key| layout[key].as_f64().unwrap())
    };
    let [dense_ms, dense_bytes] = of(1, "--ffn 4096");
    let [ms, bytes] = of(1, "--num-experts 8 --moe-ffn-hidden-size 2048");
    assert!((1.0..2.0).contains(&(ms / dense_ms)), "{ms} ms, with as many dense multiplications {dense_ms} ms");
    // Six more matrices (2048, 1024) of each kind in each layer: weights in bf16, master, gradient and moments in f32.
    let experts = 4.0 * 6.0 * 3.0 * (2048 * 1024 * (2 + 4 + 4 + 4 + 4)) as f64;
    assert!(((bytes - dense_bytes) / experts - 1.0).abs() < 0.4, "{bytes} and {dense_bytes}, apart by {experts}");
    let half = of(1, "--num-experts 8 --moe-ffn-hidden-size 2048 --expert-pattern 0 1 --ffn 4096");
    assert!((dense_ms..ms).contains(&half[0]) && (dense_bytes..bytes).contains(&half[1]), "{half:?}");
    let searched = trainer(&format!(
        "plan --gpu h200 --ranks 2 -- {sizes} {WHOLE} --num-experts 8 --moe-ffn-hidden-size 2048 --expert-pattern 0 1"
    ));
    expect(&searched, 0, &[" of them active", "; experts were not measured"]);
}

#[test]
fn ranks_divide_long_sequences_in_each_way() {
    let sizes = "--preset llama-8b --layers 2 --seq-length 65536 --micro-batch-size 1 --global-batch-size 1 \
                 --recompute-granularity full";
    let of = |more: &str| step_ms(&format!("plan --gpu h200 --as-given --json --ranks 2 -- {sizes} {WHOLE} {more}"));
    let context = |way: &str| of(&format!("--context-parallel-size 2 --context-parallel-transfers {way}"));
    let [keys, ring, heads] = ["keys", "ring", "heads"].map(context);
    let fastest = keys.min(ring).min(heads);
    assert!(keys.max(ring).max(heads) < 1.1 * fastest, "keys {keys}, ring {ring}, heads {heads} ms");
    let searched = trainer(&format!("plan --gpu h200 --ranks 2 -- {sizes} {WHOLE}"));
    expect(&searched, 0, &["cp 2 ring", "cp 2 heads", "--context-parallel-size 2 --context-parallel-transfers "]);
}

#[test]
fn layouts_are_ranked_by_time_and_all_of_them_fit() {
    let output = trainer(
        "plan --gpu h100-80 --ranks 16 --layouts 5 --json -- --preset llama-8b --bf16 --seq-length 2048 --global-batch-size 64",
    );
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    let layouts = page["layouts"].as_array().unwrap();
    assert!(layouts.len() > 1 && page["layouts_allowed"].as_u64().unwrap() > 100, "{page}");
    let steps: Vec<f64> = layouts.iter().map(|layout| layout["step_ms"].as_f64().unwrap()).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    for layout in layouts {
        assert_eq!(layout["fits"], true);
        let sizes = ["tensor", "pipeline", "data"].map(|axis| layout[axis].as_u64().unwrap());
        assert_eq!(sizes.iter().product::<u64>(), 16, "{layout}");
    }
}

#[test]
fn what_the_flags_give_is_kept() {
    let output = trainer(
        "plan --gpu h200 --ranks 8 --json -- --preset gpt2-350m --bf16 --global-batch-size 64 --micro-batch-size 2 \
         --pipeline-model-parallel-size 2 --set parallel.distributed_optimizer=false",
    );
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    for layout in page["layouts"].as_array().unwrap() {
        assert_eq!((&layout["micro_batch_size"], &layout["pipeline"]), (&2.into(), &2.into()), "{layout}");
        assert_eq!(layout["distributed_optimizer"], false);
    }
}

#[test]
fn microbatches_that_overlap_are_tried_where_ranks_wait_for_each_other() {
    let found = |flags: &str| {
        let line =
            format!("plan --gpu h100-80 --ranks 2 --json -- --preset gpt2-350m --bf16 --global-batch-size 32 {flags}");
        let page: Value = serde_json::from_slice(&trainer(&line).stdout).unwrap();
        let overlaps = |layout: &Value| layout["overlap_microbatches"].as_bool().unwrap();
        page["layouts"].as_array().unwrap().iter().map(overlaps).collect::<Vec<_>>()
    };
    let shares = "--tensor-model-parallel-size 2 --micro-batch-size 4";
    // Transfers take an eighth of these steps, and overlap hides them.
    let both = found(&format!("{shares} --enable-cuda-graph"));
    assert!(both[0] && both.contains(&false), "{both:?}");
    let one_chunk = "--pipeline-model-parallel-size 2 --set parallel.virtual_pipeline=1 --micro-batch-size 4";
    assert!(found(&format!("{one_chunk} --enable-cuda-graph")).contains(&true));
    for flags in [
        shares.to_string(),
        format!("{shares} --enable-cuda-graph --cuda-graph-overlap-microbatches=false"),
        "--tensor-model-parallel-size 2 --micro-batch-size 32 --enable-cuda-graph".into(),
        "--pipeline-model-parallel-size 2 --set parallel.virtual_pipeline=2 --enable-cuda-graph".into(),
        "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --enable-cuda-graph".into(),
    ] {
        let found = found(&flags);
        assert!(!found.is_empty() && !found.contains(&true), "{flags}: {found:?}");
    }
}

#[test]
fn the_page_has_a_table_the_flags_and_a_picture() {
    let folder = Folder::new("plan-timeline");
    let timeline = folder.path("step.svg");
    let output = trainer(&format!(
        "plan --gpu h200 --as-given --ranks 2 --timeline {} -- --preset gpt2-124m --micro-batch-size 4 --global-batch-size 32 \
         --pipeline-model-parallel-size 2 {WHOLE}",
        timeline.display()
    ));
    let page = printed(&output);
    let svg = std::fs::read_to_string(timeline).unwrap();
    assert!(svg.contains("stage 1, backward: ") && svg.matches("<title>").count() > 16, "{svg}");
    for part in ["ms a step", "--pipeline-model-parallel-size 2", "activations", "stage   0  F", "waits"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let first = page.lines().find(|line| line.starts_with("stage   0")).unwrap();
    assert!(first.matches('F').count() > 10 && first.matches('B').count() > 10, "{first}");
}

#[test]
fn what_does_not_fit_is_said_and_refused_by_dry_run_and_job() {
    let run = "--preset llama-8b --bf16 --micro-batch-size 1 --global-batch-size 16";
    let page = printed(&trainer(&format!("plan --gpu h200 --ranks 1 --as-given -- {run}")));
    assert!(page.contains("does NOT FIT"), "{page}");
    let given = "--set parallel.tensor=1 --set parallel.pipeline=1 --recompute-granularity none";
    expect(
        &trainer(&format!("plan --gpu h100-80 --ranks 1 -- {run} {given}")),
        2,
        &["layouts on 1 H100 80GB fits", "Fix:"],
    );
    let refused = ["a rank needs", "optimizer", "H200 has", "trainer plan --ranks"];
    expect(&trainer(&format!("--dry-run --gpu h200 {run} --device host")), 2, &refused);
    let job = |gpu: &str, run: &str| trainer(&format!("job slurm {gpu} -- {run} --save ckpt"));
    expect(
        &job("--gpu h200", "--preset llama-70b --bf16 --global-batch-size 64 --use-distributed-optimizer"),
        2,
        &refused,
    );
    expect(&job("--gpu h20O", run), 2, &["--gpu h20O", "did you mean `h200`?"]);
    let small = "--preset gpt2-124m --bf16 --global-batch-size 64";
    assert_eq!(job("--gpu h200", small).stdout, job("", small).stdout);
    expect(&trainer(&format!("--gpu h200 {small}")), 2, &["--dry-run"]);
}

#[test]
fn a_model_without_layouts_is_refused() {
    expect(&trainer("plan --gpu h200 --ranks 2 -- --preset mlp"), 2, &["model.kind = \"mlp\"", "name a GPT or Llama"]);
}

#[test]
fn a_search_whose_first_layouts_lack_memory_goes_on_to_one_that_fits() {
    let folder = Folder::new("plan-goes-on");
    let card = changed_card(&folder.0, "memory_gib = 139.8", "memory_gib = 3.4");
    let output = trainer(&format!(
        "plan --ranks 16 --gpu {card} --layouts 1 -- --preset gpt2-350m --bf16 --global-batch-size 64 --enable-cuda-graph"
    ));
    expect(&output, 0, &["The first of them"]);
    assert!(!printed(&output).contains("NOT FIT"), "{}", printed(&output));
}

#[test]
fn the_plan_of_a_run_that_goes_on_does_not_ask_for_the_model_that_it_began_with() {
    let folder = Folder::new("plan-goes-on");
    let run = "--init-from model --seq-length 64 --steps 4 --eval-interval 0 --device host --log-dir log --save";
    let in_folder = |line: &str| crate::harness::trainer(&folder.0, line);
    for line in [
        "--preset tiny-llama --seq-length 64 --steps 1 --eval-interval 0 --device host --save first --log-dir first",
        "convert --to hf first model",
        &format!("{run} saved --exit-interval 1"),
    ] {
        expect(&in_folder(line), 0, &[]);
    }
    for file in std::fs::read_dir(folder.path("model")).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|end| end == "safetensors") {
            std::fs::remove_file(file).unwrap();
        }
    }
    expect(&in_folder(&format!("plan --ranks 1 --gpu h200 -- {run} saved")), 0, &[]);
    expect(&in_folder(&format!("plan --ranks 1 --gpu h200 -- {run} other")), 2, &["safetensors"]);
}

#[test]
fn layouts_whose_ranks_divide_experts_are_searched_and_keep_that() {
    let line = "plan --ranks 4 --gpu h200 --json -- --preset tiny-llama --num-experts 8 --experts-per-token 2 \
                --expert-model-parallel-size 2 --expert-row-budget 1.5 --global-batch-size 8";
    let output = trainer(line);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    let layouts = page["layouts"].as_array().unwrap();
    assert!(!layouts.is_empty() && layouts.iter().all(|layout| layout["expert"] == 2), "{page}");
}

#[test]
fn means_that_come_in_amounts_fill_the_memory() {
    let folder = Folder::new("plan-amounts");
    let sizes = "--preset gpt2-124m --layers 2 --bf16 --micro-batch-size 1 --global-batch-size 1 --eval-interval 0";
    let found = |gib: &str| -> Value {
        let card = changed_card(&folder.0, "memory_gib = 139.8", &format!("memory_gib = {gib}"));
        let output = trainer(&format!("plan --ranks 1 --gpu {card} --json --layouts 1 -- {sizes}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["layouts"][0].clone()
    };
    // Weights, gradients, masters and moments take 0.9 GiB, libraries 0.7.
    let away = found("1.6");
    let share = away["optimizer_share_on_host"].as_f64().unwrap();
    assert!(share > 0.0 && share < 1.0 && away["leaves_headroom"] == true, "{away}");
    let given = layout(&format!(
        "plan --ranks 1 --gpu {} --as-given --json -- {sizes} --recompute-granularity full --offload-optimizer",
        folder.path("card.toml").display()
    ));
    assert!(given["optimizer_share_on_host"].as_f64().unwrap() > 0.0 && given["leaves_headroom"] == true, "{given}");
    // With room for all of that.
    let some = found("1.8");
    assert_eq!((&some["optimizer_share_on_host"], &some["fits"]), (&0.0.into(), &true.into()), "{some}");
}

#[test]
fn limits_are_the_largest_sizes_that_fit() {
    let folder = Folder::new("plan-limits");
    let card = changed_card(&folder.0, "memory_gib = 139.8", "memory_gib = 1.1");
    let sizes = "--bf16 --preset llama-1b --layers 2 --vocab 1024 --hidden 512 --heads 8 --kv-heads 8 --ffn 1024 \
                 --micro-batch-size 1 --global-batch-size 1 --eval-interval 0 --seq-length";
    let line = format!("plan --ranks 1 --gpu {card} --as-given");
    let output = trainer(&format!("{line} --limits --json -- {sizes} 1024"));
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    let limits = page["limits"].as_array().unwrap();
    let all = |size: &str, value: &str| limits.iter().map(|limit| limit[size][value].as_u64().unwrap()).collect();
    let (tokens, blocks): (Vec<u64>, Vec<u64>) = (all("longest", "tokens"), all("largest", "blocks"));
    assert!(tokens.is_sorted() && blocks.is_sorted() && tokens[0] < tokens[5] && blocks[0] < blocks[5], "{page}");
    // Tiles of feed-forward layers are one of the means.
    let means = |limit: &Value| limit["means"].as_str().unwrap().contains("--mlp-tiles 8");
    assert!(limits.iter().filter(|limit| means(limit)).count() == 1 && tokens[1] < tokens[2], "{page}");
    // The first means, planned as any run is.
    let fits = |tokens: u64| layout(&format!("{line} --json -- {sizes} {tokens}"))["leaves_headroom"] == true;
    assert!(fits(tokens[0]) && !fits(tokens[0] + 1024), "{tokens:?}");
    expect(
        &trainer(&format!("{line} --limits -- {sizes} 1024")),
        0,
        &["longest sample", "most blocks", "too much: weights"],
    );
}
