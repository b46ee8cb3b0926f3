//! Multiple-choice questions with text that is made to take for ever.

use super::refused;
use crate::harness::{Folder, expect, run};

/// Each `[` was once looked for its end up to the end of the text.
#[test]
fn a_context_of_very_many_open_brackets_is_read_in_one_go() {
    let folder = Folder::new("hostile-questions");
    expect(&run(1, &folder.0, "--steps 1 --eval-interval 0 --save-interval 1"), 0, &["done: loss"]);
    let line = |context: &str| format!("{{\"ctx\": \"{context}\", \"endings\": [\"a\", \"b\"], \"label\": 0}}\n");
    let text = line(&"[".repeat(1_000_000)) + &line(&"[a".repeat(500_000)) + "{}\n";
    std::fs::write(folder.path("questions.jsonl"), text).unwrap();
    let arguments = ["eval", "saved", "--multiple-choice", "questions.jsonl", "--device", "host"];
    refused("brackets", &folder.0, &arguments, &["questions.jsonl line 3 has no `label`"]);
}
