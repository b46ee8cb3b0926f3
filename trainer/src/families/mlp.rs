//! The multi-layer perceptron of the benchmarks.

use super::family::{ModelFamily, sizes};

/// The family.
pub const MLP: ModelFamily = ModelFamily {
    name: "MLP",
    choices: r#"kind = "mlp""#,
    sizes: sizes! {
        "mlp", [
            ("optimizer.kind", "\"sgd\""),
            ("optimizer.lr", "0.1"),
            ("optimizer.schedule", "\"constant\""),
            ("optimizer.weight_decay", "0.0"),
            ("train.micro_batch_size", "640"),
            ("train.global_batch_size", "640"),
        ], "";
    },
    hugging_face: None,
};
