//! The command that a launch script runs: its variables are expanded, as far as the script itself sets them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::arithmetic::{Language, Number, evaluate};
use super::shell_words::{Fragment, Line, RawWord, lines};

/// Stands before an expansion that is not known, in a word.
const UNKNOWN: char = '\u{f8ff}';

/// The most bytes of all expansions together. Variables that hold themselves would grow without end.
const MOST_EXPANDED: usize = 64 << 20;

/// The most expansions within the default of an expansion.
const DEEPEST: usize = 32;

/// A training command in a script.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Script {
    /// The program and the arguments; the arguments alone if the script is a list of arguments.
    pub(super) words: Vec<Word>,
    /// A line for each part of the script that is not known.
    pub(super) left: Vec<String>,
}

/// A word of a command.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Word(String);

impl Word {
    /// The word. Expansions that are not known are as they are written.
    pub(super) fn text(&self) -> String {
        self.0.replace(UNKNOWN, "")
    }

    /// Whether all of the word is known.
    pub(super) fn is_known(&self) -> bool {
        !self.0.contains(UNKNOWN)
    }
}

/// The words that begin and end what bash runs under a condition, several times or later.
const OPENS: [&str; 6] = ["if", "for", "while", "until", "case", "{"];
const CLOSES: [&str; 4] = ["fi", "done", "esac", "}"];
const BETWEEN: [&str; 5] = ["then", "else", "elif", "do", "!"];

/// The training command of a script, or the arguments of a list.
pub(super) fn read(text: &str) -> Script {
    let mut variables = Variables::default();
    let (mut depth, mut arguments) = (0_usize, Vec::new());
    let mut found: Option<((bool, bool), Vec<Word>)> = None;
    for line in lines(text) {
        let mut words = &line.words[..];
        let mut is_end = false;
        while let Some(first) = words.first().and_then(RawWord::bare) {
            if OPENS.contains(&first) {
                depth += 1;
            } else if CLOSES.contains(&first) {
                depth = depth.saturating_sub(1);
                is_end = true;
            } else if !BETWEEN.contains(&first) {
                break;
            }
            words = &words[1..];
        }
        // Words after the end of a block, or of `for`, are no command.
        if is_end || words.is_empty() {
            continue;
        }
        let words = variables.assign(words, &line, depth > 0 || line.is_conditional);
        let expanded = variables.expand_all(words);
        if let Some((is_training, command)) = command_of_python(&expanded) {
            // Of several, the first that trains outside of conditions is the one.
            let rank = (is_training, depth == 0);
            if found.as_ref().is_none_or(|(before, _)| *before < rank) {
                found = Some((rank, command));
            }
        } else if expanded.first().is_some_and(|first| first.text().starts_with("--")) {
            arguments.extend(expanded);
        }
    }
    let words = found.map_or(arguments, |(_, command)| command);
    let left = variables.conditions.into_iter().map(|(line, names)| {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        format!("line {line}: {names} may be set under a condition or in a loop, which is not evaluated")
    });
    Script { words, left: left.collect() }
}

/// The words of a command that runs a script of Python, also if a shell is given it as a text; and whether it trains, by its
/// name.
fn command_of_python(words: &[Word]) -> Option<(bool, Vec<Word>)> {
    let script = |words: &[Word]| words.iter().map(Word::text).find(|word| word.ends_with(".py"));
    let words = match script(words) {
        Some(_) => words.to_vec(),
        None => split(&words.iter().find(|word| word.0.contains(".py "))?.0),
    };
    let name = script(&words)?;
    let name = name.rsplit('/').next().unwrap_or_default();
    Some((name.starts_with("pretrain") || name.starts_with("train"), words))
}

#[derive(Default)]
struct Variables {
    values: BTreeMap<String, Vec<Word>>,
    /// The lines that set variables under a condition, with the variables' names.
    conditions: BTreeMap<usize, BTreeSet<String>>,
    /// Bytes that variables were expanded to so far.
    expanded: Cell<usize>,
}

impl Variables {
    /// Sets the variables that a command begins with. Returns the words after them: none if there is no more.
    fn assign<'w>(&mut self, words: &'w [RawWord], line: &Line, is_conditional: bool) -> &'w [RawWord] {
        let exports = ["export", "declare", "local", "readonly", "typeset"];
        let is_export = words.first().and_then(RawWord::bare).is_some_and(|word| exports.contains(&word));
        for (at, word) in words.iter().enumerate().skip(usize::from(is_export)) {
            let Some((name, adds)) = assigned(word) else {
                if is_export {
                    continue; // an option, or a name alone
                }
                return &words[at..];
            };
            let value = self.value(word, name.len() + 1 + usize::from(adds));
            if is_conditional {
                self.conditions.entry(line.number).or_default().insert(name.to_string());
                continue;
            }
            match (adds, &word.list) {
                (false, _) => drop(self.values.insert(name.into(), value)),
                (true, Some(_)) => self.values.entry(name.into()).or_default().extend(value),
                (true, None) => {
                    let before = if self.values.contains_key(name) { self.variable(name) } else { String::new() };
                    let value = value.first().map_or("", |word| &word.0);
                    self.values.insert(name.into(), vec![Word(before + value)]);
                }
            }
        }
        &[]
    }

    /// The value of an assignment whose name and sign are `skipped` bytes long.
    fn value(&self, word: &RawWord, skipped: usize) -> Vec<Word> {
        if let Some(list) = &word.list {
            return self.expand_all(list);
        }
        vec![Word(self.joined(&word.fragments).split_off(skipped))]
    }

    /// The words of a command after expansion.
    fn expand_all(&self, words: &[RawWord]) -> Vec<Word> {
        words.iter().flat_map(|word| self.expand(word)).collect()
    }

    fn expand(&self, word: &RawWord) -> Vec<Word> {
        // A list alone is as many words as it has items.
        let alone = match &word.fragments[..] {
            [Fragment::Variable(inner, _)] => Some(inner),
            [Fragment::Text(empty, true), Fragment::Variable(inner, true)] if empty.is_empty() => Some(inner),
            _ => None,
        };
        let list = alone.and_then(|inner| inner.strip_suffix("[@]").or_else(|| inner.strip_suffix("[*]")));
        if let Some(items) = list.and_then(|name| self.value_of(name)) {
            return items.clone();
        }
        let quoted = |fragment: &Fragment| matches!(fragment, Fragment::Text(_, true) | Fragment::Variable(_, true));
        if word.fragments.iter().any(quoted)
            || word.fragments.iter().all(|fragment| matches!(fragment, Fragment::Text(..)))
        {
            return vec![Word(self.joined(&word.fragments))];
        }
        split(&self.joined(&word.fragments))
    }

    /// The text of a word, not divided.
    fn joined(&self, fragments: &[Fragment]) -> String {
        fragments.iter().map(|fragment| self.fragment(fragment)).collect()
    }

    /// The text of a fragment of a word. What is not known stays as it is written, behind a mark.
    fn fragment(&self, fragment: &Fragment) -> String {
        match fragment {
            Fragment::Text(text, _) => text.clone(),
            Fragment::Variable(inner, _) => self.variable(inner),
            Fragment::Sum(sum) => match evaluate(sum, Language::Shell, &|name| self.number(name)) {
                Some(Number::Whole(whole)) => whole.to_string(),
                _ => format!("{UNKNOWN}$(({sum}))"),
            },
            Fragment::Output(text) => format!("{UNKNOWN}{text}"),
        }
    }

    /// The value of a variable; `None` for an unknown variable, or if too much was expanded before.
    fn value_of(&self, name: &str) -> Option<&Vec<Word>> {
        let value = self.values.get(name).filter(|_| self.expanded.get() <= MOST_EXPANDED)?;
        // A word takes memory beside its text.
        let bytes = value.iter().map(|word| word.0.len() + 64).sum::<usize>();
        self.expanded.set(self.expanded.get() + bytes);
        Some(value)
    }

    fn variable(&self, inner: &str) -> String {
        let name_ends = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
        let (name, rest) = inner.split_at(name_ends);
        let value = self.value_of(name).map(|words| words.iter().map(|word| &*word.0).collect::<Vec<_>>().join(" "));
        let default = [":-", "-", ":=", "="].into_iter().find_map(|sign| rest.strip_prefix(sign));
        match (value, rest) {
            (Some(value), "" | "[@]" | "[*]" | "[0]") => value,
            (Some(value), _) if default.is_some() && !value.is_empty() => value,
            (_, _) if let Some(default) = default.filter(|text| text.matches('$').count() <= DEEPEST) => {
                self.text_of(default)
            }
            _ if inner.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => format!("{UNKNOWN}${inner}"),
            _ => format!("{UNKNOWN}${{{inner}}}"),
        }
    }

    /// A text, such as a default, after expansion.
    fn text_of(&self, text: &str) -> String {
        let words = lines(text).into_iter().flat_map(|line| line.words);
        words.map(|word| self.joined(&word.fragments)).collect::<Vec<_>>().join(" ")
    }

    fn number(&self, name: &str) -> Option<Number> {
        let [word] = &self.values.get(name)?[..] else { return None };
        word.text().trim().parse().ok().filter(|_| word.is_known()).map(Number::Whole)
    }
}

/// The name that a word sets, and whether the word adds to the value.
fn assigned(word: &RawWord) -> Option<(&str, bool)> {
    let Some(Fragment::Text(text, false)) = word.fragments.first() else { return None };
    let (name, _) = text.split_once('=')?;
    let (name, adds) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, adds))
}

/// The words of a text, divided at spaces.
fn split(text: &str) -> Vec<Word> {
    text.split_whitespace().map(|word| Word(word.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(script: &Script) -> Vec<String> {
        script.words.iter().map(Word::text).collect()
    }

    #[test]
    fn variables_lists_defaults_and_sums_are_expanded() {
        let script = "GPUS=8\nNODES=${NODES:-2}\nWORLD=$(($GPUS * NODES))\nexport NAME='my run' OTHER=$GPUS\n\
                      ARGS=(\n --a $WORLD # a comment\n --name \"$NAME\"\n)\nARGS+=(--b \"${OTHER}\")\n\
                      OLD=\"\n  --c 1 \\\n  --d ${GPUS}\n\"\nOLD+=\" --e\"\n\
                      python tools/preprocess.py --x\n\
                      torchrun --nproc_per_node ${GPUS} pretrain_gpt.py ${ARGS[@]} \"${ARGS[@]}\" $OLD 2>&1 | tee log";
        let found = read(script);
        assert_eq!(
            texts(&found).join("|"),
            "torchrun|--nproc_per_node|8|pretrain_gpt.py|--a|16|--name|my run|--b|8|--a|16|--name|my run|--b|8|--c|1|--d|8|--e"
        );
        assert!(found.left.is_empty() && found.words.iter().all(Word::is_known), "{found:?}");
    }

    #[test]
    fn what_the_script_does_not_set_itself_is_marked_and_conditions_are_named() {
        let script = "SAVE=$1\nHOST=$(hostname)\nif [ -z \"$LR\" ]; then\n  LR=1e-4\n  ARGS+=(--x)\nfi\n\
                      [ -n \"$2\" ] && STEPS=5\n\
                      sh -c \"python pretrain_gpt.py --lr $LR --save $SAVE/ckpt --host $HOST --ok 1 ${MORE}\"";
        let found = read(script);
        let unknown: Vec<String> = found.words.iter().filter(|word| !word.is_known()).map(Word::text).collect();
        assert_eq!(unknown, ["$LR", "$1/ckpt", "$(hostname)", "$MORE"]);
        assert_eq!(found.left.len(), 3, "{found:?}");
        assert!(found.left[0].starts_with("line 4: LR may be set") && found.left[2].starts_with("line 7: STEPS"));
        assert_eq!(texts(&found)[0], "python");
    }

    #[test]
    fn a_list_of_arguments_needs_no_program_and_values_do_not_grow_without_end() {
        let found = read("--num-layers 2\n--lr 1e-4 \\\n  --bf16\n");
        assert_eq!(texts(&found), ["--num-layers", "2", "--lr", "1e-4", "--bf16"]);
        let doubling = (0..64).map(|_| "A+=(${A[@]} x)\n").collect::<String>() + "python train.py ${A[@]}";
        assert!(read(&doubling).words.len() <= MOST_EXPANDED / 16);
        let growing = String::from("A=xxxxxxxx\n") + &"A=$A$A\n".repeat(64) + "python train.py $A";
        assert!(texts(&read(&growing)).concat().len() <= 2 * MOST_EXPANDED);
    }
}
