//! Sums and products of numbers in scripts and configurations: `5 * 8`, `6e-4 / 10`, `$((NODES * 8))`.

/// A number, whole or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// A whole number.
    Whole(i64),
    /// Another.
    Real(f64),
}

impl Number {
    fn real(self) -> f64 {
        match self {
            Number::Whole(whole) => whole as f64,
            Number::Real(real) => real,
        }
    }
}

/// The language of an expression. They divide differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// `/` of whole numbers rounds towards 0.
    Shell,
    /// `/` gives a real number, `//` rounds down, and `**` is a power.
    Python,
}

/// The deepest nesting of brackets and signs.
const DEEPEST: usize = 64;

/// The value of an expression of numbers, names, + - * / % and brackets; `None` for anything else.
pub(super) fn evaluate(text: &str, language: Language, named: &dyn Fn(&str) -> Option<Number>) -> Option<Number> {
    let mut reader = Reader { rest: text, language, named, depth: 0 };
    let value = reader.sum()?;
    reader.rest.trim().is_empty().then_some(value)
}

struct Reader<'t> {
    rest: &'t str,
    language: Language,
    named: &'t dyn Fn(&str) -> Option<Number>,
    depth: usize,
}

impl<'t> Reader<'t> {
    /// Takes a word if the word is next.
    fn takes(&mut self, word: &str) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(word);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn sum(&mut self) -> Option<Number> {
        let mut value = self.product()?;
        loop {
            value = match () {
                () if self.takes("+") => both(value, self.product()?, i64::checked_add, |a, b| a + b)?,
                () if self.takes("-") => both(value, self.product()?, i64::checked_sub, |a, b| a - b)?,
                () => return Some(value),
            };
        }
    }

    fn product(&mut self) -> Option<Number> {
        let mut value = self.signed()?;
        loop {
            let python = self.language == Language::Python;
            value = match () {
                () if python && self.takes("//") => {
                    both(value, self.signed()?, i64::checked_div_euclid, |a, b| (a / b).floor())?
                }
                () if python && self.takes("/") => Number::Real(value.real() / self.signed()?.real()),
                () if self.takes("/") => both(value, self.signed()?, i64::checked_div, |a, b| a / b)?,
                () if self.takes("%") => both(value, self.signed()?, i64::checked_rem, |a, b| a % b)?,
                () if self.takes("*") => both(value, self.signed()?, i64::checked_mul, |a, b| a * b)?,
                () => return Some(value).filter(|value| value.real().is_finite()),
            };
        }
    }

    fn signed(&mut self) -> Option<Number> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let value = match () {
            () if self.takes("-") => both(Number::Whole(0), self.signed()?, i64::checked_sub, |a, b| a - b),
            () if self.takes("+") => self.signed(),
            () => self.power(),
        };
        self.depth -= 1;
        value
    }

    fn power(&mut self) -> Option<Number> {
        let base = self.atom()?;
        if self.language == Language::Shell || !self.takes("**") {
            return Some(base);
        }
        let exponent = self.signed()?;
        Some(match (base, exponent) {
            (Number::Whole(base), Number::Whole(times @ 0..)) => {
                Number::Whole(base.checked_pow(u32::try_from(times).ok()?)?)
            }
            (base, exponent) => Number::Real(base.real().powf(exponent.real())),
        })
    }

    fn atom(&mut self) -> Option<Number> {
        if self.takes("(") {
            let value = self.sum()?;
            return self.takes(")").then_some(value);
        }
        let names = self.language == Language::Shell && self.takes("${");
        if names || (self.language == Language::Shell && self.takes("$")) || self.begins_name() {
            let name = self.while_of(|c| c.is_ascii_alphanumeric() || c == '_');
            let closed = !names || self.takes("}");
            return (self.named)(name).filter(|_| closed);
        }
        let mut before = ' ';
        // The sign of an exponent belongs to the number.
        let number = self.while_of(|c| {
            let is = c.is_ascii_alphanumeric() || "._".contains(c) || ("+-".contains(c) && "eE".contains(before));
            before = c;
            is
        });
        let digits = number.replace('_', "");
        let whole = digits.parse().ok().map(Number::Whole);
        whole.or_else(|| digits.parse().ok().filter(|real: &f64| real.is_finite()).map(Number::Real))
    }

    fn begins_name(&mut self) -> bool {
        self.rest = self.rest.trim_start();
        self.rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    }

    fn while_of(&mut self, mut is: impl FnMut(char) -> bool) -> &'t str {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c| !is(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }
}

/// The result of an operation on whole numbers if both are, else on real numbers.
fn both(one: Number, other: Number, whole: fn(i64, i64) -> Option<i64>, real: fn(f64, f64) -> f64) -> Option<Number> {
    match (one, other) {
        (Number::Whole(one), Number::Whole(other)) => whole(one, other).map(Number::Whole),
        (one, other) => Some(Number::Real(real(one.real(), other.real()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_multiplied_and_divided_as_their_language_does_it() {
        let named = |name: &str| (name == "n").then_some(Number::Whole(3));
        let value = |text: &str, language| evaluate(text, language, &named);
        for (text, shell, python) in [
            ("5 * 8", Some(Number::Whole(40)), Some(Number::Whole(40))),
            ("1 + 2*(3-n)", Some(Number::Whole(1)), Some(Number::Whole(1))),
            ("7/2", Some(Number::Whole(3)), Some(Number::Real(3.5))),
            ("-7//2", None, Some(Number::Whole(-4))),
            ("2**10", None, Some(Number::Whole(1024))),
            ("6e-4 / 2", Some(Number::Real(3e-4)), Some(Number::Real(3e-4))),
            ("600_000 % 7", Some(Number::Whole(2)), Some(Number::Whole(2))),
            ("$n * ${n}", Some(Number::Whole(9)), None),
            ("1/0", None, None),
            ("m + 1", None, None),
            ("9223372036854775807 + 1", None, None),
            ("1 +", None, None),
            ("", None, None),
            ("(1", None, None),
        ] {
            assert_eq!(value(text, Language::Shell), shell, "{text}");
            assert_eq!(value(text, Language::Python), python, "{text}");
        }
        assert_eq!(value(&"(".repeat(100_000), Language::Python), None);
        assert_eq!(value(&"-".repeat(100_000), Language::Python), None);
    }
}
