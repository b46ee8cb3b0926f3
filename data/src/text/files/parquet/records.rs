//! The rows of a Parquet file as records of JSON: columns may be lists and structures. Only columns with fields of the
//! records are read.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use common::{UserError, caught};
use parquet::basic::Compression;
use parquet::bloom_filter::Sbbf;
use parquet::column::page::PageReader;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::record::reader::{ReaderIter, RowIter, TreeBuilder};
use parquet::record::{Field, Row};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};
use serde_json::Value;

use super::check::{CheckedPages, check_pages};
use super::file::{ParquetFile, damaged};
use crate::text::files::json_line::JsonLine;
use crate::text::files::records::Records;
use crate::text::files::unpacked::Unpacked;

/// Rows of which the values are held at a time. A row may have very many.
const ROWS: usize = 8;

/// Reads the rows of a Parquet file from the first to the last.
pub(crate) struct ParquetRecords {
    reader: SerializedFileReader<File>,
    /// The same file, for checks before the library reads anything.
    file: File,
    name: String,
    /// The columns that are read.
    columns: SchemaDescPtr,
    /// The group of rows to open next.
    next_group: usize,
    group: Option<ReaderIter>,
    /// Rows read so far.
    rows: usize,
    unpacked: Unpacked,
}

impl ParquetRecords {
    /// Opens the columns that the given records have.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, or its columns make no such record.
    pub(crate) fn open(path: &Path, records: Records<'_>) -> Result<ParquetRecords, UserError> {
        let ParquetFile { name, file, reader, len } = ParquetFile::open(path)?;
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
        let unpacked = Unpacked::of(len);
        Ok(ParquetRecords { reader, file, name, columns, next_group: 0, group: None, rows: 0, unpacked })
    }

    /// The next row as JSON, without the fields that have no value, and the row's number.
    ///
    /// # Errors
    /// The file cannot be read any more or is damaged, or a value cannot be written as JSON.
    pub(crate) fn next(&mut self) -> Result<Option<(usize, String)>, UserError> {
        let read = caught(|| self.read()).unwrap_or_else(Err);
        let Some(row) = read.map_err(|problem| damaged(&self.name, &problem))? else { return Ok(None) };
        self.rows += 1;
        let text =
            object(&row).map_err(|problem| damaged(&self.name, &format!("row {} {problem}", self.rows)))?.to_string();
        self.unpacked.add(&self.name, text.len() as u64)?;
        Ok(Some((self.rows, text)))
    }

    /// The next row. `None` at the end of the file.
    fn read(&mut self) -> Result<Option<Row>, String> {
        let said = |error: ParquetError| error.to_string();
        loop {
            if let Some(row) = self.group.as_mut().and_then(Iterator::next) {
                return row.map(Some).map_err(said);
            }
            if self.next_group == self.reader.num_row_groups() {
                return Ok(None);
            }
            let group =
                CheckedGroup { group: self.reader.get_row_group(self.next_group).map_err(said)?, file: &self.file };
            let rows = TreeBuilder::new().with_batch_size(ROWS).as_iter(self.columns.clone(), &group);
            self.group = Some(rows.map_err(said)?);
            self.next_group += 1;
        }
    }
}

/// A group of rows, with pages that are checked before the library reads anything.
struct CheckedGroup<'g> {
    group: Box<dyn RowGroupReader + 'g>,
    file: &'g File,
}

impl RowGroupReader for CheckedGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.group.metadata()
    }

    fn num_columns(&self) -> usize {
        self.group.num_columns()
    }

    fn get_column_page_reader(&self, number: usize) -> ParquetResult<Box<dyn PageReader>> {
        let wrong = |problem: String| ParquetError::General(problem);
        let part = self.metadata().column(number);
        let column = part.column_descr();
        if part.column_type() != column.physical_type() {
            let path = column.path().string();
            return Err(wrong(format!("the column `{path}` has other types of values in other rows")));
        }
        if part.compression() == Compression::LZO {
            return Err(wrong("it is packed with LZO, which is not read".into()));
        }
        let (at, len) = part.byte_range();
        check_pages(self.file, at, len, part.compression()).map_err(wrong)?;
        let pages = self.group.get_column_page_reader(number)?;
        Ok(Box::new(CheckedPages::new(pages, column.max_rep_level(), column.max_def_level())))
    }

    fn get_column_bloom_filter(&self, number: usize) -> Option<&Sbbf> {
        self.group.get_column_bloom_filter(number)
    }

    fn get_row_iter(&self, columns: Option<Type>) -> ParquetResult<RowIter<'_>> {
        RowIter::from_row_group(columns, self)
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
        Field::Bytes(bytes) => {
            std::str::from_utf8(bytes.data()).map_err(|_| "has a value that is not UTF-8 text")?.into()
        }
        Field::Group(row) => object(row)?,
        Field::ListInternal(list) => {
            let item = |item: &Field| value(item).map(Option::unwrap_or_default);
            Value::Array(list.elements().iter().map(item).collect::<Result<_, _>>()?)
        }
        Field::MapInternal(map) => {
            let mut fields = serde_json::Map::new();
            for (key, item) in map.entries() {
                let Field::Str(key) = key else { return Err("has a mapping with keys that are no text".into()) };
                fields.extend(value(item)?.map(|value| (key.clone(), value)));
            }
            Value::Object(fields)
        }
        // Times and dates: no template reads them.
        other => other.to_string().into(),
    }))
}
