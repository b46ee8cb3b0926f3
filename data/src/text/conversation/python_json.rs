//! JSON in the form of Python's `json.dumps`: models were trained on tools in this form.

use std::io::{self, Result, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind, State};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

use super::template_filters::{affordable, too_much};

/// The widest indentation, in spaces.
const WIDEST: usize = 64;
/// Bytes of JSON for one fuel of the template.
const BYTES: u64 = 16;

/// A space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(b": ")
    }
}

/// JSON that stops to grow at a number of bytes.
struct Bounded {
    json: Vec<u8>,
    left: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(io::ErrorKind::StorageFull)?;
        self.json.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The filter `tojson` of chat templates. Jinja's own one escapes characters of HTML; that of chat templates does not.
///
/// # Errors
/// A value that is not JSON, or takes more than the template may.
pub(crate) fn tojson(
    state: &State,
    value: &Value,
    indent: Option<usize>,
    named: Kwargs,
) -> std::result::Result<String, Error> {
    let wrong = |problem: String| Error::new(ErrorKind::InvalidOperation, problem);
    let indent = indent.or(named.get("indent")?);
    // Characters are written as they are, whatever this says.
    let _: Option<bool> = named.get("ensure_ascii")?;
    named.assert_all_used()?;
    if let Some(spaces) = indent.filter(|spaces| *spaces > WIDEST) {
        return Err(wrong(format!("tojson indents by {spaces} spaces, and by {WIDEST} at most")));
    }
    let mut json = Bounded { json: Vec::new(), left: affordable(state, BYTES) };
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Spaced)),
        Some(spaces) => {
            let spaces = " ".repeat(spaces);
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, pretty))
        }
    };
    written.map_err(|error| match error.io_error_kind() {
        Some(io::ErrorKind::StorageFull) => too_much(),
        _ => wrong(error.to_string()),
    })?;
    state.consume_fuel(json.json.len() as u64 / BYTES)?;
    String::from_utf8(json.json).map_err(|error| wrong(error.to_string()))
}
