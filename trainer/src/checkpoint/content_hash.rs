//! Hashes of files, by which damage is found.

use sha2::{Digest, Sha256};

use super::manifest::hex;

/// The hash of a file's content, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentHash {
    /// Of manifests of format 1. One core took 1.1 to 1.7 GB/s.
    Sha256(String),
    /// One core took 4.3 to 4.8 GB/s (bench/results/2026-11-28-starts-and-graphs.md), and several cores can share a block.
    Blake3(String),
}

impl ContentHash {
    /// A hasher of the same kind, for content to compare.
    pub(super) fn hasher(&self) -> Hasher {
        match self {
            ContentHash::Sha256(_) => Hasher::Sha256(Sha256::new()),
            ContentHash::Blake3(_) => Hasher::new(),
        }
    }
}

/// Hashes content, block after block.
pub(super) enum Hasher {
    Sha256(Sha256),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    /// Of the kind that new checkpoints have.
    pub(super) fn new() -> Hasher {
        Hasher::Blake3(Box::default())
    }

    /// Adds a block, on the caller's thread.
    pub(super) fn add(&mut self, block: &[u8]) {
        match self {
            Hasher::Sha256(hash) => hash.update(block),
            Hasher::Blake3(hash) => {
                hash.update(block);
            }
        }
    }

    /// Adds a block of the file to the hash, on all cores if possible.
    pub(super) fn add_on_all_cores(&mut self, block: &[u8]) {
        match self {
            Hasher::Sha256(_) => self.add(block),
            Hasher::Blake3(hash) => {
                hash.update_rayon(block);
            }
        }
    }

    pub(super) fn end(self) -> ContentHash {
        match self {
            Hasher::Sha256(hash) => ContentHash::Sha256(hex(&hash.finalize())),
            Hasher::Blake3(hash) => ContentHash::Blake3(hash.finalize().to_hex().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_standard_tools_and_do_not_depend_on_blocks_or_cores() {
        let content: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        for (kind, of_abc) in [
            (ContentHash::Sha256(String::new()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (ContentHash::Blake3(String::new()), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
        ] {
            let whole = |content: &[u8]| {
                let mut hasher = kind.hasher();
                hasher.add(content);
                hasher.end()
            };
            let (ContentHash::Sha256(hash) | ContentHash::Blake3(hash)) = whole(b"abc");
            assert_eq!(hash, of_abc);
            let mut blocks = kind.hasher();
            content.chunks(70_001).for_each(|block| blocks.add_on_all_cores(block));
            assert_eq!(blocks.end(), whole(&content));
        }
    }
}
