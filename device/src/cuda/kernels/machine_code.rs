//! Machine code as files hold it: a cubin is an ELF file, a fatbin has a header with its size.
//!
//! The driver gets no length. It reads as far as the headers say, so a file that was cut off must not reach it.

use crate::{Error, Result};

/// The first bytes of a fatbin.
const FATBIN: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// Fails unless the bytes are a whole cubin or fatbin, as their headers say.
///
/// # Errors
/// They begin otherwise, or end too early.
pub(super) fn check_whole(file: &str, bytes: &[u8]) -> Result<()> {
    let end = match bytes {
        [0x7f, b'E', b'L', b'F', 2, 1, ..] => end_of_elf(bytes),
        [magic @ .., _] if magic.starts_with(&FATBIN) => end_of_fatbin(bytes),
        _ => {
            let problem = format!("{file} is neither a cubin nor a fatbin. Fix: for PTX use CudaCode::Ptx");
            return Err(Error::operation("cuda", problem));
        }
    };
    if end.is_some_and(|end| end <= bytes.len() as u64) {
        return Ok(());
    }
    let problem = format!("{file} is cut off after {} bytes. Fix: compile or copy it again", bytes.len());
    Err(Error::operation("cuda", problem))
}

/// The number at a place. `None` beyond the end.
fn number(bytes: &[u8], at: u64, size: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// The end of a fatbin: after the header come as many bytes as it says.
fn end_of_fatbin(bytes: &[u8]) -> Option<u64> {
    number(bytes, 6, 2)?.checked_add(number(bytes, 8, 8)?)
}

/// The end of an ELF file of 64 bits: that of its last table or section.
fn end_of_elf(bytes: &[u8]) -> Option<u64> {
    /// The kind of a section that takes no room in the file.
    const NO_BITS: u64 = 8;
    let mut end = 64;
    // The tables of segments and of sections: their places, and the places of the size and the number of their entries.
    for (at, size, count) in [(32, 54, 56), (40, 58, 60)] {
        let length = number(bytes, size, 2)? * number(bytes, count, 2)?;
        end = end.max(number(bytes, at, 8)?.checked_add(length)?);
    }
    let (first, size, count) = (number(bytes, 40, 8)?, number(bytes, 58, 2)?, number(bytes, 60, 2)?);
    for section in 0..count {
        let at = first.checked_add(section * size)?;
        if number(bytes, at.checked_add(4)?, 4)? != NO_BITS {
            end =
                end.max(number(bytes, at.checked_add(24)?, 8)?.checked_add(number(bytes, at.checked_add(32)?, 8)?)?);
        }
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with a section of `length` bytes from 64 on, then the table of its one section.
    fn elf(length: u64) -> Vec<u8> {
        let mut bytes = vec![0; 64 + length as usize + 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[40..48].copy_from_slice(&(64 + length).to_le_bytes());
        (bytes[58], bytes[60]) = (64, 1);
        let table = 64 + length as usize;
        bytes[table + 4] = 1;
        bytes[table + 24..][..8].copy_from_slice(&64_u64.to_le_bytes());
        bytes[table + 32..][..8].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn fatbin(length: u64) -> Vec<u8> {
        let header = [&FATBIN[..], &1_u16.to_le_bytes(), &16_u16.to_le_bytes(), &length.to_le_bytes()].concat();
        [header, vec![7; length as usize]].concat()
    }

    #[test]
    fn whole_files_are_taken_and_every_one_that_was_cut_off_is_refused() {
        for bytes in [elf(100), fatbin(100)] {
            check_whole("a.cubin", &bytes).unwrap();
            for end in 0..bytes.len() {
                let text = check_whole("a.cubin", &bytes[..end]).expect_err("it was cut off").to_string();
                assert!(text.contains("a.cubin") && text.contains("Fix:"), "{text}");
            }
        }
    }

    #[test]
    fn a_section_that_ends_beyond_the_file_and_sizes_that_overflow_are_refused() {
        let mut beyond = elf(100);
        beyond[164 + 32] = 200;
        let mut overflowing = elf(100);
        overflowing[164 + 24..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        let mut no_bits = beyond.clone();
        no_bits[164 + 4] = 8;
        assert!(check_whole("a.cubin", &beyond).is_err() && check_whole("a.cubin", &overflowing).is_err());
        check_whole("a.cubin", &no_bits).expect("it takes no room");
        assert!(check_whole("a.ptx", b".version 7.0").unwrap_err().to_string().contains("CudaCode::Ptx"));
    }
}
