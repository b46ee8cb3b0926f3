//! Jinja's filters and Python's methods for chat templates. They are bounded if the library charges no fuel for their
//! results.

use std::fmt::{self, Write};

use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python_json::tojson;

/// Bytes that the library makes for one fuel.
const BYTES: u64 = 64;
/// Bytes of the text of a list or a mapping for one fuel: walking them takes longer than copying.
const WALKED_BYTES: u64 = 4;
/// The most strings that `startswith` takes at once.
const MOST_PREFIXES: usize = 100;
/// The most different characters that are stripped from a text.
const MOST_STRIPPED: usize = 256;

/// Adds the functions for chat templates to an environment, and removes functions that show the inside of the library.
pub(crate) fn install(environment: &mut Environment<'_>) {
    environment.set_formatter(emit);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", string);
    environment.add_filter("join", join);
    environment.add_filter("sum", sum);
    environment.add_filter("trim", trim);
    environment.add_filter("format", format);
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    environment.add_function("raise_exception", |state: &State, message: &Value| -> Result<Value, Error> {
        let mut text = String::new();
        write(state, &mut text, message)?;
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
}

/// The bytes of text that the fuel that is left pays for, `per_fuel` each.
pub(crate) fn affordable(state: &State, per_fuel: u64) -> u64 {
    state.fuel_levels().map_or(u64::MAX, |(_, left)| left.saturating_mul(per_fuel))
}

/// The error of a template that does too much.
pub(crate) fn too_much() -> Error {
    Error::from(ErrorKind::OutOfFuel)
}

/// Text that stops to grow at a number of bytes: the library then stops to walk the value that it shows.
struct Bounded<'w> {
    text: &'w mut dyn Write,
    left: u64,
}

impl Write for Bounded<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.left = self.left.checked_sub(part.len() as u64).ok_or(fmt::Error)?;
        self.text.write_str(part)
    }
}

/// Text that is only measured.
struct Nowhere;

impl Write for Nowhere {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Ok(())
    }
}

/// Writes a value as text, if the fuel pays for the text.
fn write(state: &State, text: &mut dyn Write, value: &Value) -> Result<(), Error> {
    let per_fuel = if value.as_object().is_some() { WALKED_BYTES } else { BYTES };
    let mut bounded = Bounded { text, left: affordable(state, per_fuel) };
    write!(bounded, "{value}").map_err(|_| too_much())
}

/// Fails if the text of lists and mappings among the values takes more fuel than is left.
fn ensure_showable(state: &State, values: &[Value]) -> Result<(), Error> {
    values.iter().filter(|value| value.as_object().is_some()).try_for_each(|value| write(state, &mut Nowhere, value))
}

/// `{{ value }}`.
fn emit(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_object() {
        Some(_) => write(state, out, value),
        None => escape_formatter(out, state, value),
    }
}

fn string(state: &State, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let mut text = String::new();
    write(state, &mut text, value)?;
    Ok(text.into())
}

fn join(
    state: &State,
    values: &Value,
    joiner: Option<&str>,
    attribute: Option<&str>,
    named: Kwargs,
) -> Result<String, Error> {
    let joiner = joiner.map_or_else(|| named.get::<Option<&str>>("d"), |joiner| Ok(Some(joiner)))?;
    let attribute = attribute.map_or_else(|| named.get::<Option<&str>>("attribute"), |name| Ok(Some(name)))?;
    named.assert_all_used()?;
    joined(state, values, joiner.unwrap_or_default(), attribute)
}

fn joined(state: &State, values: &Value, joiner: &str, attribute: Option<&str>) -> Result<String, Error> {
    let mut text = String::new();
    for (at, item) in values.try_iter()?.checked().enumerate() {
        let item = match attribute {
            None => item?,
            Some(path) => path.split('.').try_fold(item?, |value, name| value.get_attr(name))?,
        };
        if at > 0 {
            text += joiner;
        }
        let begun = text.len();
        write(state, &mut text, &item)?;
        // Fuel for the whole result is consumed at the end. So the result must not outgrow the fuel that is left.
        let per_fuel = if item.as_object().is_some() { WALKED_BYTES } else { BYTES };
        state.consume_fuel(1 + (text.len() - begun) as u64 / per_fuel)?;
        if text.len() as u64 > affordable(state, BYTES) {
            return Err(too_much());
        }
    }
    Ok(text)
}

/// As Python's: it adds numbers. It refuses texts, because each addition would copy the whole text again.
fn sum(
    state: &State,
    values: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let start = start.map_or_else(|| named.get::<Option<Value>>("start"), |start| Ok(Some(start)))?;
    if start.as_ref().is_some_and(|start| !start.is_number()) {
        return Err(Error::new(ErrorKind::InvalidOperation, "sum adds numbers, and its start is none"));
    }
    filters::sum(state, values, attribute, start, named)
}

fn trim(state: &State, value: &Value, characters: Option<&str>) -> Result<String, Error> {
    ensure_few(characters.unwrap_or_default())?;
    let mut text = String::new();
    write(state, &mut text, value)?;
    Ok(match characters {
        None => text.trim().into(),
        Some(characters) => text.trim_matches(|found| characters.contains(found)).into(),
    })
}

/// Fails on too many characters to strip, as each is compared with each character of the text.
fn ensure_few(stripped: &str) -> Result<(), Error> {
    if stripped.len() > MOST_STRIPPED { Err(too_much()) } else { Ok(()) }
}

fn format(state: &mut State, value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let shown: Vec<Value> = arguments.iter().map(|argument| argument.clone().into_value()).collect();
    ensure_showable(state, &shown)?;
    filters::format(state, value, arguments)
}

/// Python's methods.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match (name, arguments) {
            ("join", [values]) => return joined(state, values, text, None).map(Value::from),
            ("format", _) => {
                ensure_showable(state, arguments)?;
                state.consume_fuel(padding(text, arguments) / BYTES)?;
            }
            ("strip" | "lstrip" | "rstrip", [characters]) => ensure_few(characters.as_str().unwrap_or_default())?,
            ("startswith" | "endswith", [parts])
                if parts.as_object().is_some() && parts.len().is_none_or(|count| count > MOST_PREFIXES) =>
            {
                return Err(too_much());
            }
            _ => {}
        }
    }
    if let (Some(list), "count", [counted]) = (value.as_object(), name, arguments) {
        let bytes = counted.as_str().map_or(0, str::len) as u64;
        state.consume_fuel(
            list.enumerator_len().map_or(u64::MAX, |count| count as u64).saturating_mul(1 + bytes / BYTES),
        )?;
    }
    unknown_method_callback(state, value, name, arguments)
}

/// The most bytes that the numbers in a format string and in the string's arguments ask for as widths and precisions.
fn padding(format: &str, arguments: &[Value]) -> u64 {
    let numbers = format.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let written = numbers.map(|digits| digits.parse().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
    let given = arguments.iter().filter_map(Value::as_usize).map(|width| width as u64).max().unwrap_or(0);
    let nested = if format.contains(":{") { given.saturating_mul(format.matches('{').count() as u64) } else { 0 };
    // A character that fills may take four bytes.
    written.saturating_add(nested).saturating_mul(4)
}
