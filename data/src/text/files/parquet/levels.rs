//! The lengths of rows in a column of lists, from the levels of the values: a level of 0 begins a row. Levels are stored
//! as runs of equal ones, and as packed groups of eight.

/// The most values of a row. They become objects of the library, which take a hundred times as much memory as text.
const MOST_VALUES: u64 = 1 << 20;

/// Counts the values of each row, over all pages of a column.
pub(crate) struct RowLengths {
    /// Bits of a level.
    bits: usize,
    /// Values so far of the row that was read last.
    values: u64,
}

impl RowLengths {
    /// For a column with this largest level.
    pub(crate) fn new(largest: i16) -> RowLengths {
        RowLengths { bits: (i16::BITS - largest.leading_zeros()) as usize, values: 0 }
    }

    /// Goes on by a page with so many levels. If they are cut, the library says so.
    ///
    /// # Errors
    /// A row has too many values.
    pub(crate) fn add(&mut self, mut levels: &[u8], count: u64) -> Result<(), String> {
        let mut left = count;
        while left > 0 {
            let Some(header) = unsigned(&mut levels) else { return Ok(()) };
            let (run, is_packed) = (header >> 1, header & 1 == 1);
            let bytes = if is_packed { run.saturating_mul(self.bits as u64) } else { self.bits.div_ceil(8) as u64 };
            let end = usize::try_from(bytes).unwrap_or(usize::MAX).min(levels.len());
            let (stored, rest) = levels.split_at(end);
            levels = rest;
            let here = if is_packed { run.saturating_mul(8) } else { run }.min(left);
            if here == 0 {
                return Ok(());
            }
            match is_packed {
                true => (0..here).try_for_each(|at| self.count(1, self.is_zero(stored, at as usize)))?,
                false => self.count(here, stored.iter().all(|byte| *byte == 0))?,
            }
            left -= here;
        }
        Ok(())
    }

    /// Whether a packed level is 0.
    fn is_zero(&self, packed: &[u8], at: usize) -> bool {
        let is_set = |bit: usize| packed.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
        !(at * self.bits..(at + 1) * self.bits).any(is_set)
    }

    /// Counts values that each begin a row, or belong to the last.
    fn count(&mut self, values: u64, begin_rows: bool) -> Result<(), String> {
        self.values = if begin_rows { 1 } else { self.values + values };
        match self.values > MOST_VALUES {
            true => Err(format!("a row has more than {MOST_VALUES} values in a list")),
            false => Ok(()),
        }
    }
}

/// A number of seven bits a byte, taken off the front. `None` if the bytes end before.
pub(crate) fn unsigned(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_over_runs_groups_and_pages_and_a_long_one_is_refused() {
        // A run of 3 zeros; a group of eight with bits 0, 1, 1, 1, 1, 1, 1, 1; a run of 1000 ones.
        let levels = [6, 0, 3, 0b1111_1110, 0xd0, 0x0f, 1];
        let mut rows = RowLengths::new(1);
        assert_eq!(rows.add(&levels, 3), Ok(()));
        assert_eq!(rows.values, 1);
        assert_eq!(rows.add(&levels, 1011), Ok(()));
        assert_eq!(rows.values, 1008);
        // The next page goes on with the row.
        assert_eq!(rows.add(&levels[4..], 1000), Ok(()));
        assert_eq!(rows.values, 2008);
        let most = [0x80, 0x80, 0x80, 0x08, 1];
        assert!(rows.add(&most, 1 << 23).unwrap_err().contains("more than 1048576 values"));
        // Levels of two bits; those that are cut are the library's to report.
        let mut rows = RowLengths::new(2);
        assert_eq!(rows.add(&[5, 0b1010_0100, 0xff, 0, 0], 16), Ok(()));
        assert_eq!(rows.values, 1);
        assert_eq!(rows.add(&[], 9), Ok(()));
    }
}
