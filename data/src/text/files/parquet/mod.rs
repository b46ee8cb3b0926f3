//! Parquet files of text.

mod file;
mod records;
mod rows;

pub(crate) use records::ParquetRecords;
pub(crate) use rows::ParquetRows;
