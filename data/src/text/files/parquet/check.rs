//! Checks a Parquet file's descriptions before the library reads the file: the library allocates as much as a length
//! announces, and recurses as deep as columns are nested.

use std::fs::File;
use std::io::{Read, copy, sink};
use std::os::unix::fs::FileExt;

use flate2::read::MultiGzDecoder;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};

use super::levels::{RowLengths, unsigned};
use super::thrift::{FALSE, I32, LIST, STRUCT, TRUE, Thrift};

/// The largest description at a file's end, in bytes.
const LARGEST_FOOTER: u64 = 32 << 20;
/// How deep columns nest.
const DEEPEST: usize = 64;
/// The largest page, unpacked, in bytes. Writers begin a new one after some megabytes.
const LARGEST_PAGE: u64 = 512 << 20;
/// The most values of a page that stores the values' lengths as differences.
const MOST_LENGTHS: u64 = 64 << 20;
/// The least bytes that describe a column.
const COLUMN: usize = 4;
/// The least bytes that describe a group of rows, or a column within one.
const CHUNK: usize = 16;

/// Checks the description at the end of a file, of `len` bytes.
///
/// # Errors
/// The mistake in the description.
pub(crate) fn check_footer(file: &File, len: u64) -> Result<(), String> {
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
    if footer > len - 12 {
        return Err(format!("its description of itself has {footer} bytes, and the file has {len}"));
    }
    if footer > LARGEST_FOOTER {
        return Err(format!("its description of itself has {footer} bytes, and {LARGEST_FOOTER} are read at most"));
    }
    let bytes = read(len - 8 - footer, footer as usize)?;
    Thrift(&bytes).fields(|thrift, number, kind| match (number, kind) {
        (2, LIST) => check_schema(thrift).map(|()| true),
        (4, LIST) => {
            let groups = thrift.structures(CHUNK)?;
            (0..groups).try_for_each(|_| {
                thrift.fields(|thrift, number, kind| match (number, kind) {
                    (1, LIST) => {
                        let chunks = thrift.structures(CHUNK)?;
                        (0..chunks).try_for_each(|_| thrift.fields(|_, _, _| Ok(false))).map(|()| true)
                    }
                    (1, _) => Err(of_other_type(number)),
                    _ => Ok(false),
                })
            })?;
            Ok(true)
        }
        (2 | 4, _) => Err(of_other_type(number)),
        _ => Ok(false),
    })
}

fn of_other_type(number: i32) -> String {
    format!("its description of itself has another type of value as number {number}")
}

/// Checks the list of all columns. Each has the number of columns within it, and they follow it.
fn check_schema(thrift: &mut Thrift<'_>) -> Result<(), String> {
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

/// Checks the pages of a column within a group of rows. They lie in `len` bytes of the file from `at` on. Returns the
/// size of the largest one, unpacked: no value of the column is larger.
///
/// # Errors
/// The mistake in a page.
pub(crate) fn check_pages(file: &File, mut at: u64, len: u64, packing: Compression) -> Result<u64, String> {
    let file_len = file.metadata().map_err(|error| error.to_string())?.len();
    let end = at.checked_add(len).filter(|end| *end <= file_len);
    let end = end.ok_or_else(|| format!("it announces a column of {len} bytes at {at}, and has {file_len} bytes"))?;
    let mut largest = 0;
    while at < end {
        let (header, page) = page_at(file, at, end)?;
        let left = end - at - header;
        if page.packed < 0 || page.packed as u64 > left {
            return Err(format!("it announces a page of {} bytes, where {left} are left", page.packed));
        }
        let unpacked = u64::try_from(page.unpacked).unwrap_or(u64::MAX);
        if unpacked > LARGEST_PAGE {
            let most = common::format::bytes(LARGEST_PAGE as usize);
            return Err(format!("it announces a page of {} bytes, and {most} are read at most", page.unpacked));
        }
        // Each text has its length before it, of four bytes.
        if page.words.is_some_and(|words| words < 0 || words as u64 > unpacked / 4) {
            return Err(format!("it announces more texts than a page of {unpacked} bytes has room for"));
        }
        let mut bytes = Section { file, at: at + header, left: page.packed as u64 };
        check_unpacked(&mut bytes, packing, unpacked)?;
        largest = largest.max(unpacked);
        at += header + page.packed as u64;
    }
    Ok(largest)
}

/// The header of a page.
#[derive(Default)]
struct PageHeader {
    unpacked: i32,
    packed: i32,
    /// The number of texts, if the page has the texts of a dictionary.
    words: Option<i32>,
}

/// The header of the page at `at`, and the header's size in bytes.
fn page_at(file: &File, at: u64, end: u64) -> Result<(u64, PageHeader), String> {
    let mut window = 4096;
    loop {
        let mut bytes = vec![0; window.min(end - at) as usize];
        file.read_exact_at(&mut bytes, at).map_err(|error| error.to_string())?;
        let mut thrift = Thrift(&bytes);
        match page_header(&mut thrift) {
            Ok(header) => return Ok(((bytes.len() - thrift.0.len()) as u64, header)),
            // Its statistics may have the longest text of the page.
            Err(_) if window < end - at && window < LARGEST_FOOTER => window *= 4,
            Err(error) => return Err(error),
        }
    }
}

fn page_header(thrift: &mut Thrift<'_>) -> Result<PageHeader, String> {
    let mut header = PageHeader::default();
    thrift.fields(|thrift, number, kind| {
        match (number, kind) {
            (2, I32) => header.unpacked = thrift.i32()?,
            (3, I32) => header.packed = thrift.i32()?,
            (1 | 4, I32) => return Ok(false),
            (5, STRUCT) => only(thrift, |number, kind| kind == if number == 5 { STRUCT } else { I32 })?,
            (7, STRUCT) => thrift.fields(|thrift, number, kind| match (number, kind) {
                (1, I32) => {
                    header.words = Some(thrift.i32()?);
                    Ok(true)
                }
                (1, _) => Err(of_other_type(number)),
                _ => Ok(false),
            })?,
            (8, STRUCT) => only(thrift, |number, kind| match number {
                7 => matches!(kind, TRUE | FALSE),
                8 => kind == STRUCT,
                _ => kind == I32,
            })?,
            (1..=5 | 7 | 8, _) => return Err(of_other_type(number)),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(header)
}

/// Skips a structure. Fails if a field has not the type that it should have.
fn only(thrift: &mut Thrift<'_>, is_type: impl Fn(i32, u8) -> bool) -> Result<(), String> {
    thrift.fields(|_, number, kind| if is_type(number, kind) { Ok(false) } else { Err(of_other_type(number)) })
}

/// A section of a file.
struct Section<'f> {
    file: &'f File,
    at: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let most = (bytes.len() as u64).min(self.left) as usize;
        let count = self.file.read_at(&mut bytes[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Fails if a page unpacks to more bytes than announced. Of pages packed in other ways the library itself unpacks no more
/// than is announced.
fn check_unpacked(bytes: &mut dyn Read, packing: Compression, announced: u64) -> Result<(), String> {
    let unpacked: Box<dyn Read + '_> = match packing {
        Compression::GZIP(_) => Box::new(MultiGzDecoder::new(bytes)),
        Compression::BROTLI(_) => Box::new(brotli::Decompressor::new(bytes, 1 << 16)),
        Compression::LZ4 => Box::new(lz4_flex::frame::FrameDecoder::new(bytes)),
        _ => return Ok(()),
    };
    // One that is damaged is found when it is read.
    match copy(&mut unpacked.take(announced + 1), &mut sink()) {
        Ok(count) if count > announced => Err(format!("a page of {announced} bytes unpacks to more")),
        _ => Ok(()),
    }
}

/// The pages of a column, checked after unpacking.
pub(crate) struct CheckedPages {
    pages: Box<dyn PageReader>,
    /// The lengths of rows, in a column of lists.
    rows: Option<RowLengths>,
    /// Lists of levels before the values: those of lists, and those of values that may be missing.
    levels: usize,
}

impl CheckedPages {
    /// The pages of a column with the given largest levels of lists and of values.
    pub(crate) fn new(pages: Box<dyn PageReader>, max_rep: i16, max_def: i16) -> CheckedPages {
        let rows = (max_rep > 0).then(|| RowLengths::new(max_rep));
        CheckedPages { pages, rows, levels: usize::from(max_rep > 0) + usize::from(max_def > 0) }
    }

    /// Fails if the page has something that the library would fill memory for.
    fn check(&mut self, page: &Page) -> Result<(), String> {
        check_lengths(page, self.levels)?;
        let Some(rows) = &mut self.rows else { return Ok(()) };
        let buffer: &[u8] = page.buffer();
        let levels = match page {
            Page::DictionaryPage { .. } => return Ok(()),
            Page::DataPage { rep_level_encoding, .. } if *rep_level_encoding != Encoding::RLE => {
                return Err("it has lists in a form that is no longer written".into());
            }
            Page::DataPage { .. } => buffer.get(4..).unwrap_or_default(),
            Page::DataPageV2 { .. } => buffer,
        };
        rows.add(levels, u64::from(page.num_values()))
    }
}

impl Iterator for CheckedPages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<ParquetResult<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page).map_err(ParquetError::General)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.pages.skip_next_page()
    }
}

/// Fails if a page announces too many lengths of texts: the library allocates all of them. Before the values are `lists`
/// lists of levels.
fn check_lengths(page: &Page, lists: usize) -> Result<(), String> {
    let buffer: &[u8] = page.buffer();
    let (levels, encoding) = match page {
        Page::DictionaryPage { .. } => return Ok(()),
        Page::DataPage { encoding, .. } => {
            let behind = |at: usize| {
                let length =
                    buffer.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes));
                at.saturating_add(4 + length as usize)
            };
            ((0..lists).fold(0, |at, _| behind(at)), encoding)
        }
        Page::DataPageV2 { encoding, def_levels_byte_len, rep_levels_byte_len, .. } => {
            ((*def_levels_byte_len as usize).saturating_add(*rep_levels_byte_len as usize), encoding)
        }
    };
    let mut lists = match encoding {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
        // Each text has the length that it shares with the one before, and that of the rest.
        Encoding::DELTA_BYTE_ARRAY => 2,
        _ => 0,
    };
    let mut values = Differences(buffer.get(levels..).unwrap_or_default());
    while lists > 0 {
        match values.skip_list() {
            Some(count) if count > MOST_LENGTHS => return Err(format!("a page announces {count} texts")),
            Some(_) => lists -= 1,
            // It is cut: the library says so.
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Numbers that are stored as differences.
struct Differences<'b>(&'b [u8]);

impl Differences<'_> {
    /// Skips a list and returns how many numbers the list announces. `None` if it is cut. One that announces too many is
    /// not skipped.
    fn skip_list(&mut self) -> Option<u64> {
        let [block, parts, count] = [unsigned(&mut self.0)?, unsigned(&mut self.0)?, unsigned(&mut self.0)?];
        unsigned(&mut self.0)?;
        let (mut left, in_part) = (count.saturating_sub(1), block.checked_div(parts)?);
        if count > MOST_LENGTHS || in_part == 0 {
            return Some(count);
        }
        while left > 0 {
            unsigned(&mut self.0)?;
            let (widths, rest) = self.0.split_at_checked(usize::try_from(parts).ok()?)?;
            self.0 = rest;
            for width in widths {
                if left > 0 {
                    let bytes = in_part.checked_mul(u64::from(*width))? / 8;
                    self.0 = self.0.get(usize::try_from(bytes).ok()?..)?;
                    left = left.saturating_sub(in_part);
                }
            }
        }
        Some(count)
    }
}
