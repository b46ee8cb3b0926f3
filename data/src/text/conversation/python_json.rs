//! JSON in the form of Python's `json.dumps`: models were trained on tools in this form.

use std::io::{Result, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

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

/// The filter `tojson` of chat templates. Jinja's own one escapes characters of HTML; that of chat templates does not.
///
/// # Errors
/// A value that is not JSON.
pub(crate) fn tojson(value: &Value, indent: Option<usize>, named: Kwargs) -> std::result::Result<String, Error> {
    let wrong = |problem: String| Error::new(ErrorKind::InvalidOperation, problem);
    let indent = indent.or(named.get("indent")?);
    // Characters are written as they are, whatever this says.
    let _: Option<bool> = named.get("ensure_ascii")?;
    named.assert_all_used()?;
    let mut json = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Spaced)),
        Some(spaces) => {
            let spaces = " ".repeat(spaces);
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, pretty))
        }
    };
    written.map_err(|error| wrong(error.to_string()))?;
    String::from_utf8(json).map_err(|error| wrong(error.to_string()))
}
