//! The trainer with code of its own: an optimizer, a part with a term of the loss, a loss, data, a receiver of metrics, and
//! a family. `docs/extending.md` explains it.

mod counting;
mod csv;
mod kernels;
mod novograd;
mod smoothed;
mod square;
mod squared_relu;

use trainer::config::options::{Kind, OptionSpec};
use trainer::extensions::{Extensions, Own, OwnOptimizer};
use trainer::families::{ModelFamily, Size};

const fn option(key: &'static str, flag: &'static str, default: &'static str, doc: &'static str) -> OptionSpec {
    OptionSpec { key, flag, aliases: &[], default, kind: Kind::Float, doc }
}

const ADDED: Extensions = Extensions {
    options: &[
        option("own.novograd_beta1", "novograd-beta1", "0.95", "novograd: decay of the average of gradients"),
        option("own.novograd_beta2", "novograd-beta2", "0.98", "novograd: decay of the average of their squared norm"),
        option("own.activity", "activity", "0.0", "squared-relu: multiplier of the mean square of its values"),
        option("own.smoothing", "smoothing", "0.1", "smoothed: share of the target that all tokens have"),
    ],
    optimizers: &[OwnOptimizer { name: "novograd", reads: &[], takes: None, rule: novograd::rule }],
    parts: &[Own { name: "squared-relu", make: squared_relu::part }],
    losses: &[Own { name: "smoothed", make: smoothed::loss }],
    sources: &[Own { name: "counting", make: counting::source }],
    sinks: &[Own { name: "csv", make: csv::sink }],
    families: &[ModelFamily {
        name: "Primer",
        choices: r#"norm = "rmsnorm"; bias = false; position = "rotary""#,
        sizes: &[Size { name: "tiny-primer", model: "", training: &[("own.part", "\"squared-relu\"")] }],
        hugging_face: None,
    }],
};

fn main() -> ! {
    tools::main(ADDED)
}
