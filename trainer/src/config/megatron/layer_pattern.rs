//! Megatron's patterns of layers: a number, or a Python list made of lists, sums and products.

use crate::config::RunConfig;
use crate::families::MOST_LAYERS;

/// Parentheses within each other, at most.
const MOST_NESTED: usize = 32;

/// The `model.expert_pattern` of a `--moe-layer-freq`: every so many blocks from the first, or a list with 1 or 0 for each
/// block. `None` for all other texts. A model that `model.init_from` names has its number of blocks in its folder.
pub(super) fn expert_pattern(text: &str, run: &RunConfig) -> Option<String> {
    let most = MOST_LAYERS as usize;
    let pattern = match evaluated(text)? {
        Expression::Number(1) => Vec::new(),
        Expression::Number(every) if (1..=most).contains(&every) => (0..every).map(|at| usize::from(at == 0)).collect(),
        Expression::Number(_) => return None,
        Expression::List(items) => {
            let fits = items.len() == run.model.layers || run.model.init_from.is_some();
            (fits && items.iter().all(|&item| item <= 1)).then_some(items)?
        }
    };
    Some(format!("{pattern:?}"))
}

#[derive(Clone, Debug, PartialEq)]
enum Expression {
    Number(usize),
    List(Vec<usize>),
}

/// The value of a Python expression of whole numbers, lists of them, `+`, `*` and parentheses. `None` for other texts, and
/// for lists with more items than a model has layers.
fn evaluated(text: &str) -> Option<Expression> {
    let mut reader = Reader { rest: text.as_bytes(), nested: 0 };
    let value = reader.sum()?;
    reader.rest.trim_ascii().is_empty().then_some(value)
}

struct Reader<'t> {
    rest: &'t [u8],
    nested: usize,
}

impl Reader<'_> {
    fn takes(&mut self, byte: u8) -> bool {
        self.rest = self.rest.trim_ascii_start();
        let rest = self.rest.strip_prefix(&[byte]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn sum(&mut self) -> Option<Expression> {
        let mut value = self.product()?;
        while self.takes(b'+') {
            value = match (value, self.product()?) {
                (Expression::Number(a), Expression::Number(b)) => Expression::Number(a.checked_add(b)?),
                (Expression::List(a), Expression::List(b)) => list([a, b].concat())?,
                _ => return None,
            };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<Expression> {
        let mut value = self.single()?;
        while self.takes(b'*') {
            value = match (value, self.single()?) {
                (Expression::Number(a), Expression::Number(b)) => Expression::Number(a.checked_mul(b)?),
                (Expression::List(items), Expression::Number(times))
                | (Expression::Number(times), Expression::List(items)) => {
                    let is_held = items.len().checked_mul(times)? <= MOST_LAYERS as usize;
                    Expression::List(is_held.then(|| items.repeat(times))?)
                }
                _ => return None,
            };
        }
        Some(value)
    }

    fn single(&mut self) -> Option<Expression> {
        if self.takes(b'(') {
            self.nested += 1;
            let value = if self.nested <= MOST_NESTED { self.sum()? } else { return None };
            self.nested -= 1;
            return self.takes(b')').then_some(value);
        }
        if !self.takes(b'[') {
            return self.number().map(Expression::Number);
        }
        let mut items = Vec::new();
        // A comma may follow the last item.
        while !self.takes(b']') {
            items.push(self.number()?);
            if !self.takes(b',') && !self.rest.starts_with(b"]") {
                return None;
            }
        }
        list(items)
    }

    fn number(&mut self) -> Option<usize> {
        self.rest = self.rest.trim_ascii_start();
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        std::str::from_utf8(number).ok()?.parse().ok()
    }
}

fn list(items: Vec<usize>) -> Option<Expression> {
    (items.len() <= MOST_LAYERS as usize).then_some(Expression::List(items))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn a_pattern_is_every_so_many_blocks_from_the_first_or_a_list_for_each_block() {
        let pattern = |text: &str, layers: usize| {
            let mut sources = ConfigSources::default();
            sources.set("model.layers", &layers.to_string(), "test").unwrap();
            expert_pattern(text, &sources.resolve())
        };
        for (text, layers, taken) in [
            ("1", 4, "[]"),
            ("2", 4, "[1, 0]"),
            ("3", 2, "[1, 0, 0]"),
            ("[0,1,1]", 3, "[0, 1, 1]"),
            ("[ 0, 1, ]", 2, "[0, 1]"),
            ("([0]*1+[1]*2)", 3, "[0, 1, 1]"),
            ("([1]*3+[0]*2)*2", 10, "[1, 1, 1, 0, 0, 1, 1, 1, 0, 0]"),
            ("2*[0]+[1]", 3, "[0, 0, 1]"),
            ("[1]*(1+2*2)", 5, "[1, 1, 1, 1, 1]"),
        ] {
            assert_eq!(pattern(text, layers).as_deref(), Some(taken), "{text}");
        }
        let nested = format!("{}[1]{}", "(".repeat(33), ")".repeat(33));
        let wrong = [
            "", "0", "-1", "2.5", "every", "[0,1", "[0 1]", "[2]", "[1]+1", "[1]*[1]", "([1]", "[1])", "[1]*2", "4097",
        ];
        for text in wrong.into_iter().chain(["[1]*999999999999", "9999999999999999999999", "[]", &nested]) {
            assert_eq!(pattern(text, 1), None, "{text}");
        }
    }
}
