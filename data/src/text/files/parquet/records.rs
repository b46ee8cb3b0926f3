//! The rows of a Parquet file as records of JSON: columns may be lists and structures. Only columns with fields of the
//! records are read.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use common::UserError;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::record::{Field, Row};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};
use serde_json::Value;

use super::file::{ParquetFile, damaged, read_from};
use crate::text::files::json_line::JsonLine;
use crate::text::files::records::Records;
use crate::text::files::unpacked::Unpacked;

/// Rows of which the library holds the values at a time. A row may have very many.
const ROWS: usize = 8;
/// Bytes of JSON that are made at a time.
const BYTES: usize = 1 << 20;

/// Reads the rows of a Parquet file from the first to the last.
pub(crate) struct ParquetRecords {
    name: String,
    /// `None` after a mistake.
    columns: Option<Columns>,
    /// Rows that were read and not taken yet, as JSON or the mistake in a row, the next one last.
    rows: Vec<Result<String, String>>,
    /// Rows that were taken.
    taken: usize,
    unpacked: Unpacked,
}

/// The columns that are read.
struct Columns {
    reader: SerializedFileReader<File>,
    schema: SchemaDescPtr,
    /// The group of rows to open next.
    next_group: usize,
    group: Option<ReaderIter>,
}

impl ParquetRecords {
    /// Opens the columns that the given records have.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, or its columns make no such record.
    pub(crate) fn open(path: &Path, records: Records<'_>) -> Result<ParquetRecords, UserError> {
        let ParquetFile { name, reader, len } = ParquetFile::open(path)?;
        let schema = reader.metadata().file_metadata().schema_descr().root_schema_ptr();
        let fields: Vec<String> = schema.get_fields().iter().map(|column| column.name().to_string()).collect();
        let line = JsonLine { is_object: true, fields, ..JsonLine::default() };
        if !records.include(&line) {
            let what = format!("{name} has the columns {}", line.fields.join(", "));
            return Err(UserError::new(what, records.rule(), "name other files, or rename its columns"));
        }
        let read = schema.get_fields().iter().filter(|column| records.fields().contains(&column.name())).cloned();
        let columns = Type::group_type_builder(schema.name()).with_fields(read.collect()).build();
        let columns =
            SchemaDescriptor::new(Arc::new(columns.map_err(|error| damaged(&name, &error.to_string()))?)).into();
        let columns = Some(Columns { reader, schema: columns, next_group: 0, group: None });
        Ok(ParquetRecords { name, columns, rows: Vec::new(), taken: 0, unpacked: Unpacked::of(len) })
    }

    /// The next row as JSON, without the fields that have no value, and the row's number.
    ///
    /// # Errors
    /// The file cannot be read any more or is damaged, or a value cannot be written as JSON.
    pub(crate) fn next(&mut self) -> Result<Option<(usize, String)>, UserError> {
        if self.rows.is_empty() {
            let Some(columns) = self.columns.take() else { return Ok(None) };
            let (columns, rows) = read_from(columns, Columns::read).map_err(|problem| damaged(&self.name, &problem))?;
            (self.columns, self.rows) = (Some(columns), rows);
        }
        let Some(row) = self.rows.pop() else { return Ok(None) };
        self.taken += 1;
        let text = row.map_err(|problem| damaged(&self.name, &format!("row {}: {problem}", self.taken)))?;
        self.unpacked.add(&self.name, text.len() as u64)?;
        Ok(Some((self.taken, text)))
    }
}

impl Columns {
    /// Some rows as JSON, in reverse. There are none at the end of the file. The first may be a mistake.
    fn read(&mut self) -> Result<Vec<Result<String, String>>, String> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while bytes < BYTES
            && let Some(row) = self.next().transpose()
        {
            bytes += row.as_ref().map_or(BYTES, String::len);
            rows.push(row);
        }
        rows.reverse();
        Ok(rows)
    }

    /// The next row. `None` at the end of the file.
    fn next(&mut self) -> Result<Option<String>, String> {
        let said = |error: ParquetError| error.to_string();
        loop {
            if let Some(row) = self.group.as_mut().and_then(Iterator::next) {
                return object(&row.map_err(said)?).map(|object| Some(object.to_string()));
            }
            if self.next_group == self.reader.num_row_groups() {
                return Ok(None);
            }
            let group = self.reader.get_row_group(self.next_group).map_err(said)?;
            let rows = TreeBuilder::new().with_batch_size(ROWS).as_iter(self.schema.clone(), &*group);
            self.group = Some(rows.map_err(said)?);
            self.next_group += 1;
        }
    }
}

/// A structure as JSON. A value that is missing is left out, as in JSON lines: a column has a place for each key that
/// any row has.
fn object(row: &Row) -> Result<Value, String> {
    let mut fields = serde_json::Map::new();
    for (name, field) in row.get_column_iter() {
        fields.extend(value(field)?.map(|value| (name.clone(), value)));
    }
    Ok(Value::Object(fields))
}

/// A value as JSON. `None` if it is missing.
fn value(field: &Field) -> Result<Option<Value>, String> {
    Ok(Some(match field {
        Field::Null => return Ok(None),
        Field::Bool(truth) => (*truth).into(),
        Field::Byte(number) => (*number).into(),
        Field::Short(number) => (*number).into(),
        Field::Int(number) => (*number).into(),
        Field::Long(number) => (*number).into(),
        Field::UByte(number) => (*number).into(),
        Field::UShort(number) => (*number).into(),
        Field::UInt(number) => (*number).into(),
        Field::ULong(number) => (*number).into(),
        Field::Float(number) => (*number).into(),
        Field::Double(number) => (*number).into(),
        Field::Str(text) => text.clone().into(),
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).map_err(|_| "a value is not UTF-8 text")?.into(),
        Field::Group(row) => object(row)?,
        Field::ListInternal(list) => {
            let item = |item: &Field| value(item).map(Option::unwrap_or_default);
            Value::Array(list.elements().iter().map(item).collect::<Result<_, _>>()?)
        }
        Field::MapInternal(map) => {
            let mut fields = serde_json::Map::new();
            for (key, item) in map.entries() {
                let Field::Str(key) = key else { return Err("a mapping has keys that are no text".into()) };
                fields.extend(value(item)?.map(|value| (key.clone(), value)));
            }
            Value::Object(fields)
        }
        // Times and dates: no template reads them.
        other => other.to_string().into(),
    }))
}
