//! Every name that an import knows is given a value of each form. It changes the configuration, or a comment names it.

use std::collections::BTreeMap;

use toml::{Table, Value};
use trainer::config::megatron::{flags, meaning};
use trainer::config::options::{Kind, find, options};
use trainer::config::other_names::{Here, OtherName, Trainer};

use super::{megatron, settings_file};

/// The ranks of the runs: tensor, pipeline and data parallelism may all have two.
const RANKS: usize = 8;

/// The settings of a page, and the page's comments.
fn parts(page: &str) -> (Table, Vec<String>) {
    let comments = page.lines().filter_map(|line| line.split_once("# ")).map(|(_, comment)| comment.to_string());
    (page.parse().expect(page), comments.collect())
}

/// Values that are no defaults: those that an option takes, or one of each form.
fn unusual(name: &OtherName) -> Vec<Value> {
    let of = |key| match find(key).expect(key).kind {
        Kind::Bool => [true, false].map(Value::Boolean).to_vec(),
        Kind::Integer => vec![Value::Integer(37)],
        Kind::Float => vec![Value::Float(0.37)],
        Kind::Choice(words) => words.iter().map(|word| (*word).into()).collect(),
        _ => vec!["wombat".into()],
    };
    match name.here {
        Here::Same(key) => of(key),
        _ => vec![true.into(), 37.into(), 0.37.into(), "wombat".into(), Value::Array(vec!["wombat".into()])],
    }
}

/// A file of a trainer, with settings that make others count.
fn file_of(trainer: Trainer) -> Table {
    let text = match trainer {
        Trainer::NanoGpt => "max_iters = 50\nlr_decay_iters = 50\nwarmup_iters = 5",
        Trainer::Torchtitan => {
            "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nsteps = 50\n[checkpoint]\nenable = true\n\
             [validation]\nenable = true\n[lr_scheduler]\ndecay_ratio = 0.5"
        }
        _ => "max_steps = 50\nuse_peft = true\nlora_r = 4\nbeta = 0.2\neval_strategy = \"steps\"\neval_steps = 5",
    };
    text.parse().unwrap()
}

/// The page for a file with one more setting.
fn page_of(trainer: Trainer, name: &str, value: Option<&Value>) -> String {
    let mut file = file_of(trainer);
    let name = name.replace('*', "wombat");
    if let Some(value) = value {
        match name.split_once('.').filter(|_| trainer == Trainer::Torchtitan) {
            Some((section, name)) => {
                let section = file.entry(section).or_insert_with(|| Table::new().into());
                section.as_table_mut().unwrap().insert(name.into(), value.clone());
            }
            None => drop(file.insert(name, value.clone())),
        }
    }
    let text = match trainer {
        Trainer::NanoGpt => file.iter().map(|(name, value)| format!("{name} = {}\n", python(value))).collect(),
        Trainer::Torchtitan => file.to_string(),
        _ => serde_json::to_string(&file).unwrap(),
    };
    let (imported, ranks) = settings_file::import(trainer, &text, "file", Some(RANKS)).expect(&text);
    imported.page("title", ranks)
}

fn python(value: &Value) -> String {
    match value.as_bool() {
        Some(true) => "True".into(),
        Some(false) => "False".into(),
        None => value.to_string(),
    }
}

#[test]
fn a_setting_of_another_trainer_changes_the_configuration_or_is_named() {
    let mut vanished = Vec::new();
    for trainer in [Trainer::NanoGpt, Trainer::Torchtitan, Trainer::HuggingFace] {
        let (values, comments) = parts(&page_of(trainer, "", None));
        let file = file_of(trainer);
        for name in trainer.names() {
            for value in unusual(name) {
                let page = page_of(trainer, name.name, Some(&value));
                let (with, said) = parts(&page);
                let written = name.name.trim_end_matches('*');
                let last = written.rsplit('.').next().unwrap();
                let is_named = said.iter().any(|line| line.contains(last) && !comments.contains(line));
                let (section, key) = written.split_once('.').unwrap_or(("", written));
                let before = file.get(section).and_then(|of| of.get(key)).or_else(|| file.get(written));
                let is_off =
                    value.as_bool() == Some(false) || before == Some(&value) || name.default == value.to_string();
                let what = format!("{} of {trainer} = {value}", name.name);
                if !(is_off || with != values || is_named) {
                    vanished.push(what.clone());
                }
                // What is taken has the value itself.
                if let Here::Same(key) = name.here {
                    let (section, key) = key.split_once('.').unwrap();
                    let set = with.get(section).and_then(|of| of.get(key));
                    let same = set.is_some_and(|set| set == &value || set.to_string() == value.to_string());
                    assert!(same || is_named || is_off, "{what} is {set:?}");
                }
            }
        }
    }
    assert!(vanished.is_empty(), "{vanished:#?}");
}

#[test]
fn a_flag_of_megatron_changes_the_configuration_or_is_named() {
    let base = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 --lr 1e-3 \
                --train-iters 20 --vocab-size 256 --data-path tokens --save ckpt";
    let page_of = |more: &str| {
        let (imported, ranks) = megatron::import(&format!("{base} {more}"), "file", Some(RANKS)).expect(more);
        imported.page("title", ranks)
    };
    let numbers = crate::commands::args::numbers_of_values();
    let value_of = |flag: &str| {
        let option = options().iter().find(|option| option.flag == flag || option.aliases.contains(&flag));
        match option.map(|option| option.kind) {
            Some(Kind::Integer | Kind::Integers) => " 37",
            Some(Kind::Float | Kind::Floats) => " 0.37",
            Some(_) => " wombat",
            None if numbers.get(flag) == Some(&0) => "",
            None => " 37",
        }
    };
    let mut given: BTreeMap<&str, String> = BTreeMap::new();
    let ours = options().iter().flat_map(|option| [option.flag].into_iter().chain(option.aliases.iter().copied()));
    for flag in ours.chain(flags().map(|(flag, _)| flag)).filter(|flag| !base.contains(&format!("--{flag} "))) {
        given.insert(flag, format!("--{}{}", flag.replace('*', "wombat"), value_of(flag)));
    }
    // Several flags in a file, since one takes as long as many.
    let (values, _) = parts(&page_of(""));
    let mut vanished = Vec::new();
    let given: Vec<_> = given.iter().collect();
    for several in given.chunks(60) {
        let page = page_of(&several.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(" "));
        let (with, said) = parts(&page);
        for (flag, text) in several {
            let written = format!("--{}", flag.trim_end_matches('*'));
            let is_named = said.iter().any(|line| line.contains(&written));
            let option = options().iter().find(|option| option.flag == **flag || option.aliases.contains(flag));
            let keys =
                option.map(|option| vec![option.key]).or_else(|| Some(meaning(flag)?.keys())).unwrap_or_default();
            let is_set = keys.iter().any(|key| {
                let (section, key) = key.split_once('.').unwrap();
                let of = |table: &Table| table.get(section).and_then(|of| of.get(key)).cloned();
                of(&with) != of(&values) || said.iter().any(|line| line.contains(&format!("{section}.{key}")))
            });
            if !is_named && !is_set {
                vanished.push(text);
            }
        }
    }
    assert!(vanished.is_empty(), "{vanished:#?}");
}
