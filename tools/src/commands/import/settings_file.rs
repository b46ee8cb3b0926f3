//! The settings of a file of names and values: a configuration of nanoGPT or torchtitan, or the arguments of Hugging
//! Face's trainer.

use common::UserError;
use toml::{Table, Value};
use trainer::config::other_names::{Here, OtherName, Set, Settings, Trainer};

use super::page::Imported;
use super::{python, recognise};

/// The activation of nanoGPT, which nanoGPT's code has and the configuration lacks.
const EXACT_GELU: &str =
    "GELU in its exact form (nn.GELU() in model.py): GELU here has the tanh form, that of GPT-2's weights";

/// The ranks that divide the weights; -1 stands for all.
const SHARD: &str = "parallelism.data_parallel_shard_degree";

/// The options that follow from a file of a trainer's run on `ranks` ranks, and the number of ranks, if none is given the
/// file's. `file` is the file's name.
///
/// # Errors
/// A text that is not of the file's form.
pub(super) fn import(
    trainer: Trainer,
    text: &str,
    file: &str,
    ranks: Option<usize>,
) -> Result<(Imported, usize), UserError> {
    let (given, lines) = match trainer {
        Trainer::NanoGpt => python::assignments(text),
        Trainer::Torchtitan => (sections(text, file)?, Vec::new()),
        _ => (json(text, file)?, Vec::new()),
    };
    recognise::check(trainer, &given, file)?;
    let mut settings = Settings::new(trainer.names(), given, ranks.unwrap_or(1));
    let mut imported = Imported::default();
    if (trainer, ranks) == (Trainer::Torchtitan, None) {
        settings = settings.on_ranks_of_degrees();
        if settings.number(SHARD).is_some_and(|degree| degree < 1.0) {
            imported
                .leave(format!("{SHARD} = -1: the number of ranks is not known. Instead: trainer import --ranks N"));
        }
    }
    lines.into_iter().for_each(|line| imported.leave(line));
    if trainer == Trainer::NanoGpt {
        imported.leave(EXACT_GELU);
    }
    // Given settings override what follows from defaults.
    let (given, defaults): (Vec<&OtherName>, Vec<&OtherName>) =
        trainer.names().iter().partition(|name| settings.value(name.name).is_some_and(|(_, given)| given));
    for name in defaults.into_iter().chain(given) {
        if let Some((value, given)) = settings.value(name.name) {
            let given = given || has_given_part(trainer, name, &settings);
            let default = if given { String::new() } else { format!("default of {trainer}") };
            add(name, value, &default, &settings, &mut imported);
        }
    }
    for (name, value) in settings.given() {
        let known = trainer.find(name);
        match known.map(|known| (known.name == name, known.here)) {
            Some((true, _)) => {}
            _ if asks_for_nothing(value) => {}
            Some((false, here)) => {
                let (rule, fix) = here.answer();
                let rule = rule.unwrap_or("it has no equivalent");
                imported.leave(format!("{name} = {value}: {rule}. Instead: {fix}"));
            }
            None => imported.leave(format!("{name} = {value}: no setting of this name is known")),
        }
    }
    tell_the_rest(trainer, &settings, &mut imported);
    Ok((imported, settings.ranks))
}

/// Names each given setting that the page does not have by now.
fn tell_the_rest(trainer: Trainer, settings: &Settings, imported: &mut Imported) {
    for (name, value) in settings.given() {
        let is_default = settings.default_of(name) == Some(value);
        let becomes = trainer.find(name).is_some_and(|known| {
            let is_read = matches!(known.here, Here::Same(_) | Here::IfTrue(..) | Here::Becomes(..));
            is_read && settings.made(known, value).is_ok_and(|sets| !sets.is_empty())
        });
        if becomes || is_default || asks_for_nothing(value) || imported.mentions(name, value) {
            continue;
        }
        let why = "it asks for what is so here, or other settings decide";
        imported.leave(format!("{name} = {value} has no effect: {why}"));
    }
}

/// Adds what follows from a setting. `default` says that its value is the trainer's default; it is empty if the file has the
/// setting, or another that is read together with it.
fn add(name: &OtherName, value: &Value, default: &str, settings: &Settings, imported: &mut Imported) {
    match settings.made(name, value) {
        Ok(sets) => {
            for Set { key, value, how } in sets {
                let how = match (default.is_empty(), how.is_empty()) {
                    (true, _) => how,
                    (false, true) => default.into(),
                    (false, false) => format!("{default}: {how}"),
                };
                imported.set(&Set { key, value, how }, name.name);
            }
        }
        Err(_) if asks_for_nothing(value) => {}
        Err(reason) => {
            let fix = if let Here::Without(_, fix) = name.here { format!(". Instead: {fix}") } else { String::new() };
            let default = if default.is_empty() { String::new() } else { format!(" ({default})") };
            imported.leave(format!("{} = {value}{default}: {reason}{fix}", name.name));
        }
    }
}

/// Whether a file has a setting that is read together with another.
fn has_given_part(trainer: Trainer, name: &OtherName, settings: &Settings) -> bool {
    let is_part = |part: &OtherName| matches!(part.here, Here::With(of, _) if of == name.name);
    trainer.names().iter().any(|part| is_part(part) && settings.given().contains_key(part.name))
}

/// Whether a value turns a setting off.
fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Boolean(is_on) => !is_on,
        Value::String(text) => ["", "no", "none", "disabled", "off"].contains(&text.as_str()),
        Value::Array(items) => items.is_empty(),
        Value::Table(table) => table.is_empty(),
        _ => false,
    }
}

/// The settings of a TOML file by `section.name`.
pub(super) fn sections(text: &str, file: &str) -> Result<Table, UserError> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let what = format!("{file} is not TOML: {}", error.message());
        UserError::new(what, "a job of torchtitan is a TOML file", "correct it")
    })?;
    let mut all = Table::new();
    for (section, content) in table {
        match content {
            Value::Table(content) => {
                all.extend(content.into_iter().map(|(name, value)| (format!("{section}.{name}"), value)));
            }
            value => drop(all.insert(section, value)),
        }
    }
    Ok(all)
}

/// The settings of a JSON object. Those that are null are left out.
pub(super) fn json(text: &str, file: &str) -> Result<Table, UserError> {
    let wrong = |problem: String| {
        let rule =
            "arguments of Hugging Face's trainer are a JSON object, as TrainingArguments.to_json_string() writes it";
        UserError::new(format!("{file}: {problem}"), rule, "correct it")
    };
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    match toml_of(value) {
        Some(Value::Table(table)) => Ok(table),
        _ => Err(wrong("it is no object".into())),
    }
}

/// The same value; `None` for null.
fn toml_of(value: serde_json::Value) -> Option<Value> {
    Some(match value {
        serde_json::Value::Null => return None,
        serde_json::Value::Bool(is_true) => Value::Boolean(is_true),
        serde_json::Value::Number(number) => {
            number.as_i64().map(Value::Integer).or_else(|| number.as_f64().map(Value::Float))?
        }
        serde_json::Value::String(text) => Value::String(text),
        serde_json::Value::Array(items) => Value::Array(items.into_iter().filter_map(toml_of).collect()),
        serde_json::Value::Object(object) => {
            Value::Table(object.into_iter().filter_map(|(name, value)| Some((name, toml_of(value)?))).collect())
        }
    })
}
