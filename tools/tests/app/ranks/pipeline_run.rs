//! Pipelines as users start them, under mpirun with its synchronous sends: the numbers of one rank, and checkpoints that
//! any layout goes on from.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Folder, assert_like, assert_same, bits, expect, metrics, printed, resume_at, run, saved};

const GRAPHS: [&str; 4] = [
    "",
    "--enable-cuda-graph",
    "--enable-cuda-graph --cuda-graph-scope per_chunk",
    "--enable-cuda-graph --cuda-graph-scope full_iteration",
];

/// Ranks and how they are laid out, all with graphs of one kind or another.
const LAYOUTS: [(usize, &str); 5] = [
    (1, ""),
    (2, "--pipeline-model-parallel-size 2 --enable-cuda-graph"),
    (2, "--pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2"),
    (
        4,
        "--pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel --enable-cuda-graph \
         --cuda-graph-scope full_iteration",
    ),
    (4, "--pipeline-model-parallel-size 2 --use-distributed-optimizer"),
];

/// Six steps of a tied model of four blocks, with a checkpoint after every third.
fn flags(layout: &str) -> String {
    format!("--steps 6 --save-interval 3 --layers 4 {layout}")
}

/// Runs `flags` to their end in a new folder.
fn done(name: &str, ranks: usize, flags: &str) -> Folder {
    let folder = Folder::new(name);
    expect(&run(ranks, &folder.0, flags), 0, &["done: loss"]);
    folder
}

#[test]
fn a_checkpoint_of_any_layout_goes_on_under_any_other() {
    let unbroken: Vec<Folder> =
        (0..LAYOUTS.len()).map(|at| done(&format!("pipeline-{at}"), LAYOUTS[at].0, &flags(LAYOUTS[at].1))).collect();
    for (folder, (ranks, layout)) in unbroken.iter().zip(LAYOUTS) {
        assert_eq!(saved(&folder.0), [3, 6]);
        assert_like(6, &metrics(&unbroken[0].0), &metrics(&folder.0), layout);
        // A rank writes the weights and moments that no other has: a table that two stages have is in one file.
        assert_eq!(bits(&folder.0, 6).len(), 2 * ranks, "{layout}");
    }
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 3), (3, 4), (4, 2), (4, 0), (1, 1), (2, 2), (3, 3)] {
        let (ranks, layout) = LAYOUTS[to];
        let resumed = resume_at(&unbroken[from], 3, ranks, &flags(layout));
        let what = format!("{:?} to {:?}", LAYOUTS[from], LAYOUTS[to]);
        assert_like(6, &metrics(&unbroken[from].0), &metrics(&resumed.0), &what);
        if from == to {
            assert_same(&resumed, &unbroken[from], "the same layout");
        }
    }
}

#[test]
fn four_stages_have_the_losses_of_one_rank_and_graphs_change_no_bit() {
    let model = "--steps 6 --layers 4 --save-interval 0 --micro-batch-size 1 --clip-grad 0 --tie-embeddings=false";
    let alone = metrics(&done("stages-1", 1, model).0);
    let runs = GRAPHS.map(|graphs| {
        let layout = "--pipeline-model-parallel-size 4 --pipeline-layers [1,1,1,1] --check-graphs";
        done(&format!("stages-4-{}", graphs.len()), 4, &format!("{model} {layout} {graphs}"))
    });
    let [eager, graphed @ ..] = runs.each_ref().map(|folder| metrics(&folder.0));
    assert!(graphed.iter().all(|numbers| *numbers == eager), "graphs change numbers: {eager:?} {graphed:?}");
    for (step, (ours, theirs)) in eager.iter().zip(&alone).enumerate() {
        // Without clipping the norm enters nothing; its sum has another order.
        assert_eq!((&ours[0], &ours[3]), (&theirs[0], &theirs[3]), "losses of step {step}");
    }
}

#[test]
fn zero_bubble_has_every_number_and_every_weight_of_1f1b_and_goes_on_from_its_checkpoint() {
    let model = "--steps 6 --layers 4 --save-interval 3 --micro-batch-size 1 --pipeline-model-parallel-size 2 \
                 --use-distributed-optimizer --check-graphs";
    let plain = done("zero-bubble-off", 4, model);
    let split = |graphs: &str| format!("{model} --pipeline-schedule zero_bubble {graphs}");
    for graphs in GRAPHS {
        let folder = done(&format!("zero-bubble-{}", graphs.len()), 4, &split(graphs));
        assert_same(&folder, &plain, graphs);
    }
    assert_same(&resume_at(&plain, 3, 4, &split(GRAPHS[1])), &plain, "resumed");
}

#[test]
fn stages_that_divide_state_with_others_resume_to_the_same_bits_and_write_a_file_each() {
    let layout = "--pipeline-model-parallel-size 2 --use-distributed-optimizer --compute bf16 --enable-cuda-graph";
    let whole = done("pipeline-divided", 4, &flags(layout));
    assert_eq!(bits(&whole.0, 6).len(), 2 * 4, "weights and moments of each rank");
    assert_same(&resume_at(&whole, 3, 4, &flags(layout)), &whole, "resumed");
}

#[test]
fn stages_start_from_an_imported_model_and_their_checkpoint_is_sampled() {
    let first = done("imported", 1, "--steps 2 --preset tiny-llama --layers 4");
    let from = format!(
        "--steps 2 --lr 3e-3 --layers 4 --eval-interval 0 --init-from {}",
        crate::harness::checkpoint(&first.0, 2).display()
    );
    let alone = done("imported-1", 1, &from);
    let staged = done("imported-2", 2, &format!("{from} --pipeline-model-parallel-size 2 --enable-cuda-graph"));
    let loss = |folder: &Folder| metrics(&folder.0)[0][0].as_f64().unwrap();
    assert_eq!(loss(&alone), loss(&staged), "the first loss is that of the imported weights");
    let texts = [&alone, &staged].map(|folder| {
        let sample = ["sample", "--prompt", "ab", "--tokens", "12", "--device", "host", "--checkpoint"];
        let output =
            Command::new(env!("CARGO_BIN_EXE_trainer")).args(sample).arg(folder.path("saved")).output().unwrap();
        assert!(output.status.success(), "{}", printed(&output));
        output.stdout
    });
    assert!(texts[0].len() > 12 && texts[0] == texts[1], "{texts:?}");
}

#[test]
fn the_plan_tells_what_a_stage_has_and_how_long_it_waits_and_counts_the_whole_model() {
    let folder = Folder::new("pipeline-plan");
    let preset = "--dry-run --preset gpt2-124m --seq-length 64 --layers 12 --global-batch-size 16 --micro-batch-size 2";
    let layout = "--pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2";
    let output = run(2, &folder.0, &format!("{preset} {layout}"));
    // The last of the four parts has one block, and the head.
    let layers = "embedding, h.0 to h.2; h.7 to h.10";
    let idle = "stage 0 of 2, idle for 6.2 % of the time of its work";
    expect(&output, 0, &[layers, idle, "16 samples = 1 rank x 8 microbatches"]);
    let layout = "--pipeline-model-parallel-size 2 --pipeline-schedule zero_bubble";
    let idle = "stage 0 of 2, idle for 4.2 % of the time of its work";
    for memory in ["", "--recompute-granularity full --cuda-graph-mempool single"] {
        expect(&run(2, &folder.0, &format!("{preset} {layout} {memory}")), 0, &[idle]);
    }
    let row = |text: &str, word: &str| {
        let line = text.lines().find(|line| line.contains(word)).map(|line| line.trim_matches('│').trim().to_string());
        line.unwrap_or_else(|| panic!("no {word} in {text}"))
    };
    let (staged, alone) = (printed(&output), printed(&run(1, &folder.0, preset)));
    assert_eq!(row(&staged, " parameters"), row(&alone, " parameters"));
    assert_ne!(row(&staged, " main_grad"), row(&alone, " main_grad"), "a stage holds less");
    assert!(!alone.contains("stage 0 of"), "{alone}");
}

#[test]
fn the_graph_report_has_every_rank_its_slots_and_the_order_of_replays_and_a_picture_of_each_stage() {
    let folder = Folder::new("pipeline-report");
    let layout = format!(
        "--pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2 --micro-batch-size 1 \
         --global-batch-size 4 --enable-cuda-graph --graph-report {}",
        folder.path("graphs.json").display()
    );
    expect(&run(2, &folder.0, &flags(&layout)), 0, &[]);
    let report: Value = serde_json::from_slice(&std::fs::read(folder.path("graphs.json")).unwrap()).unwrap();
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.iter().map(|rank| rank["pipeline"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    for rank in ranks {
        let graphs = rank["graphs"].as_array().unwrap();
        let train = rank["steps"].as_array().unwrap().iter().find(|step| step["mode"] == "Train").unwrap();
        assert_eq!(train["microbatches"], 4);
        let mut served: Vec<(u64, u64)> = Vec::new();
        for launch in train["order"].as_array().unwrap() {
            let Some(graph) = launch["graph"].as_u64() else { continue };
            let Some(microbatch) = launch["microbatch"].as_u64() else { continue };
            let serves = graphs[graph as usize]["microbatches"].as_array().unwrap();
            assert!(serves.contains(&microbatch.into()), "{launch}");
            served.push((graph, microbatch));
        }
        for (at, graph) in graphs.iter().enumerate().filter(|(_, graph)| graph["mode"] == "Train") {
            let name = graph["name"].as_str().unwrap();
            let replays = served.iter().filter(|(graph, _)| *graph == at as u64).count();
            assert_eq!(replays, graph["microbatches"].as_array().unwrap().len(), "{name}");
            // Every layer has a graph for each slot, and takes memory.
            if name.starts_with("forward") {
                assert!(graph["slot"].is_u64() && graph["bytes"].as_u64().unwrap() > 0, "{graph}");
            }
        }
    }
    let picture = std::fs::read_to_string(folder.path("graphs.svg")).unwrap();
    for words in
        ["stage 0, rank 0: ", "stage 1, rank 1: ", "<title>forward of layer 0, microbatch 0: graph `", ">m3</text>"]
    {
        assert!(picture.contains(words), "{words}");
    }
    assert_eq!(picture.matches("<g").count(), picture.matches("</g>").count());
}
