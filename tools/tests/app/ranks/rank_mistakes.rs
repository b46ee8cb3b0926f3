//! Numbers and layouts of ranks that cannot be: each is one line with the value, the rule and the fix.

use crate::harness::{Folder, expect, mpirun, printed};
use crate::mistakes::refused;

#[test]
fn ranks_that_cannot_be_are_refused() {
    let folder = Folder::new("mistakes-ranks");
    let launched = |rank, size, local| {
        [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size), ("OMPI_COMM_WORLD_LOCAL_RANK", local)]
            .into_iter()
            .chain([("OMPI_COMM_WORLD_LOCAL_SIZE", size)])
            .collect::<Vec<_>>()
    };
    for (rank, size, local, needles) in [
        ("0", "0", "0", &["OMPI_COMM_WORLD_RANK", "not below OMPI_COMM_WORLD_SIZE = 0"][..]),
        ("5", "2", "0", &["OMPI_COMM_WORLD_RANK is 5", "not below OMPI_COMM_WORLD_SIZE = 2"]),
        ("0", "2", "7", &["OMPI_COMM_WORLD_LOCAL_RANK is 7", "not below OMPI_COMM_WORLD_LOCAL_SIZE = 2"]),
        ("0", "two", "0", &["OMPI_COMM_WORLD_SIZE is `two`, not a number"]),
        ("-1", "2", "0", &["OMPI_COMM_WORLD_RANK is `-1`, not a number"]),
    ] {
        refused(&folder.0, "--steps 1", &launched(rank, size, local), needles);
    }
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")];
    refused(
        &folder.0,
        "--steps 1",
        &torchrun,
        &["WORLD_SIZE is 2", "torchrun", "start with trainer launch, mpirun or srun"],
    );
}

/// A configuration that two ranks refuse; alone a rank refuses it for the number of ranks.
fn on_two_ranks(text: &str) -> String {
    let mut sources = trainer::config::ConfigSources::default();
    for pair in text.split_whitespace() {
        let (key, value) = pair.split_once('=').unwrap();
        sources.set(key, value, "test").unwrap();
    }
    match trainer::config::plan::RunPlan::new(sources.resolve(), 2) {
        Ok(_) => panic!("{text} is taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn pipelines_that_cannot_be_are_refused_with_the_value_the_rule_and_the_fix() {
    for (text, needles) in [
        (
            "parallel.pipeline=2 model.layers=1",
            ["virtual_pipeline = 2 with model.layers = 1", "at least one block", "at most 1"],
        ),
        (
            "parallel.pipeline=2 parallel.virtual_pipeline=2 model.layers=3",
            ["virtual_pipeline = 4 with model.layers = 3", "at least one block", "at most 3"],
        ),
        (
            "parallel.pipeline=2 parallel.tensor=2",
            [
                "parallel.tensor = 2 with parallel.pipeline = 2 on 2 ranks",
                "tensor x parallel.pipeline",
                "multiple of 4",
            ],
        ),
        (
            "parallel.pipeline=2 model.layers=5 parallel.pipeline_layers=[2,2]",
            ["[2, 2]", "= 2 numbers, none 0, that add up to model.layers = 5", "[3, 2]"],
        ),
        ("parallel.pipeline=2 model.layers=5 parallel.pipeline_layers=[5,0]", ["[5, 0]", "none 0", "[3, 2]"]),
        ("parallel.pipeline=2 model.layers=5 parallel.pipeline_layers=[2,2,1]", ["[2, 2, 1]", "= 2 numbers", "[3, 2]"]),
        (
            "parallel.pipeline=2 parallel.virtual_pipeline=2 model.layers=4 train.global_batch_size=2",
            ["1 microbatch of", "as many microbatches as stages", "train.global_batch_size = 4"],
        ),
        (
            "parallel.pipeline=2 parallel.virtual_pipeline=2 model.layers=4 parallel.microbatch_group=9",
            ["microbatch_group = 9", "from parallel.pipeline = 2 to the step's microbatches = 8", "= 2"],
        ),
        (
            "parallel.pipeline=2 parallel.virtual_pipeline=2 model.layers=4 parallel.microbatch_group=7",
            ["8 microbatches of a step in groups of 7 on 2 stages", "as many microbatches as stages", "= 14"],
        ),
        // The step that does not fit is one of the ramp; the global batch is right as it is.
        (
            "parallel.pipeline=2 parallel.virtual_pipeline=2 model.layers=4 train.rampup_batch_size=[4,2,100]",
            ["7 microbatches of a step", "as many microbatches as stages", "train.rampup_batch_size begin with"],
        ),
        (
            "parallel.pipeline=2 parallel.virtual_pipeline=2 model.layers=4 parallel.pipeline_schedule=\"zero_bubble\"",
            ["zero_bubble\" with parallel.virtual_pipeline = 2", "one chunk", "set parallel.virtual_pipeline = 1"],
        ),
        (
            "parallel.pipeline=2 parallel.pipeline_schedule=\"zero_bubble\" parallel.data_parallel_sharding=\"optim_grads\"",
            ["optim_grads\" with parallel.pipeline_schedule = \"zero_bubble\"", "after its backward", "\"1f1b\""],
        ),
        (
            "parallel.data_parallel_sharding=\"optim_grads_params\" cuda_graph.overlap_microbatches=true",
            [
                "optim_grads_params\" with cuda_graph.overlap_microbatches = true",
                "one microbatch at a time",
                "leave out",
            ],
        ),
        (
            "parallel.data_parallel_sharding=\"no_shard\" parallel.distributed_optimizer=true",
            ["distributed_optimizer = true with", "divides its state", "leave out one of the two"],
        ),
        (
            "parallel.pipeline=2 model.layers=4 parallel.pipeline_schedule=\"zero_bubble\" recompute.granularity=\"full\"",
            ["with recompute.granularity = \"full\"", "every slot would have room", "cuda_graph.mempool = \"single\""],
        ),
    ] {
        let error = on_two_ranks(text);
        let [value, rule, fix] = needles;
        let (what, rest) = error.split_once(". Rule: ").unwrap();
        let (rules, fixes) = rest.split_once(". Fix: ").unwrap();
        assert!(what.contains(value) && rules.contains(rule) && fixes.contains(fix), "{text}: {error}");
    }
}

#[test]
fn tokenize_is_the_work_of_one_process() {
    let folder = Folder::new("mistakes-tokenize");
    std::fs::write(folder.path("file"), "some text").unwrap();
    let output = mpirun(2, &folder.0, &["tokenize", "--output", "out", "file"]);
    expect(&output, 2, &["error: tokenize on 2 ranks. Rule: one process", "Fix: start it without mpirun"]);
    assert_eq!(printed(&output).matches("error: ").count(), 1);
    assert!(!folder.path("out").exists());
}

#[test]
fn expert_ranks_that_cannot_be_are_refused_with_sizes_that_work() {
    let model = "model.preset=tiny-llama model.experts=6 model.experts_per_token=2";
    for (text, needles) in [
        (
            "parallel.expert=2",
            ["parallel.expert = 2 with model.experts = 0", "layers that have some", "or model.experts"],
        ),
        ("parallel.expert=0", ["parallel.expert = 0", "at least 1", "set"]),
        ("MODEL parallel.expert=4", ["parallel.expert = 4 with model.experts = 6", "as many", "one of 1, 2, 3, 6"]),
        (
            "MODEL parallel.expert=3",
            ["parallel.expert = 3 with 2 data-parallel ranks", "share the batch", "one of 1, 2"],
        ),
        (
            "MODEL parallel.expert=2 parallel.tensor=2",
            [
                "parallel.expert = 2 with 1 data-parallel rank",
                "share the batch",
                "one of 1, or parallel.expert_tensor = 1",
            ],
        ),
        (
            "MODEL parallel.expert=3 parallel.tensor=2 parallel.expert_tensor=1",
            ["parallel.expert = 3 with parallel.expert_tensor = 1 on 2 ranks", "divide whole experts", "one of 1, 2"],
        ),
        (
            "MODEL parallel.tensor=2 parallel.expert_tensor=3",
            ["parallel.expert_tensor = 3 with parallel.tensor = 2", "share a layer share it", "leave it out for 2"],
        ),
        (
            "MODEL parallel.tensor=2 parallel.expert_tensor=1 model.seq_length=63 train.micro_batch_size=1",
            ["= 63 with parallel.tensor = 2", "with parallel.expert_tensor = 1", "model.seq_length = 64"],
        ),
    ] {
        let error = on_two_ranks(&text.replace("MODEL", model));
        assert!(needles.iter().all(|needle| error.contains(needle)), "{text}: {error}");
    }
}
