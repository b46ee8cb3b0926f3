//! Checkpoints in the format of earlier builds.

use sha2::{Digest, Sha256};

use super::damage::{FLAGS, reseal};
use crate::harness::{Folder, checkpoint, expect, run, trainer};

#[test]
fn checkpoints_with_the_hashes_of_format_1_are_compared_and_go_on() {
    let whole = Folder::new("format-1");
    expect(&run(1, &whole.0, FLAGS), 0, &[]);
    let newest = checkpoint(&whole.0, 6);
    reseal(&newest, |manifest| {
        manifest["format"] = 1.into();
        for file in manifest["files"].as_array_mut().unwrap() {
            let content = std::fs::read(newest.join(file["name"].as_str().unwrap())).unwrap();
            let entry = file.as_object_mut().unwrap();
            assert!(entry.remove("blake3").is_some());
            entry.insert("sha256".into(), format!("{:x}", Sha256::digest(content)).into());
        }
    });
    expect(&run(1, &whole.0, "--steps 7 --save-interval 2"), 0, &["step-00000006 at step 6", "done: loss"]);
    let weights = newest.join("model.safetensors");
    let mut content = std::fs::read(&weights).unwrap();
    *content.last_mut().unwrap() ^= 1;
    std::fs::write(weights, content).unwrap();
    let listed = trainer(&whole.0, "checkpoint list saved");
    expect(&listed, 3, &["damaged: model.safetensors differs from its hash in the manifest"]);
}
