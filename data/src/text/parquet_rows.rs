//! The text of a Parquet file: a column of strings, each of which is a document. Rows are read in small parts.

use std::fs::File;
use std::path::Path;

use common::files::open_file;
use common::{UserError, caught};
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::reader::{FileReader, SerializedFileReader};

/// Rows that are read at a time.
const ROWS: usize = 256;

/// Reads a column of a Parquet file from its first row to its last.
pub(crate) struct ParquetRows {
    reader: SerializedFileReader<File>,
    name: String,
    key: String,
    /// The number of the column among the file's.
    column: usize,
    /// The level of a value that is there; lower ones are missing values.
    present: i16,
    /// The group of rows to open next.
    next_group: usize,
    group: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Texts that were read and not taken yet, the next one last.
    texts: Vec<String>,
}

impl ParquetRows {
    /// Opens the column `key`, whose name has dots where it lies within others.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, or has no such column of text.
    pub(crate) fn open(path: &Path, key: &str) -> Result<ParquetRows, UserError> {
        let name = path.display().to_string();
        let damaged = |problem: String| damaged(&name, &problem);
        let file = open_file(path).map_err(|error| damaged(error.to_string()))?;
        let reader = caught(|| SerializedFileReader::new(file))
            .and_then(|opened| opened.map_err(|error| error.to_string()))
            .map_err(damaged)?;
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let is_text = |column: &parquet::schema::types::ColumnDescPtr| {
            column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
        };
        let found = schema.columns().iter().position(|column| column.path().string() == key && is_text(column));
        let Some(column) = found else {
            let named = schema.columns().iter().filter(|column| is_text(column)).map(|column| column.path().string());
            let named: Vec<String> = named.collect();
            let what = match &named[..] {
                [] => format!("{name} has no column of text"),
                named => format!("{name} has no column `{key}` of text; it has {}", named.join(", ")),
            };
            let rule = format!("the documents of a Parquet file are its column `{key}`");
            return Err(UserError::new(what, rule, "name the column: --text-key COLUMN"));
        };
        let present = schema.column(column).max_def_level();
        let (key, texts) = (key.to_string(), Vec::new());
        Ok(ParquetRows { reader, name, key, column, present, next_group: 0, group: None, texts })
    }

    /// The text of the next row that has one.
    ///
    /// # Errors
    /// The file cannot be read any more or is damaged, or a value is not UTF-8.
    pub(crate) fn next(&mut self) -> Result<Option<String>, UserError> {
        while self.texts.is_empty() {
            let read = caught(|| self.read()).unwrap_or_else(Err);
            match read.map_err(|problem| damaged(&self.name, &problem))? {
                Some(texts) => self.texts = texts,
                None => return Ok(None),
            }
        }
        Ok(self.texts.pop())
    }

    /// The texts of some rows, in reverse, which may be none; `None` at the end of the file.
    fn read(&mut self) -> Result<Option<Vec<String>>, String> {
        let said = |error: parquet::errors::ParquetError| error.to_string();
        let Some(group) = &mut self.group else {
            if self.next_group == self.reader.num_row_groups() {
                return Ok(None);
            }
            let group = self.reader.get_row_group(self.next_group).map_err(said)?;
            let ColumnReader::ByteArrayColumnReader(column) = group.get_column_reader(self.column).map_err(said)?
            else {
                return Err(format!("the column `{}` has other types of values in other rows", self.key));
            };
            self.next_group += 1;
            self.group = Some(column);
            return Ok(Some(Vec::new()));
        };
        let (mut levels, mut values) = (Vec::new(), Vec::<ByteArray>::new());
        let (rows, ..) = group.read_records(ROWS, Some(&mut levels), None, &mut values).map_err(said)?;
        if rows == 0 {
            self.group = None;
        }
        let expected = if self.present == 0 { rows } else { levels.iter().filter(|&&at| at == self.present).count() };
        if values.len() != expected {
            return Err(format!(
                "the column `{}` has {} values where {expected} are announced",
                self.key,
                values.len()
            ));
        }
        let texts = values.into_iter().rev().map(|value| match std::str::from_utf8(value.data()) {
            Ok(text) => Ok(text.to_string()),
            Err(_) => Err(format!("the column `{}` has a value that is not UTF-8 text", self.key)),
        });
        texts.collect::<Result<_, _>>().map(Some)
    }
}

fn damaged(name: &str, problem: &str) -> UserError {
    UserError::new(
        format!("{name} cannot be read: {problem}"),
        "a Parquet file is whole, and its text is UTF-8",
        "download or write it again",
    )
}
