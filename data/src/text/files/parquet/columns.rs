//! Columns in a Parquet file's description of itself. The library recurses as deep as columns are nested, and a stack
//! that ends would end the process.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::thrift::{I32, LIST, Thrift};

/// The largest description at a file's end, in bytes.
const LARGEST_FOOTER: u64 = 32 << 20;
/// How deep columns nest.
const DEEPEST: usize = 64;
/// The least bytes that describe a column.
const COLUMN: usize = 4;

/// Checks the columns in the description at the end of a file, of `len` bytes.
///
/// # Errors
/// The file has no such end, or columns are nested too deep.
pub(crate) fn check_columns(file: &File, len: u64) -> Result<(), String> {
    let read = |at: u64, count: usize| {
        let mut bytes = vec![0; count];
        file.read_exact_at(&mut bytes, at).map(|()| bytes).map_err(|error| error.to_string())
    };
    if len < 12 {
        return Err(format!("it has {len} bytes, and an empty Parquet file has 12 at least"));
    }
    let end = read(len - 8, 8)?;
    if &end[4..] != b"PAR1" {
        return Err("it does not end as a Parquet file".into());
    }
    let footer = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    let most = LARGEST_FOOTER.min(len - 12);
    if footer > most {
        return Err(format!("its description of itself has {footer} bytes, and may have {most}"));
    }
    let bytes = read(len - 8 - footer, footer as usize)?;
    Thrift(&bytes).fields(|thrift, number, kind| match (number, kind) {
        (2, LIST) => check_list(thrift).map(|()| true),
        (2, _) => Err(of_other_type(number)),
        _ => Ok(false),
    })
}

fn of_other_type(number: i32) -> String {
    format!("its description of itself has another type of value as number {number}")
}

/// Checks the list of all columns. Each has the number of columns within it, and they follow it.
fn check_list(thrift: &mut Thrift<'_>) -> Result<(), String> {
    let count = thrift.structures(COLUMN)?;
    // For each column that the current one lies in: how many of those within it are still to come.
    let mut open: Vec<usize> = Vec::new();
    for at in 0..count {
        let mut within = 0;
        thrift.fields(|thrift, number, kind| match (number, kind) {
            (5, I32) => {
                within = thrift.i32()?;
                Ok(true)
            }
            (5, _) => Err(of_other_type(number)),
            _ => Ok(false),
        })?;
        let within = usize::try_from(within).unwrap_or(usize::MAX);
        if within > count - at - 1 {
            return Err(format!("it announces {within} columns, and has {}", count - at - 1));
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if within > 0 {
            open.push(within);
        }
        if open.len() > DEEPEST {
            return Err(format!("its columns are nested more than {DEEPEST} deep"));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(())
}
