//! Parquet files of text.

mod check;
mod file;
mod levels;
mod records;
mod rows;
mod thrift;

pub(crate) use records::ParquetRecords;
pub(crate) use rows::ParquetRows;
