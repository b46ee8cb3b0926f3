//! The name of a model: its preset's, if it has the preset's sizes and choices.

use toml::{Table, Value};

use crate::config::{ConfigSources, ModelConfig, ModelKind};

/// Options of a model that do not make another model.
const NO_OTHER_MODEL: [&str; 6] =
    ["preset", "init_from", "hidden_dropout", "attention_dropout", "dropouts", "loss_pieces"];

/// A short name, also for files: the preset's, or for other sizes one such as `gpt-7x64` for seven layers of width 64.
pub fn name(model: &ModelConfig) -> String {
    match (changes(model).is_empty(), model.kind) {
        (true, _) => model.preset.to_string(),
        (false, ModelKind::Gpt) => format!("gpt-{}x{}", model.layers, model.hidden),
        (false, ModelKind::Mlp) => {
            let sizes: Vec<String> = model.layer_sizes.iter().map(usize::to_string).collect();
            format!("mlp-{}", sizes.join("-"))
        }
    }
}

/// The name of the model of a `config.toml`; `run` if the text is none.
pub(crate) fn name_in(config: &str) -> String {
    let model = config.parse::<Table>().ok().and_then(|config| config.get("model")?.clone().try_into().ok());
    model.map_or("run".into(), |model| name(&model))
}

/// The model's name; if the sizes are not a preset's, also the source of the sizes.
pub fn describe(model: &ModelConfig) -> String {
    let changes = changes(model);
    match &model.init_from {
        _ if changes.is_empty() => name(model),
        Some(folder) => format!("{} (sizes of {folder})", name(model)),
        None => {
            let changes: Vec<String> = changes.iter().map(|(option, value)| format!("{option} = {value}")).collect();
            format!("{} ({} with {})", name(model), model.preset, changes.join(", "))
        }
    }
}

/// The options that differ from the preset's.
fn changes(model: &ModelConfig) -> Vec<(String, Value)> {
    let mut sources = ConfigSources::default();
    let table = |model: &ModelConfig| Table::try_from(model).unwrap_or_default();
    let preset = match sources.set("model.preset", &model.preset.to_string(), "preset") {
        Ok(()) => table(&sources.resolve().model),
        Err(_) => Table::new(),
    };
    let differs =
        |name: &String, value: &Value| !NO_OTHER_MODEL.contains(&name.as_str()) && preset.get(name) != Some(value);
    table(model).into_iter().filter(|(name, value)| differs(name, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(options: &[(&str, &str)]) -> ModelConfig {
        let mut sources = ConfigSources::default();
        options.iter().for_each(|(key, value)| sources.set(&format!("model.{key}"), value, "test").unwrap());
        sources.resolve().model
    }

    #[test]
    fn a_model_has_its_presets_name_only_if_it_has_its_sizes() {
        /// Options, the short name and the long one.
        type Case = (&'static [(&'static str, &'static str)], &'static str, &'static str);
        let cases: [Case; 6] = [
            (&[("preset", "tiny")], "tiny", "tiny"),
            (&[("preset", "gpt2-124m"), ("hidden_dropout", "0.1")], "gpt2-124m", "gpt2-124m"),
            (&[("preset", "tiny"), ("layers", "7")], "gpt-7x64", "gpt-7x64 (tiny with layers = 7)"),
            (&[("layers", "2"), ("vocab", "300")], "gpt-2x64", "gpt-2x64 (tiny with vocab = 300)"),
            (&[("layers", "2"), ("init_from", "hf/model"), ("heads", "8")], "gpt-2x64", "gpt-2x64 (sizes of hf/model)"),
            (
                &[("preset", "mlp"), ("layer_sizes", "[8, 4, 4]")],
                "mlp-8-4-4",
                "mlp-8-4-4 (mlp with layer_sizes = [8, 4, 4])",
            ),
        ];
        for (options, short, long) in cases {
            let model = model(options);
            assert_eq!((name(&model).as_str(), describe(&model).as_str()), (short, long));
        }
    }

    #[test]
    fn a_written_configuration_names_its_model_and_other_text_names_none() {
        let config = |options| format!("[model]\n{}", toml::to_string(&model(options)).unwrap());
        assert_eq!(name_in(&config(&[("preset", "llama-1b")])), "llama-1b");
        assert_eq!(name_in(&config(&[("layers", "3")])), "gpt-3x64");
        assert_eq!(
            (name_in(""), name_in("[model]\nlayers = 3"), name_in("\0")),
            ("run".into(), "run".into(), "run".into())
        );
    }
}
