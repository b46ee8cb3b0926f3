//! Other words for values of our options: Megatron's, and those of other trainers.

use std::borrow::Cow;

/// Words that mean the same as ours: key, the other word, our word.
const SAME: &[(&str, &str, &str)] = &[
    ("train.device", "cpu", "host"),
    ("train.device", "gpu", "cuda"),
    ("model.norm", "LayerNorm", "layernorm"),
    ("model.norm", "RMSNorm", "rmsnorm"),
    ("model.position", "learned_absolute", "learned"),
    ("model.position", "rope", "rotary"),
    ("optimizer.kind", "adam", "adamw"),
    ("optimizer.schedule", "inverse-square-root", "inverse_sqrt"),
    ("parallel.context_transfers", "p2p", "ring"),
    ("parallel.context_transfers", "all_gather", "keys"),
    ("parallel.context_transfers", "a2a", "heads"),
    ("cuda_graph.scope", "full", "per_layer"),
    ("cuda_graph.scope", "attn", "per_layer"),
    ("cuda_graph.scope", "mlp", "per_layer"),
    ("cuda_graph.scope", "moe", "per_layer"),
    ("cuda_graph.scope", "moe_router", "per_layer"),
    ("cuda_graph.modules", "attn", "attention"),
];

/// Words that set another option too: key, Megatron's word, the other key, its value. These scopes were the modules of
/// earlier releases.
const ALSO: &[(&str, &str, &str, &str)] = &[
    ("cuda_graph.scope", "attn", "cuda_graph.modules", "attention"),
    ("cuda_graph.scope", "mlp", "cuda_graph.modules", "mlp"),
    ("cuda_graph.scope", "moe", "cuda_graph.modules", "moe"),
    ("cuda_graph.scope", "moe_router", "cuda_graph.modules", "moe_router"),
];

const TRANSFORMER: &str = "models are transformers: name embedding, attention, mlp, moe or head";

/// Words without an equivalent: key, Megatron's word, the fix.
const OTHER: &[(&str, &str, &str)] = &[
    ("cuda_graph.modules", "mamba", TRANSFORMER),
    ("cuda_graph.modules", "full", "leave cuda_graph.modules out: whole layers are the default"),
    ("cuda_graph.modules", "full_iteration", "set cuda_graph.scope = \"full_iteration\""),
    ("cuda_graph.scope", "moe_preprocess", "set cuda_graph.modules = [\"moe_router\", \"moe_preprocess\"]"),
    ("cuda_graph.scope", "mamba", TRANSFORMER),
    (
        "parallel.context_transfers",
        "a2a+p2p",
        "set parallel.context_transfers = \"ring\" or \"heads\": ranks do one of them",
    ),
    ("model.router_score", "sqrtsoftplus", "set model.router_score = \"softmax\" or \"sigmoid\""),
    ("model.preset", "gpt2-small", "set model.preset = \"gpt2-124m\""),
    ("model.preset", "gpt2-medium", "set model.preset = \"gpt2-350m\""),
    ("optimizer.schedule", "WSD", "set optimizer.schedule = \"wsd\", whose decay is linear"),
];

/// Our word for a value of the option.
pub fn ours<'w>(key: &str, word: &'w str) -> Cow<'w, str> {
    if key == "data.split"
        && let Some((share, _)) = split(word)
    {
        return share.to_string().into();
    }
    SAME.iter().find(|known| (known.0, known.1) == (key, word)).map_or(word, |known| known.2).into()
}

/// The notice about a word that is taken, if other trainers may mean something else by the word.
pub fn notice(key: &str, word: &str) -> Option<String> {
    if (key, word) == ("optimizer.kind", "adam") {
        let adam = "optimizer.kind = \"adam\" is adamw, as in Megatron: weight decay does not pass through the moments";
        return Some(adam.into());
    }
    let (share, _) = split(word).filter(|&(_, of_test)| key == "data.split" && of_test > 0.0)?;
    Some(format!("--split {word} is data.split = {share}: the rest, with Megatron's test data, is for validation"))
}

/// Another option that the word sets too, and that option's value.
pub fn also_sets(key: &str, word: &str) -> Option<(&'static str, &'static str)> {
    ALSO.iter().find(|known| (known.0, known.1) == (key, word)).map(|known| (known.2, known.3))
}

/// The other words that mean the same as ours.
pub fn others(key: &str, ours: &str) -> impl Iterator<Item = &'static str> {
    SAME.iter().filter(move |known| (known.0, known.2) == (key, ours)).map(|known| known.1)
}

/// The fix for a value that the option does not take, if the value is a word of other trainers.
pub fn fix(key: &str, text: &str) -> Option<String> {
    if let ("train.device", Some(("cuda" | "gpu", number))) = (key, text.split_once(':')) {
        return Some(format!("set CUDA_VISIBLE_DEVICES={number}, and train.device = \"cuda\""));
    }
    if key == "model.init_from" {
        return match text {
            "scratch" => Some("leave it out: a model starts from random values".into()),
            "resume" => {
                Some("leave it out: the same command continues from the newest checkpoint in checkpoint.dir".into())
            }
            // A name at Hugging Face: gpt2-xl, or meta-llama/Llama-3.1-8B.
            name if !name.trim().is_empty() && !name.starts_with(['.', '/', '~']) && name.matches('/').count() <= 1 => {
                let folder = name.rsplit('/').next().unwrap_or(name);
                Some(format!("check the path; hf download {name} --local-dir {folder} gets a model of that name"))
            }
            _ => None,
        };
    }
    if key == "data.split" {
        let (share, _) = split(text)?;
        return Some(format!("set data.split = {share}: the rest is for validation, and there is no test data"));
    }
    OTHER.iter().find(|known| (known.0, known.1) == (key, text)).map(|known| known.2.to_string())
}

/// Megatron's two or three shares for training, validation and test, as fractions of the shares' sum: the first and the
/// last.
fn split(text: &str) -> Option<(f64, f64)> {
    let parts: Vec<f64> = text.split(',').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?;
    let share = |part: f64| (part / parts.iter().sum::<f64>() * 1e6).round() / 1e6;
    let known = (2..=3).contains(&parts.len()) && parts.iter().all(|&part| part >= 0.0) && share(parts[0]) > 0.0;
    known.then(|| (share(parts[0]), parts.get(2).map_or(0.0, |&part| share(part))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;
    use crate::config::options::find;

    #[test]
    fn every_word_stands_for_a_value_of_an_option() {
        for (key, ours) in SAME.iter().map(|word| (word.0, word.2)).chain(ALSO.iter().map(|word| (word.2, word.3))) {
            ConfigSources::default().set(key, ours, "test").unwrap();
        }
        assert!(OTHER.iter().all(|(key, ..)| find(key).is_some()));
    }

    #[test]
    fn a_split_is_its_first_share_and_test_data_are_told() {
        for (text, taken) in
            [("99,1,0", "0.99"), ("99, 1", "0.99"), ("100,0,0", "1"), ("949,50,1", "0.949"), ("0.9", "0.9")]
        {
            assert_eq!(ours("data.split", text), taken);
        }
        assert!(fix("data.split", "949,50,1").unwrap().starts_with("set data.split = 0.949:"));
        assert!(notice("data.split", "949,50,1").unwrap().contains("is data.split = 0.949:"));
        assert_eq!(notice("data.split", "99,1,0"), None);
        for none in ["most", "0.9", "0,0", "-1,2", "0,1,0", "1,2,3,4", "nan,1"] {
            assert_eq!(fix("data.split", none), None, "{none}");
            assert_eq!(ours("data.split", none), none);
        }
    }
}
