//! Weights that a command cannot use: of another shape, or damaged.

use crate::harness::{Folder, checkpoint, expect, printed, run, trainer};
use crate::mistakes::refused;

#[test]
fn weights_that_the_options_do_not_fit_are_not_called_broken() {
    let folder = Folder::new("mistakes-weights");
    expect(&run(1, &folder.0, "--steps 1 --layers 2"), 0, &[]);
    std::fs::rename(checkpoint(&folder.0, 1), folder.path("two")).unwrap();
    for (flags, needle) in [
        ("--init-from two --layers 3", "two has no tensor `h.2."),
        ("--init-from two --layers 1", "two has a tensor `h.1."),
    ] {
        let words = [needle, "weights fit the model's options", "leave out the model options that differ"];
        expect(&trainer(&folder.0, flags), 2, &words);
    }
    // These fit, but mean another model. The user is told.
    for (flags, told) in [("--heads 8", "model.heads = 8 (was 2)"), ("--seq-length 16", "")] {
        let output = trainer(&folder.0, &format!("--init-from two --dry-run --device host {flags}"));
        let another = format!("notice: the weights are those of two, but the model differs: {told}");
        expect(&output, 0, &if told.is_empty() { vec![] } else { vec![another.as_str()] });
        assert_eq!(printed(&output).contains("differs"), !told.is_empty(), "{flags}");
    }
}

#[test]
fn a_damaged_checkpoint_is_not_sampled_from_unless_an_older_one_is_whole() {
    let folder = Folder::new("mistakes-sample");
    expect(&run(1, &folder.0, "--steps 2 --save-interval 1"), 0, &[]);
    let newest = checkpoint(&folder.0, 2);
    let file = newest.join("model.safetensors");
    let mut content = std::fs::read(&file).unwrap();
    let last = content.len() - 1;
    content[last] ^= 1;
    std::fs::write(&file, content).unwrap();
    let damaged = "is damaged: model.safetensors differs";
    refused(&folder.0, "sample --checkpoint saved/step-00000002", &[], &["step-00000002", damaged]);
    let sample = "sample --tokens 3 --checkpoint saved";
    expect(&trainer(&folder.0, sample), 0, &["step-00000001: 1 layer of 32, 256 tokens, context 16"]);
    std::fs::remove_dir_all(checkpoint(&folder.0, 1)).unwrap();
    refused(&folder.0, "sample --checkpoint saved", &[], &["holds no complete checkpoint", damaged]);
}
