//! Published model sizes. A preset sets options; what the user sets overrides them.

/// The names, as `model.preset` takes them.
pub const PRESETS: &[&str] = &[
    "tiny",
    "gpt2-124m",
    "gpt2-350m",
    "gpt-1.3b",
    "gpt-2.7b",
    "tiny-llama",
    "llama-1b",
    "llama-8b",
    "llama-70b",
    "mlp",
];

type Values = &'static [(&'static str, &'static str)];

/// What makes a transformer a Llama (Touvron et al., 2023; Llama Team, 2024, section 3.2).
const LLAMA: Values = &[
    ("model.norm", "\"rmsnorm\""),
    ("model.activation", "\"swiglu\""),
    ("model.position", "\"rotary\""),
    ("model.rope_base", "500000.0"),
    ("model.bias", "false"),
    ("model.residual_init", "\"plain\""),
    ("model.tie_embeddings", "false"),
];

/// The options a preset sets, with values as in TOML; none for a name that is not known.
pub fn preset(name: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let family = if name.contains("llama") { LLAMA } else { &[] };
    let rates = rates(name);
    let large = if rates.is_empty() { &[] } else { LARGE };
    family.iter().chain(sizes(name)).chain(large).chain(rates).copied()
}

/// How models too large for a laptop are trained.
const LARGE: Values = &[("precision.compute", "\"bf16\""), ("optimizer.warmup_steps", "700")];

/// Learning rates of Brown et al., 2020, table 2.1, and of Llama Team, 2024, table 3, falling to a tenth.
fn rates(name: &str) -> Values {
    match name {
        "gpt2-124m" => &[("optimizer.lr", "6e-4"), ("optimizer.min_lr", "6e-5")],
        "gpt2-350m" | "llama-1b" | "llama-8b" => &[("optimizer.lr", "3e-4"), ("optimizer.min_lr", "3e-5")],
        "gpt-1.3b" => &[("optimizer.lr", "2e-4"), ("optimizer.min_lr", "2e-5")],
        "gpt-2.7b" => &[("optimizer.lr", "1.6e-4"), ("optimizer.min_lr", "1.6e-5")],
        "llama-70b" => &[("optimizer.lr", "1.5e-4"), ("optimizer.min_lr", "1.5e-5")],
        _ => &[],
    }
}

fn sizes(name: &str) -> Values {
    match name {
        // Radford et al., 2019, as released: the paper counts 117M and 345M.
        "gpt2-124m" => &[
            ("model.layers", "12"),
            ("model.hidden", "768"),
            ("model.heads", "12"),
            ("model.vocab", "50257"),
            ("model.seq_length", "1024"),
        ],
        "gpt2-350m" => &[
            ("model.layers", "24"),
            ("model.hidden", "1024"),
            ("model.heads", "16"),
            ("model.vocab", "50257"),
            ("model.seq_length", "1024"),
        ],
        // Brown et al., 2020, table 2.1.
        "gpt-1.3b" => &[
            ("model.layers", "24"),
            ("model.hidden", "2048"),
            ("model.heads", "16"),
            ("model.vocab", "50257"),
            ("model.seq_length", "2048"),
        ],
        "gpt-2.7b" => &[
            ("model.layers", "32"),
            ("model.hidden", "2560"),
            ("model.heads", "32"),
            ("model.vocab", "50257"),
            ("model.seq_length", "2048"),
        ],
        "tiny-llama" => &[("model.kv_heads", "2"), ("model.ffn", "176")],
        // Llama 3.2 1B, config.json of meta-llama/Llama-3.2-1B: tied, and with the scaled frequencies of Llama 3.1.
        "llama-1b" => &[
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
        "llama-8b" => &[
            ("model.layers", "32"),
            ("model.hidden", "4096"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.ffn", "14336"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
        ],
        "llama-70b" => &[
            ("model.layers", "80"),
            ("model.hidden", "8192"),
            ("model.heads", "64"),
            ("model.kv_heads", "8"),
            ("model.ffn", "28672"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
        ],
        "mlp" => &[
            ("model.kind", "\"mlp\""),
            ("optimizer.kind", "\"sgd\""),
            ("optimizer.lr", "0.1"),
            ("optimizer.schedule", "\"constant\""),
            ("optimizer.weight_decay", "0.0"),
            ("train.micro_batch_size", "640"),
            ("train.global_batch_size", "640"),
        ],
        _ => &[],
    }
}

/// What each preset sets, as Markdown.
pub fn reference() -> String {
    let mut text = String::from("\n## Presets\n\n| preset | sets |\n|---|---|\n");
    for name in PRESETS {
        let values: Vec<String> = preset(name).map(|(key, value)| format!("{key} = {value}")).collect();
        let values =
            if values.is_empty() { "nothing: the defaults".into() } else { format!("`{}`", values.join("`, `")) };
        text += &format!("| `{name}` | {values} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::find;

    #[test]
    fn presets_set_known_options() {
        for (key, _) in PRESETS.iter().flat_map(|name| preset(name)) {
            assert!(find(key).is_some(), "{key}");
        }
    }
}
