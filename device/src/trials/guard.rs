//! Poison: the bytes in memory that an operation does not declare to read. Tensors of a trial lie between guards.
//! Before an operation runs, its guards, the tensors that it does not declare and those that it only writes are
//! poisoned.

use std::ops::Range;
use std::sync::LazyLock;

use crate::{Area, DType, Device, Error, Op, Result, Shape, Tensor};

/// Bytes of a guard. A multiple of every alignment.
const GUARD: usize = 512;

/// Bytes that depend on their place, so that a copy of poison is no poison. The two kinds differ in every byte.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Poison {
    /// NaN in every type that has it, but for every second number of 8 bits.
    NotANumber,
    /// Large numbers.
    Large,
}

/// The period of poison in bytes: twice a prime number.
const PERIOD: usize = 2 * 65521;

impl Poison {
    /// The poison in and around the tensor of this number.
    fn bytes(self, number: usize, count: usize) -> Vec<u8> {
        static PERIODS: LazyLock<[Vec<u8>; 2]> =
            LazyLock::new(|| [Poison::NotANumber, Poison::Large].map(Poison::period));
        // Tensors begin at other places of the period.
        let (period, mut from) = (&PERIODS[self as usize], 2 * (number * 9973 % (PERIOD / 2)));
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            let more = (count - bytes.len()).min(PERIOD - from);
            bytes.extend_from_slice(&period[from..from + more]);
            from = 0;
        }
        bytes
    }

    fn period(self) -> Vec<u8> {
        let pair = |at: u32| {
            // The 32-bit mixer of Wellons (hash-prospector).
            let mut mixed = at;
            mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x7feb_352d);
            mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
            match self {
                Poison::NotANumber => [0x80 | (mixed >> 25).max(1) as u8, 0xff],
                Poison::Large => [(mixed >> 25) as u8, 0x5a],
            }
        };
        (0..PERIOD as u32 / 2).flat_map(pair).collect()
    }
}

/// A tensor of a trial between two guards.
pub(super) struct Guarded {
    /// The number of tensors that the trial made before.
    number: usize,
    pub(super) tensor: Tensor,
    /// The tensor and its guards.
    all: Tensor,
    /// Whether an operation may leave some elements of the tensor alone.
    pub(super) written_in_part: bool,
    _area: Area,
}

impl Guarded {
    pub(super) fn new(device: &Device, number: usize, shape: Shape, dtype: DType) -> Result<Guarded> {
        let (name, bytes) = (format!("tensor {number}"), GUARD + shape.elements() * dtype.size() + GUARD);
        let area = device.allocate(&name, bytes)?;
        let tensor = area.tensor(&name, GUARD, shape, dtype);
        let all = area.place(tensor.buffer, 0, [bytes], DType::U8);
        Ok(Guarded { number, tensor, all, written_in_part: false, _area: area })
    }

    /// The tensor's number, shape and type.
    pub(super) fn describe(&self) -> String {
        format!("tensor {}, {:?} of {}", self.number, self.tensor.shape, self.tensor.dtype)
    }

    /// Whether the tensor is one of `tensors`, or has the same memory.
    pub(super) fn is_one_of(&self, tensors: &[Tensor]) -> bool {
        tensors.iter().any(|tensor| tensor.range() == self.tensor.range())
    }

    /// Whether `tensor` is the guarded tensor or a part of it.
    pub(super) fn has(&self, tensor: &Tensor) -> bool {
        self.all.range().contains(&tensor.address)
    }

    fn range_of(&self, tensor: &Tensor) -> Range<usize> {
        let start = (tensor.address - self.all.address) as usize;
        start..start + tensor.bytes()
    }

    /// Poisons all bytes but those of the tensors that are read. Returns the bytes that the memory then holds.
    pub(super) fn poison(&self, device: &Device, reads: &[Tensor], poison: Poison) -> Result<Vec<u8>> {
        let mut bytes = poison.bytes(self.number, self.all.bytes());
        for tensor in reads.iter().filter(|tensor| self.has(tensor)) {
            bytes[self.range_of(tensor)].copy_from_slice(&device.download::<u8>(&as_bytes(tensor))?);
        }
        device.upload(&self.all, &bytes)?;
        Ok(bytes)
    }

    /// Fails if a byte that the operation does not declare to write is not as it was.
    pub(super) fn check_kept(&self, device: &Device, op: &Op, writes: &[Tensor], mut before: Vec<u8>) -> Result<()> {
        let after = device.download::<u8>(&self.all)?;
        self.take_written(writes, &mut before, &after);
        if before == after {
            return Ok(());
        }
        let place = before.iter().zip(&after).take_while(|(before, after)| before == after).count();
        let (own, tensor) = (self.range_of(&self.tensor), self.describe());
        let what = match place {
            before if before < own.start => format!("{} bytes before {tensor}", own.start - before),
            after if after >= own.end => format!("{} bytes behind {tensor}", after - own.end + 1),
            inside => format!("byte {} of {tensor}", inside - own.start),
        };
        Err(Error::operation(op.name(), format!("writes what it does not declare to write: {what}")))
    }

    /// The tensor's bytes.
    pub(super) fn values(&self, device: &Device) -> Result<Vec<u8>> {
        device.download(&as_bytes(&self.tensor))
    }

    /// Gives back the values from before poison, but for the bytes that the operation wrote.
    pub(super) fn restore(&self, device: &Device, writes: &[Tensor], values: &[u8]) -> Result<()> {
        if self.is_one_of(writes) {
            return Ok(());
        }
        let after = device.download::<u8>(&self.all)?;
        let mut all = after.clone();
        all[self.range_of(&self.tensor)].copy_from_slice(values);
        self.take_written(writes, &mut all, &after);
        device.upload(&self.all, &all)
    }

    /// Takes over the bytes of tensors that were written.
    fn take_written(&self, writes: &[Tensor], before: &mut [u8], after: &[u8]) {
        for tensor in writes.iter().filter(|tensor| self.has(tensor)) {
            before[self.range_of(tensor)].copy_from_slice(&after[self.range_of(tensor)]);
        }
    }

    /// For each element of a tensor within the guarded one, whether the element is the poison that was there.
    pub(super) fn poisoned(&self, tensor: &Tensor, bytes: &[u8], poison: Poison) -> Vec<bool> {
        fn equal<const N: usize>(a: &[u8], b: &[u8]) -> Vec<bool> {
            a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0).map(|(a, b)| a == b).collect()
        }
        let range = self.range_of(tensor);
        let poison = &poison.bytes(self.number, range.end)[range];
        match tensor.dtype.size() {
            1 => equal::<1>(bytes, poison),
            2 => equal::<2>(bytes, poison),
            _ => equal::<4>(bytes, poison),
        }
    }
}

/// The same memory as bytes.
pub(super) fn as_bytes(tensor: &Tensor) -> Tensor {
    Tensor { shape: [tensor.bytes()].into(), dtype: DType::U8, ..*tensor }
}

#[cfg(test)]
mod tests {
    use crate::{F8E5M2, Float, bf16};

    use super::*;

    #[test]
    fn kinds_of_poison_differ_in_every_byte_and_one_is_no_number_in_types_that_have_such() {
        let (first, second) = (Poison::NotANumber.bytes(3, 4096), Poison::Large.bytes(3, 4096));
        assert!(first.iter().zip(&second).all(|(a, b)| a != b));
        assert!(first.chunks_exact(4).all(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]).is_nan()));
        assert!(
            first.chunks_exact(2).all(|x| bf16::from_le_bytes([x[0], x[1]]).is_nan() && F8E5M2(x[1]).to_f32().is_nan())
        );
        assert!(second.chunks_exact(4).all(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]) > 1e15));
        for kind in [Poison::NotANumber, Poison::Large] {
            let [poison, other] = [kind.bytes(3, 4096), kind.bytes(4, 4096)];
            let equal = poison.chunks_exact(2).zip(other.chunks_exact(2)).filter(|(a, b)| a == b).count();
            assert!(equal < 64, "poison of another tensor is still poison");
            let moved =
                |by: usize| poison.chunks_exact(2).zip(poison[by..].chunks_exact(2)).filter(|(a, b)| a == b).count();
            assert!((2..64).step_by(2).all(|by| moved(by) < 64), "poison that was moved is still poison");
        }
    }
}
