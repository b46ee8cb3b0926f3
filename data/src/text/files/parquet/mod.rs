//! Parquet files of text.

mod columns;
mod file;
mod records;
mod rows;
mod thrift;

pub(crate) use records::ParquetRecords;
pub(crate) use rows::ParquetRows;
