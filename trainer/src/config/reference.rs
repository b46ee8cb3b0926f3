//! The reference of all options as Markdown: `docs/options.md`.

use std::fmt::Write;

use common::Choice;

use crate::config::megatron::{Meaning, Takes, groups, our_flag, our_flags};
use crate::config::options::{Kind, options};
use crate::config::other_names::{OtherName, Trainer};
use crate::families::Preset;

/// Options, Megatron's flags, names of other trainers, and presets.
pub fn reference() -> String {
    own_options() + &megatron_flags() + &other_names() + &presets()
}

fn own_options() -> String {
    let mut text = String::from(
        "# Options\n\n`trainer options` prints this page from the option table. CI checks that it is current.\n\
         Every option is a TOML key and a flag, and `--set key=value` sets it too.\n",
    );
    let mut section = "";
    for option in options() {
        let (of, _) = option.key.split_once('.').unwrap_or(("", option.key));
        if of != section {
            section = of;
            let _ = write!(text, "\n## [{section}]\n\n| key | flag | default | meaning |\n|---|---|---|---|\n");
        }
        let flags: Vec<String> =
            std::iter::once(&option.flag).chain(option.aliases).map(|flag| format!("`--{flag}`")).collect();
        let default = if option.default.is_empty() { "unset".into() } else { format!("`{}`", option.default) };
        let values = match option.kind {
            Kind::Choice(words) => format!(". One of: {}", words.join(", ")),
            Kind::Choices(words) => format!(". Any of: {}", words.join(", ")),
            _ => String::new(),
        };
        let _ = writeln!(text, "| `{}` | {} | {default} | {}{values} |", option.key, flags.join(" "), option.doc);
    }
    text
}

fn megatron_flags() -> String {
    let mut text = String::from(
        "\n## Megatron's flags\n\nThe flags of Megatron-LM of August 2026, and of releases before it, that are no flags of an \
         option above. `*` stands for the rest of a name.\n\n| flag | here |\n|---|---|\n",
    );
    for (flags, meaning) in groups() {
        let here = match meaning {
            Meaning::Sets(key, value) | Meaning::SetsTelling((key, value), ..) => format!("`{}`", our_flag(key, value)),
            Meaning::SetsByValue(values, rule, fix) => {
                let each = values.iter().map(|(word, sets)| format!("`{word}`: `{}`", our_flags(sets)));
                format!("{}. Others are not supported: {rule}. Instead: {fix}", each.collect::<Vec<_>>().join(", "))
            }
            Meaning::SetsWhateverValue(key, value, why) => format!("`{}`: {why}", our_flag(key, value)),
            Meaning::Computes(key, formula, _) => format!("sets `{key}` to {formula}"),
            Meaning::Translates(key, words, ..) => format!("sets `{key}` to {words}"),
            Meaning::SetsUnless((key, value), (other, unless), why) => {
                format!("`{}`, but not with `{}`: {why}", our_flag(key, value), our_flag(other, unless))
            }
            Meaning::SetsItem(key, at) => format!("sets item {} of `{key}`", at + 1),
            Meaning::Refused([], rule, fix) => format!("not supported: {rule}. Instead: {fix}"),
            Meaning::Refused(words, rule, fix) => {
                format!("accepted if it is `{}`: {rule}. Instead: {fix}", words.join("` or `"))
            }
            Meaning::IgnoredIf(words, why, rule, fix) => {
                let words = words.join("` or `");
                format!(
                    "no effect if it is `{words}`, with a notice: {why}. Others are not supported: {rule}. Instead: {fix}"
                )
            }
            Meaning::Agrees(Takes::Nothing, key, why) => format!("accepted without `{key}`: {why}"),
            Meaning::Agrees(_, key, _) => format!("accepted if it equals `{key}`"),
            Meaning::Ignored(_, why) => format!("no effect, with a notice: {why}"),
        };
        let flags: Vec<String> = flags.iter().map(|flag| format!("`--{flag}`")).collect();
        let _ = writeln!(text, "| {} | {here} |", flags.join(" "));
    }
    text
}

fn other_names() -> String {
    let mut text = String::from(
        "\n## Names of other trainers\n\nA flag of one of these names is answered with ours. Hyphens in it are underscores, \
         and `*` stands for the rest of a name. `trainer import` makes a configuration of a file with such settings, and \
         takes the defaults here for those that it leaves out.\n",
    );
    for trainer in Trainer::ALL {
        let _ = write!(text, "\n### {}\n\n| name | default | here |\n|---|---|---|\n", trainer);
        for OtherName { name, default, here } in trainer.names() {
            let (rule, fix) = here.answer();
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            let here = rule.map_or(fix.clone(), |rule| format!("not there: {rule}. Instead: {fix}"));
            let _ = writeln!(text, "| `{name}` | {default} | {here} |");
        }
    }
    text
}

fn presets() -> String {
    let mut text = String::from("\n## Presets\n\n| preset | sets |\n|---|---|\n");
    for preset in Preset::ALL {
        let values: Vec<String> = preset.values().map(|(key, value)| format!("{key} = {value}")).collect();
        let values =
            if values.is_empty() { "nothing: the defaults".into() } else { format!("`{}`", values.join("`, `")) };
        let _ = writeln!(text, "| `{preset}` | {values} |");
    }
    text
}
