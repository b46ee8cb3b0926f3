//! Documents told apart within samples of text: attention, positions and losses are those of `transformers`, in every layout
//! and with graphs.

use serde_json::{Value, json};

use crate::harness::{
    Folder, assert_like, assert_same, bits, copy_run, expect, metrics, mpirun, printed, resume_at, run,
};
use crate::hugging_face::models::python;
use crate::mistakes::all_refused;

/// Inputs of a sample.
const SEQ: usize = 24;

/// Documents of these lengths, as JSON lines. Returns their tokens: bytes, and 0 at the end of each.
fn write_documents(folder: &Folder, name: &str, lengths: &[usize]) -> Vec<u8> {
    let letter = |document: usize, at: usize| (b'a' + ((document * 7 + at * at) % 23) as u8) as char;
    let texts: Vec<String> = lengths
        .iter()
        .enumerate()
        .map(|(document, &length)| (0..length).map(|at| letter(document, at)).collect())
        .collect();
    let lines: Vec<String> = texts.iter().map(|text| json!({ "text": text }).to_string()).collect();
    std::fs::write(folder.path(name), lines.join("\n")).unwrap();
    texts.iter().flat_map(|text| text.bytes().chain([0])).collect()
}

/// The result of `trainer eval` on the saved model.
fn eval(folder: &Folder, flags: &[&str]) -> Value {
    let arguments = [&["eval", "saved", "rows.jsonl", "--global-batch-size", "2"], flags].concat();
    let output = mpirun(1, &folder.0, &arguments);
    expect(&output, 0, &["\"loss\":"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn documents_in_a_row_have_the_losses_of_transformers_under_each_setting() {
    for (model, learned) in [("--preset tiny", true), ("--preset tiny-llama", false)] {
        let folder = Folder::new("document-ends");
        let tokens = write_documents(&folder, "rows.jsonl", &[10, 6, 20, 1, 11]);
        let rows: Vec<&[u8]> = (0..2).map(|row| &tokens[row * SEQ..=(row + 1) * SEQ]).collect();
        std::fs::write(folder.path("rows.json"), json!(rows).to_string()).unwrap();
        let flags = format!("{model} --seq-length {SEQ} --init-std 0.2 --steps 1 --eval-interval 0");
        expect(&run(1, &folder.0, &format!("{flags} --hidden-dropout 0 --attention-dropout 0")), 0, &["done: loss"]);
        expect(&mpirun(1, &folder.0, &["convert", "--to", "hf", "saved/step-00000001", "exported"]), 0, &[]);
        let mut losses = Vec::new();
        for at in 0..8 {
            let [attention, positions, masks] = [at & 1 > 0, at & 2 > 0, at & 4 > 0];
            if !learned && (positions != attention || masks) {
                continue;
            }
            let all = [
                ("--reset-attention-mask", attention),
                ("--reset-position-ids", positions),
                ("--eod-mask-loss", masks),
            ];
            let flags: Vec<&str> = all.iter().filter_map(|(flag, is_set)| is_set.then_some(*flag)).collect();
            let result = eval(&folder, &flags);
            let ends = rows.iter().flat_map(|row| &row[..SEQ]).filter(|token| **token == 0).count();
            assert_eq!(result["tokens"], 2 * SEQ - if masks { ends } else { 0 }, "{flags:?}");
            losses.push(json!([attention, positions, masks, result["loss"]]));
        }
        std::fs::write(folder.path("losses.json"), json!(losses).to_string()).unwrap();
        python("document_ends.py", "check", &folder.0);
    }
}

#[test]
fn training_on_documents_has_the_same_numbers_in_every_layout_and_the_same_bits_with_graphs() {
    let data = Folder::new("document-ends-data");
    write_documents(&data, "text.jsonl", &(0..80).map(|at| 5 + at * 7 % 30).collect::<Vec<_>>());
    let path = data.path("text.jsonl").display().to_string();
    let flags = |rest: &str| {
        format!(
            "--data-path {path} --split 0.8 --steps 4 --save-interval 2 --layers 2 --seq-length {SEQ} --eval-iters 1 \
             --reset-attention-mask --reset-position-ids --eod-mask-loss {rest}"
        )
    };
    let plain = Folder::new("document-ends-plain");
    expect(&run(1, &plain.0, &flags("")), 0, &["done: loss"]);
    let expected = metrics(&plain.0);
    for graphs in ["per_layer", "per_chunk", "full_iteration"] {
        let folder = Folder::new("document-ends-graphs");
        let graphs = flags(&format!("--enable-cuda-graph --cuda-graph-scope {graphs}"));
        expect(&run(1, &folder.0, &graphs), 0, &["done: loss"]);
        assert_same(&folder, &plain, &graphs);
    }
    for (ranks, layout) in [
        (1, "--micro-batch-size 4"),
        (2, "--micro-batch-size 2"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (2, "--pipeline-model-parallel-size 2"),
    ] {
        let folder = Folder::new("document-ends-layout");
        expect(&run(ranks, &folder.0, &flags(layout)), 0, &["done: loss"]);
        assert_like(4, &expected, &metrics(&folder.0), layout);
    }
    // A resumed run may change them, and says so.
    let resumed = resume_at(&plain, 2, 1, &flags(""));
    assert_eq!(bits(&resumed.0, 4), bits(&plain.0, 4));
    let changed = Folder::new("document-ends-changed");
    copy_run(&plain.0, &changed.0, 2);
    let output = run(1, &changed.0, &flags("--set data.eod_mask_loss=false --set data.reset_position_ids=false"));
    expect(&output, 0, &["data.eod_mask_loss = false (was true)", "data.reset_position_ids = false (was true)"]);
}

#[test]
fn documents_that_cannot_be_told_apart_are_refused() {
    let folder = Folder::new("document-ends-refused");
    write_documents(&folder, "text.jsonl", &[40; 40]);
    std::fs::write(folder.path("tokens.bin"), [7, 0, 9, 0].repeat(4000)).unwrap();
    std::fs::write(folder.path("chats.jsonl"), "{\"prompt\": \"a\", \"completion\": \"b\"}\n").unwrap();
    all_refused(&folder.0, "document_ends");
    let batches = ["batches", "--data-path", "text.jsonl", "--reset-attention-mask", "--output", "b.bin"];
    expect(&mpirun(1, &folder.0, &batches), 2, &["trainer batches with data.reset_attention_mask"]);
    // Rotary positions are distances: within documents they begin anew anyway.
    let both = "--preset tiny-llama --data-path text.jsonl --reset-attention-mask --reset-position-ids --dry-run";
    let output = mpirun(1, &folder.0, &both.split(' ').collect::<Vec<_>>());
    assert!(printed(&output).contains("data.reset_position_ids = true has no effect"), "{}", printed(&output));
}
