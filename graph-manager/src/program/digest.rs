//! A digest of a visit's submissions.

use std::hash::{Hash, Hasher};

/// A number that equal sequences of numbers have.
#[derive(Default)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    pub(super) fn add_hash(&mut self, value: &impl Hash) {
        value.hash(self);
    }

    pub(super) fn value(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add(u64::from(*byte)));
    }

    fn write_u8(&mut self, word: u8) {
        self.add(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.add(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.add(word as u64);
    }

    fn finish(&self) -> u64 {
        self.value()
    }
}
