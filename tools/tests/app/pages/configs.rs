//! The recipes in `configs/` are in the binary, and are ones a run can be planned from.

use std::process::Command;
use std::time::Duration;

use common::Choice;
use device::{Device, HostOptions};
use parallel::ThreadWorld;
use trainer::config::ConfigSources;
use trainer::config::plan::RunPlan;
use trainer::config::recipes::RECIPES;
use trainer::process_group::ProcessGroup;
use trainer::run::set_up::stage;

use crate::harness::{Folder, expect};

/// The memory of an H200, bytes, less a GiB for the driver and libraries.
const H200: usize = 138 << 30;

/// The GPUs a recipe is named for; none for a laptop's.
fn gpus(name: &str) -> Option<usize> {
    name.strip_suffix("xh200")?.rsplit('-').next()?.parse().ok()
}

fn plan(name: &str, text: &str) -> RunPlan {
    let mut sources = ConfigSources::default();
    sources.read_text(text, name).unwrap_or_else(|error| panic!("{name}: {error}"));
    RunPlan::new(sources.resolve(), gpus(name).unwrap_or(1)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_recipe_resolves_to_a_plan_with_graphs_on_for_the_ranks_it_is_named_for() {
    for (name, text) in RECIPES {
        let plan = plan(name, text);
        assert!(plan.graphs.enable && plan.size.parameters > 100_000, "{name}");
        assert!(
            name.starts_with(plan.config.model.preset.word()) || gpus(name).is_none(),
            "{name} is named for its model"
        );
        assert!(text.starts_with("# ") && text.contains(&format!("--config {name}")), "{name}");
    }
}

#[test]
fn every_file_in_configs_is_in_the_binary() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("configs");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // `gpus/` has cards, not recipes.
    let names = names.filter(|path| path.is_file());
    let mut files: Vec<String> = names.map(|path| path.file_stem().unwrap().to_str().unwrap().into()).collect();
    let mut known: Vec<String> = RECIPES.iter().map(|(name, _)| name.to_string()).collect();
    files.sort();
    known.sort();
    assert_eq!(files, known);
}

#[test]
fn what_a_recipe_for_h200s_needs_is_less_than_a_gpu_has() {
    for (name, text) in RECIPES.iter().filter(|(name, _)| gpus(name).is_some()) {
        let plan = plan(name, text);
        let device = Device::host(HostOptions { threads: 1, check: false, dry: true }).unwrap();
        // A dry run transfers nothing, so the first of the ranks can plan alone.
        let others = ThreadWorld::ranks(plan.parallel.mesh.ranks(), Duration::ZERO);
        let ranks = others[0].connect(&plan.connections()).unwrap();
        stage(&plan, &device, &ProcessGroup::of(ranks), false).unwrap();
        let needed = device.allocated_bytes();
        assert!(needed < H200, "{name}: {needed} bytes");
    }
}

/// Runs `trainer FLAGS`. Returns its exit code and its output.
fn trainer(flags: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(flags).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn recipes_are_listed_and_shown_and_taken_by_name() {
    let (code, list) = trainer(&["configs", "list"]);
    assert_eq!((code, list.lines().count()), (Some(0), RECIPES.len()));
    for ((name, text), line) in RECIPES.iter().zip(list.lines()) {
        assert!(line.starts_with(name) && line.len() > name.len() + 20, "{line}");
        assert_eq!(trainer(&["configs", "show", name]), (Some(0), format!("{}\n", text.trim_end())));
    }
    let (code, text) =
        trainer(&["--config", "gpt2-124m-1xh200", "--data-path", "/dev/null", "--micro-batch-size", "7"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("train.global_batch_size = 512 with micro_batch_size = 7 on 1 rank"), "{text}");
}

#[test]
fn presets_have_the_parameters_of_the_published_models() {
    // As `transformers` counts them in models of their configurations.
    for (preset, parameters) in [
        ("gpt2-124m", 124_439_808),
        ("gpt2-350m", 354_823_168),
        ("llama-1b", 1_235_814_400),
        ("llama-3b", 3_212_749_824),
        ("llama-8b", 8_030_261_248),
        ("llama-70b", 70_553_706_496),
        ("mistral-7b", 7_248_023_552),
        ("mistral-nemo-12b", 12_247_782_400),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("olmoe-1b-7b", 6_919_161_856),
    ] {
        let mut sources = ConfigSources::default();
        sources.set("model.preset", preset, "test").unwrap();
        assert_eq!(RunPlan::new(sources.resolve(), 1).unwrap().size.parameters, parameters, "{preset}");
    }
}

#[test]
fn later_layers_override_earlier_ones_and_a_preset_only_defaults() {
    let mut sources = ConfigSources::default();
    sources.read_text("[model]\npreset = \"gpt2-124m\"\nlayers = 3\n[train]\nsteps = 5", "test").unwrap();
    sources.set("train.steps", "7", "--set").unwrap();
    let config = sources.resolve();
    assert_eq!((config.model.layers, config.model.hidden, config.train.steps), (3, 768, 7));
}

#[test]
fn a_dry_run_tells_of_data_that_are_missing_and_a_run_refuses_them() {
    let recipe = ["--config", "gpt2-124m-1xh200", "--device", "host"];
    let missing = "data.path = data/fineweb-gpt2 is missing; a run needs it";
    let (code, text) = trainer(&[&recipe[..], &["--dry-run"]].concat());
    assert!(code == Some(0) && text.contains("plan of a rank") && text.contains(missing), "{text}");
    let (code, text) = trainer(&recipe);
    assert!(code == Some(2) && text.contains("`data/fineweb-gpt2` cannot be read"), "{text}");
    // Files that exist are looked at, and the missing ones named, with or without weights.
    let there = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let plan = |paths: &[&str]| trainer(&[&["--dry-run", "--device", "host"], paths].concat());
    for paths in [&["--data-path", "0.5", there, "0.5", "absent"][..], &["--data-path", there, "absent"]] {
        let (code, text) = plan(paths);
        assert!(code == Some(0) && text.contains("data.path = absent is missing"), "{text}");
    }
    let (code, text) = plan(&["--data-path", there, "--validation-path", "absent"]);
    assert!(code == Some(0) && text.contains("data.validation_path = absent is missing"), "{text}");
    let (code, text) = plan(&["--data-path", there]);
    assert!(code == Some(0) && text.contains("samples per epoch"), "{text}");
    let (code, _) = plan(&["--data-path", there, "--seq-length", "90000"]);
    assert_eq!(code, Some(2), "what is there and too short is refused");
}

#[test]
fn a_configuration_from_a_pipe_is_refused_because_it_is_read_more_than_once() {
    let folder = Folder::new("config-pipe");
    let line = "exec \"$TRAINER\" --dry-run --config <(echo '[train]'; echo 'steps = 3')";
    let mut command = Command::new("bash");
    command.args(["-c", line]).env("TRAINER", env!("CARGO_BIN_EXE_trainer")).current_dir(&folder.0);
    let needles =
        ["config file /dev/fd/", "it is not a regular file", "Rule: every rank", "Fix: write the text to a file"];
    expect(&command.output().unwrap(), 2, &needles);
}
