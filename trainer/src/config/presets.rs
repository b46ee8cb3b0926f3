//! Published model sizes. A preset sets options; what the user sets overrides them.

use common::choice;

choice! {
    /// A named set of sizes.
    pub enum Preset {
        /// The defaults: a small GPT for a laptop.
        Tiny = "tiny",
        /// GPT-2.
        Gpt2_124m = "gpt2-124m",
        /// GPT-2 medium.
        Gpt2_350m = "gpt2-350m",
        /// GPT-3 XL.
        Gpt1_3b = "gpt-1.3b",
        /// GPT-3 2.7B.
        Gpt2_7b = "gpt-2.7b",
        /// A small Llama for a laptop.
        TinyLlama = "tiny-llama",
        /// Llama 3.2 1B.
        Llama1b = "llama-1b",
        /// Llama 3 8B.
        Llama8b = "llama-8b",
        /// Llama 3 70B.
        Llama70b = "llama-70b",
        /// The multi-layer perceptron of the benchmarks.
        Mlp = "mlp",
    }
}

type Values = &'static [(&'static str, &'static str)];

impl Preset {
    /// The options that the preset sets, with values as in TOML. Later ones override earlier ones.
    pub fn values(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let family = match self {
            Preset::TinyLlama | Preset::Llama1b | Preset::Llama8b | Preset::Llama70b => LLAMA,
            _ => &[],
        };
        let rates = rates(self);
        let large = if rates.is_empty() { &[] } else { LARGE };
        family.iter().chain(sizes(self)).chain(large).chain(rates).copied()
    }
}

/// The architecture of Llama (Touvron et al., 2023; Llama Team, 2024, section 3.2).
const LLAMA: Values = &[
    ("model.norm", "\"rmsnorm\""),
    ("model.activation", "\"swiglu\""),
    ("model.position", "\"rotary\""),
    ("model.rope_base", "500000.0"),
    ("model.bias", "false"),
    ("model.residual_init", "\"plain\""),
    ("model.tie_embeddings", "false"),
];

/// Options of models too large for a laptop.
const LARGE: Values = &[("precision.compute", "\"bf16\""), ("optimizer.warmup_steps", "700")];

/// Learning rates of Brown et al., 2020, table 2.1, and of Llama Team, 2024, table 3. They decay to a tenth.
fn rates(preset: Preset) -> Values {
    match preset {
        Preset::Gpt2_124m => &[("optimizer.lr", "6e-4"), ("optimizer.min_lr", "6e-5")],
        Preset::Gpt2_350m | Preset::Llama1b | Preset::Llama8b => {
            &[("optimizer.lr", "3e-4"), ("optimizer.min_lr", "3e-5")]
        }
        Preset::Gpt1_3b => &[("optimizer.lr", "2e-4"), ("optimizer.min_lr", "2e-5")],
        Preset::Gpt2_7b => &[("optimizer.lr", "1.6e-4"), ("optimizer.min_lr", "1.6e-5")],
        Preset::Llama70b => &[("optimizer.lr", "1.5e-4"), ("optimizer.min_lr", "1.5e-5")],
        Preset::Tiny | Preset::TinyLlama | Preset::Mlp => &[],
    }
}

fn sizes(preset: Preset) -> Values {
    match preset {
        Preset::Tiny => &[],
        // Radford et al., 2019, as released. The paper counts 117M and 345M.
        Preset::Gpt2_124m => &[
            ("model.layers", "12"),
            ("model.hidden", "768"),
            ("model.heads", "12"),
            ("model.vocab", "50257"),
            ("model.seq_length", "1024"),
        ],
        Preset::Gpt2_350m => &[
            ("model.layers", "24"),
            ("model.hidden", "1024"),
            ("model.heads", "16"),
            ("model.vocab", "50257"),
            ("model.seq_length", "1024"),
        ],
        // Brown et al., 2020, table 2.1.
        Preset::Gpt1_3b => &[
            ("model.layers", "24"),
            ("model.hidden", "2048"),
            ("model.heads", "16"),
            ("model.vocab", "50257"),
            ("model.seq_length", "2048"),
        ],
        Preset::Gpt2_7b => &[
            ("model.layers", "32"),
            ("model.hidden", "2560"),
            ("model.heads", "32"),
            ("model.vocab", "50257"),
            ("model.seq_length", "2048"),
        ],
        Preset::TinyLlama => &[("model.kv_heads", "2"), ("model.ffn", "176")],
        // Llama 3.2 1B, config.json of meta-llama/Llama-3.2-1B. It has tied embeddings, and Llama 3.1's scaled frequencies.
        Preset::Llama1b => &[
            ("model.layers", "16"),
            ("model.hidden", "2048"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.ffn", "8192"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
            ("model.rope_scaling", "[32.0, 1.0, 4.0, 8192.0]"),
            ("model.tie_embeddings", "true"),
        ],
        // Llama Team, 2024, table 3, and config.json of meta-llama/Meta-Llama-3-8B and -70B.
        Preset::Llama8b => &[
            ("model.layers", "32"),
            ("model.hidden", "4096"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.ffn", "14336"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
        ],
        Preset::Llama70b => &[
            ("model.layers", "80"),
            ("model.hidden", "8192"),
            ("model.heads", "64"),
            ("model.kv_heads", "8"),
            ("model.ffn", "28672"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
        ],
        Preset::Mlp => &[
            ("model.kind", "\"mlp\""),
            ("optimizer.kind", "\"sgd\""),
            ("optimizer.lr", "0.1"),
            ("optimizer.schedule", "\"constant\""),
            ("optimizer.weight_decay", "0.0"),
            ("train.micro_batch_size", "640"),
            ("train.global_batch_size", "640"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use common::Choice;

    use super::*;
    use crate::config::options::find;

    #[test]
    fn presets_set_known_options() {
        for (key, _) in Preset::ALL.iter().flat_map(|preset| preset.values()) {
            assert!(find(key).is_some(), "{key}");
        }
    }
}
