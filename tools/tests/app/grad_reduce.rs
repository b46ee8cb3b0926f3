//! Gradients summed in bf16, as users set it.

use crate::harness::{Folder, expect, metrics, run};

#[test]
fn megatrons_flag_is_the_options() {
    let train = |name: &str, flags: &str| {
        let folder = Folder::new(name);
        expect(&run(2, &folder.0, &format!("--steps 4 --enable-cuda-graph {flags}")), 0, &["done: loss"]);
        metrics(&folder.0)
    };
    let (flag, option) = (train("reduce-flag", "--grad-reduce-in-bf16"), train("reduce-option", "--grad-reduce bf16"));
    let plain = train("reduce-f32", "");
    assert_eq!(flag, option);
    assert!(flag[0][0] == plain[0][0] && flag[3][0] != plain[3][0], "{flag:?} and {plain:?}");
}
