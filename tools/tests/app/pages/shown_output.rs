//! Output in the pages is the trainer's own. After a change of a number here, change it in the page too.

use std::process::Command;

use super::documents::read;
use crate::harness::{Folder, printed};

/// A page, the arguments of a command on it, and parts of the output that the page has too.
const SHOWN: &[(&str, &str, &[&str])] = &[
    (
        "docs/graphs.md",
        "--enable-cuda-graph --steps 20",
        &[
            "per_layer, per_microbatch pool: 13 for training, 4 for evaluation",
            "step 1/20 loss 5.5054 norm 3.610 lr 2.97e-5",
            "graphs: 13 graphs, 91 nodes; eager: 2.3 % of Train (10 of 429 operations), 5.6 % of Evaluate (9 of 161 \
             operations): begin (",
            "memory: scratch of compute 0.3 MiB, slot 0 1.1 MiB",
        ],
    ),
    (
        "docs/graphs.md",
        "--enable-cuda-graph --cuda-graph-scope full_iteration --steps 20",
        &["graphs: 1 graph, 429 nodes; memory: scratch of compute 0.3 MiB, step 1.1 MiB"],
    ),
    (
        "docs/graphs.md",
        "--enable-cuda-graph --cuda-graph-scope per_chunk --steps 20",
        &[
            "graphs: 4 graphs, 92 nodes; eager: 2.3 % of Train (10 of 429 operations), ",
            "memory: scratch of compute 0.3 MiB, slot 0 1.1 MiB",
        ],
    ),
    (
        "docs/graphs.md",
        "--enable-cuda-graph --print-activations h.0.attention h.1 --steps 20",
        &["h.0.attention, microbatch 0: mean -1.057e-5, rms 2.899e-2, largest 1.113e-1"],
    ),
    (
        "docs/graphs.md",
        "--enable-cuda-graph --check-graphs --steps 10",
        &[
            "170 nodes",
            "checked on 1 rank: 17 graphs of 201 operations in 809 launches, and 1250 operations outside of graphs. 41526 \
             pairs of operations that use the same bytes, one of them to write: each has an order, so none race. 15503 \
             reads: each found the values of the buffer that it names. 809 replays: the code did what the graph does",
        ],
    ),
    (
        "docs/graphs.md",
        "--enable-cuda-graph --verify-cuda-graph 5 --steps 20",
        &["verified: 4 steps with the same bits with graphs and without (114 tensors of rank 0, 1.84 MiB)"],
    ),
];

/// With one space wherever there is space.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn output(arguments: &str) -> String {
    let folder = Folder::new("shown");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    let output = command.args(arguments.split(' ')).args(["--device", "host"]).current_dir(&folder.0).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", printed(&output));
    in_one_line(&printed(&output))
}

#[test]
fn output_on_the_pages_is_what_is_printed() {
    for (page, arguments, parts) in SHOWN {
        let (shown, output) = (in_one_line(&read(page)), output(arguments));
        assert!(shown.contains(arguments), "{page}: no command {arguments}");
        for part in *parts {
            assert!(output.contains(part), "{arguments}: {part:?} is not in {output}");
            assert!(shown.contains(part), "{page}: {part:?} is not there");
        }
    }
}

#[test]
fn the_table_of_chosen_modules_and_layers_has_the_numbers_of_graphs() {
    let page = read("docs/graphs.md");
    let rows = page.split("| choice | graphs for training |").nth(1).unwrap().lines().skip(2);
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let (choice, graphs) = (cells.next().unwrap(), cells.next().unwrap());
        let flags = if choice.starts_with('`') { choice.trim_matches('`') } else { "" };
        let output = output(format!("--dry-run --enable-cuda-graph {flags}").trim_end());
        assert!(output.contains(&format!(" {graphs} for training")), "{choice}, {graphs}: {output}");
    }
}
