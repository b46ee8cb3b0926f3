//! Data files as other tools write them, byte by byte to their published layouts, and sources opened on them.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// Texts that every Debian has.
pub const LICENSES: &str = "/usr/share/common-licenses";

/// An empty folder that goes with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }

    /// Writes a file; returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), content).unwrap();
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `tokens` as numbers of `size` bytes.
pub fn packed(tokens: &[i32], size: usize) -> Vec<u8> {
    tokens.iter().flat_map(|token| i64::from(*token).to_le_bytes()[..size].to_vec()).collect()
}

/// A token file of llm.c: 256 int32, then tokens.
pub fn llmc(magic: i32, version: i32, tokens: &[i32], size: usize) -> Vec<u8> {
    let mut header = vec![0; 256];
    header[..3].copy_from_slice(&[magic, version, tokens.len() as i32]);
    [packed(&header, 4), packed(tokens, size)].concat()
}

/// An index of Megatron's for documents of one sequence each.
pub fn megatron_index(code: u8, lengths: &[i32], size: usize) -> Vec<u8> {
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1u64.to_le_bytes());
    index.push(code);
    index.extend((lengths.len() as u64).to_le_bytes());
    index.extend((lengths.len() as u64 + 1).to_le_bytes());
    index.extend(packed(lengths, 4));
    let mut pointer = 0;
    for length in lengths {
        index.extend(i64::from(pointer).to_le_bytes());
        pointer += length * size as i32;
    }
    index.extend((0..=lengths.len() as i64).flat_map(i64::to_le_bytes));
    index
}

/// Trains a small byte-level BPE tokenizer of 400 tokens on a text, and saves it.
pub fn small_tokenizer(path: &Path, text: &str) -> Tokenizer {
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let trainer = BpeTrainer::builder()
        .vocab_size(400)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from("<|endoftext|>", true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(&mut TrainerWrapper::from(trainer), text.lines()).unwrap();
    tokenizer.save(path, false).unwrap();
    tokenizer
}
