//! The text of a Parquet file: a column of strings, each a document. Rows are read in small parts.

use std::fs::File;
use std::path::Path;

use common::UserError;
use common::format::bytes;
use parquet::basic::{Compression, Type};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::file::{ParquetFile, damaged, read_from};
use crate::text::files::longest::LONGEST_LINE;
use crate::text::files::unpacked::Unpacked;

/// Rows that are read at a time, at most.
const ROWS: usize = 256;

/// Bytes of text at which no further row is read at a time.
const BYTES: usize = 64 << 20;

/// Rows that the library reads in one go. So many of the longest texts are half of the memory that reading may take.
const AT_ONCE: usize = 8;

/// Reads a column of a Parquet file from the first row to the last.
pub(crate) struct ParquetRows {
    name: String,
    /// The column's name.
    key: String,
    /// `None` at the end of the file, and after a mistake.
    column: Option<Column>,
    /// The texts of rows that were read and not taken yet, the next one last.
    texts: Vec<Option<ByteArray>>,
    /// Rows that were taken.
    taken: usize,
    unpacked: Unpacked,
}

/// The column that is read.
struct Column {
    reader: SerializedFileReader<File>,
    /// The number of the column among the file's.
    number: usize,
    /// The level of a value that is there; lower levels are missing values.
    present: i16,
    /// The group of rows to open next.
    next_group: usize,
    /// The column in the group of rows that is being read.
    group: Option<ColumnReaderImpl<ByteArrayType>>,
}

impl ParquetRows {
    /// Opens the column `key`. If the column lies within others, its name has dots.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, or has no such column of text.
    pub(crate) fn open(path: &Path, key: &str) -> Result<ParquetRows, UserError> {
        let ParquetFile { name, reader, len } = ParquetFile::open(path)?;
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let is_text = |column: &parquet::schema::types::ColumnDescPtr| {
            column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
        };
        let found = schema.columns().iter().position(|column| column.path().string() == key && is_text(column));
        let Some(number) = found else {
            let named = schema.columns().iter().filter(|column| is_text(column)).map(|column| column.path().string());
            let named: Vec<String> = named.collect();
            let what = match &named[..] {
                [] => format!("{name} has no column of text"),
                named => format!("{name} has no column `{key}` of text; it has {}", named.join(", ")),
            };
            let rule = format!("the documents of a Parquet file are its column `{key}`");
            return Err(UserError::new(what, rule, "name the column: --text-key COLUMN"));
        };
        let groups = reader.metadata().row_groups();
        if groups
            .iter()
            .any(|group| group.columns().get(number).is_some_and(|part| part.compression() == Compression::LZO))
        {
            return Err(UserError::new(
                format!("{name} is packed with LZO"),
                "Parquet files are packed with zstd, Snappy, gzip, brotli or LZ4, or not packed",
                "write it again with one of these",
            ));
        }
        let present = schema.column(number).max_def_level();
        let column = Some(Column { reader, number, present, next_group: 0, group: None });
        let (key, texts, unpacked) = (key.to_string(), Vec::new(), Unpacked::of(len));
        Ok(ParquetRows { name, key, column, texts, taken: 0, unpacked })
    }

    /// The number of the next row, and the row's text. `None` in place of a text that is missing.
    ///
    /// # Errors
    /// The file cannot be read any more or is damaged, or a value is not UTF-8.
    pub(crate) fn next(&mut self) -> Result<Option<(usize, Option<String>)>, UserError> {
        while self.texts.is_empty() {
            let Some(column) = self.column.take() else { return Ok(None) };
            let key = self.key.clone();
            let read = read_from(column, move |column| column.read(&key));
            let (column, texts) = read.map_err(|problem| damaged(&self.name, &problem))?;
            let Some(texts) = texts else { return Ok(None) };
            (self.column, self.texts) = (Some(column), texts);
        }
        let Some(value) = self.texts.pop() else { return Ok(None) };
        self.taken += 1;
        let Some(value) = value else { return Ok(Some((self.taken, None))) };
        let length = value.data().len();
        if length > LONGEST_LINE {
            return Err(UserError::new(
                format!("{} has a text of {} in its column `{}`", self.name, bytes(length), self.key),
                format!("a document has at most {}: it is tokenised as a whole", bytes(LONGEST_LINE)),
                "break it into several rows",
            ));
        }
        self.unpacked.add(&self.name, length as u64)?;
        let not_text =
            |_| damaged(&self.name, &format!("the column `{}` has a value that is not UTF-8 text", self.key));
        Ok(Some((self.taken, Some(std::str::from_utf8(value.data()).map_err(not_text)?.to_string()))))
    }
}

impl Column {
    /// The texts of some rows of the column `key`, in reverse. There may be none. `None` at the end of the file.
    fn read(&mut self, key: &str) -> Result<Option<Vec<Option<ByteArray>>>, String> {
        let said = |error: parquet::errors::ParquetError| error.to_string();
        let Some(column) = &mut self.group else {
            if self.next_group == self.reader.num_row_groups() {
                return Ok(None);
            }
            self.group = Some(self.open_group()?);
            self.next_group += 1;
            return Ok(Some(Vec::new()));
        };
        let (mut levels, mut values) = (Vec::new(), Vec::<ByteArray>::new());
        let (mut rows, mut bytes) = (0, 0);
        while rows < ROWS && bytes < BYTES {
            let before = values.len();
            let (read, ..) = column.read_records(AT_ONCE, Some(&mut levels), None, &mut values).map_err(said)?;
            if read == 0 {
                self.group = None;
                break;
            }
            rows += read;
            bytes += values[before..].iter().map(ByteArray::len).sum::<usize>();
        }
        let expected = if self.present == 0 { rows } else { levels.iter().filter(|&&at| at == self.present).count() };
        if values.len() != expected {
            return Err(format!("the column `{key}` has {} values where {expected} are announced", values.len()));
        }
        let mut values = values.into_iter();
        let mut texts: Vec<Option<ByteArray>> = match self.present {
            0 => values.map(Some).collect(),
            present => levels.iter().map(|&level| if level == present { values.next() } else { None }).collect(),
        };
        texts.reverse();
        Ok(Some(texts))
    }

    /// The column in the next group of rows.
    fn open_group(&self) -> Result<ColumnReaderImpl<ByteArrayType>, String> {
        let said = |error: parquet::errors::ParquetError| error.to_string();
        let group = self.reader.get_row_group(self.next_group).map_err(said)?;
        let column = group.metadata().column(self.number).column_descr_ptr();
        Ok(ColumnReaderImpl::new(column, group.get_column_page_reader(self.number).map_err(said)?))
    }
}
