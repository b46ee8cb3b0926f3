//! Thrift's compact protocol, as far as the descriptions in Parquet files use the protocol. A length that is only
//! announced allocates nothing.

/// How deep structures and lists nest. Parquet's own nest six deep.
const DEEPEST: usize = 32;

/// Numbers of types: a truth that is true, one that is false, 32-bit numbers, text and bytes, lists, structures.
pub(crate) const TRUE: u8 = 1;
/// See [`TRUE`].
pub(crate) const FALSE: u8 = 2;
/// See [`TRUE`].
pub(crate) const I32: u8 = 5;
/// See [`TRUE`].
pub(crate) const LIST: u8 = 9;
/// See [`TRUE`].
pub(crate) const STRUCT: u8 = 12;

/// The bytes that were not read yet.
pub(crate) struct Thrift<'b>(pub(crate) &'b [u8]);

type Read<T> = Result<T, String>;

fn ended<T>() -> Read<T> {
    Err("its description of itself ends too early".into())
}

impl Thrift<'_> {
    fn byte(&mut self) -> Read<u8> {
        let Some((byte, rest)) = self.0.split_first() else { return ended() };
        self.0 = rest;
        Ok(*byte)
    }

    fn skip_bytes(&mut self, count: u64) -> Read<()> {
        let Some(rest) = usize::try_from(count).ok().and_then(|count| self.0.get(count..)) else { return ended() };
        self.0 = rest;
        Ok(())
    }

    fn unsigned(&mut self) -> Read<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("its description of itself has a number of more than 64 bits".into())
    }

    /// A 32-bit number.
    ///
    /// # Errors
    /// The bytes end.
    pub(crate) fn i32(&mut self) -> Read<i32> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i32 ^ -((value & 1) as i32))
    }

    /// The fields of a structure: `field` is called with the number and the type of each. If it returns false, it has
    /// not read the value. The value is then skipped.
    ///
    /// # Errors
    /// That of `field`; the bytes end.
    pub(crate) fn fields(&mut self, mut field: impl FnMut(&mut Self, i32, u8) -> Read<bool>) -> Read<()> {
        self.fields_at(0, &mut field)
    }

    fn fields_at(&mut self, depth: usize, field: &mut dyn FnMut(&mut Self, i32, u8) -> Read<bool>) -> Read<()> {
        let mut number = 0;
        loop {
            let byte = self.byte()?;
            if byte & 0x0f == 0 {
                return Ok(());
            }
            number = match byte >> 4 {
                0 => self.i32()?,
                more => number + i32::from(more),
            };
            if !field(self, number, byte & 0x0f)? {
                self.skip(byte & 0x0f, depth + 1)?;
            }
        }
    }

    /// The number of items of a list of structures. Each takes `least` bytes at least.
    ///
    /// # Errors
    /// It has other items, or more than the bytes that are left can hold.
    pub(crate) fn structures(&mut self, least: usize) -> Read<usize> {
        match self.list()? {
            (count, STRUCT) if count.saturating_mul(least) <= self.0.len() => Ok(count),
            (0, _) => Ok(0),
            (count, _) => Err(format!("it announces a list of {count}, for which its description has no room")),
        }
    }

    fn list(&mut self) -> Read<(usize, u8)> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => usize::try_from(self.unsigned()?).unwrap_or(usize::MAX),
            count => count.into(),
        };
        Ok((count, byte & 0x0f))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Read<()> {
        if depth > DEEPEST {
            return Err(format!("its description of itself is nested more than {DEEPEST} deep"));
        }
        match kind {
            TRUE | FALSE => Ok(()),
            3 => self.byte().map(|_| ()),
            4..=6 => self.unsigned().map(|_| ()),
            7 => self.skip_bytes(8),
            8 => {
                let count = self.unsigned()?;
                self.skip_bytes(count)
            }
            LIST => {
                let (count, items) = self.list()?;
                // Items that take no bytes could be announced in any number.
                if count > self.0.len() || count > 0 && matches!(items, TRUE | FALSE) {
                    return Err(format!("it announces a list of {count}, for which its description has no room"));
                }
                (0..count).try_for_each(|_| self.skip(items, depth + 1))
            }
            STRUCT => self.fields_at(depth, &mut |_, _, _| Ok(false)),
            other => Err(format!("its description of itself has a value of type {other}, which Parquet does not use")),
        }
    }
}
