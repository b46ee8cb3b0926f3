//! Assignments of a Python file, in the form of nanoGPT's configurations: names, and literals or simple arithmetic.
//! Nothing is executed.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::arithmetic::{Language, Number, evaluate};

/// The values that a file assigns, and a line for each statement that is no such assignment.
pub(super) fn assignments(text: &str) -> (Table, Vec<String>) {
    let (mut values, mut left) = (Table::new(), Vec::new());
    let mut numbers: BTreeMap<String, Number> = BTreeMap::new();
    for (line, statement) in statements(text) {
        let assigned =
            statement.split_once('=').filter(|(name, value)| is_name(name.trim()) && !value.starts_with('='));
        let value = assigned.and_then(|(name, value)| Some((name.trim(), literal(value.trim(), &numbers)?)));
        let Some((name, value)) = value else {
            left.push(format!("line {line}: `{statement}` is not evaluated: values are literals or simple arithmetic"));
            continue;
        };
        match value {
            Literal::None => drop(values.remove(name)),
            Literal::Number(number) => {
                numbers.insert(name.into(), number);
                values.insert(
                    name.into(),
                    match number {
                        Number::Whole(whole) => Value::Integer(whole),
                        Number::Real(real) => Value::Float(real),
                    },
                );
            }
            Literal::Value(value) => drop(values.insert(name.into(), value)),
        }
    }
    (values, left)
}

enum Literal {
    None,
    Number(Number),
    Value(Value),
}

fn literal(text: &str, numbers: &BTreeMap<String, Number>) -> Option<Literal> {
    match text {
        "None" => return Some(Literal::None),
        "True" => return Some(Literal::Value(true.into())),
        "False" => return Some(Literal::Value(false.into())),
        _ => {}
    }
    if let Some(quote) = text.chars().next().filter(|first| "'\"".contains(*first)) {
        let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
        let plain = text.len() >= 2 && !inner.contains([quote, '\\']);
        return plain.then(|| Literal::Value(inner.into()));
    }
    evaluate(text, Language::Python, &|name| numbers.get(name).copied()).map(Literal::Number)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The statements with the numbers of first lines, without comments and texts that stand alone.
fn statements(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let mut statement = code(line).to_string();
        if let Some(quotes) = ["\"\"\"", "'''"].into_iter().find(|quotes| line.trim_start().starts_with(quotes)) {
            // A text of several lines that stands alone is a comment.
            if line.matches(quotes).count() < 2 {
                let _ = lines.find(|(_, line)| line.contains(quotes));
            }
            continue;
        }
        let mut depth = open(&statement);
        while (statement.ends_with('\\') || depth > 0)
            && let Some((_, next)) = lines.next()
        {
            let next = code(next).trim();
            depth += open(next);
            statement.truncate(statement.trim_end_matches('\\').trim_end().len());
            statement.push(' ');
            statement.push_str(next);
        }
        let statement = statement.trim();
        if !statement.is_empty() {
            all.push((at + 1, statement.to_string()));
        }
    }
    all
}

/// The brackets that a statement leaves open.
fn open(statement: &str) -> isize {
    let count = |brackets: &str| statement.chars().filter(|c| brackets.contains(*c)).count() as isize;
    count("([{") - count(")]}")
}

/// A line of code without the comment.
fn code(line: &str) -> &str {
    let mut quote = None;
    for (at, character) in line.char_indices() {
        match (quote, character) {
            (None, '#') => return line[..at].trim_end(),
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), character) if open == character => quote = None,
            _ => {}
        }
    }
    line.trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_arithmetic_are_values_and_the_rest_is_named() {
        let text = "\"\"\"\nA configuration.\n\"\"\"\nimport time\n# a comment\nout_dir = 'out-#1' # its folder\n\
                    gradient_accumulation_steps = 5 * 8\nbatch_size = (\n    4 *\n    2)\nlr = 6e-4\nmin_lr = lr / 10\n\
                    bias = False\nn_kv = None\nwandb_run_name = 'ft-' + str(time.time())\nx == 3\ndevice='cpu'\n";
        let (values, left) = assignments(text);
        assert_eq!(values["out_dir"].as_str(), Some("out-#1"));
        assert_eq!(values["gradient_accumulation_steps"].as_integer(), Some(40));
        assert_eq!((values["batch_size"].as_integer(), values["min_lr"].as_float()), (Some(8), Some(6e-4 / 10.0)));
        assert_eq!((values["bias"].as_bool(), values["device"].as_str()), (Some(false), Some("cpu")));
        assert_eq!(values.len(), 7, "{values:?}");
        let lines: Vec<&str> = left.iter().map(|line| line.split('`').next().unwrap()).collect();
        assert_eq!(lines, ["line 4: ", "line 15: ", "line 16: "], "{left:?}");
        assert!(left[1].contains("`wandb_run_name = 'ft-' + str(time.time())` is not evaluated"), "{left:?}");
    }
}
