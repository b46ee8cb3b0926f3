//! Byte-level text from any file or folder.

use std::path::{Path, PathBuf};

use super::{Source, Split, token_batch, word};
use crate::config::UserError;
use crate::step::Batch;

/// A text as bytes, cut into windows of `seq + 1` bytes that share their ends. Each epoch goes through all windows once,
/// in another order.
pub struct ByteText {
    bytes: Vec<u8>,
    seq: usize,
    seed: u64,
    /// Windows that are trained on; those after validate.
    training: u64,
    windows: u64,
    name: String,
}

impl ByteText {
    /// Reads a file, or all UTF-8 files of a folder in order of their paths.
    ///
    /// # Errors
    /// A path that is missing, cannot be read, is not UTF-8, or holds too little text.
    pub fn read(path: &str, seq: usize, split: f64, seed: u64) -> Result<ByteText, UserError> {
        let wrong = |what: String, fix: &str| {
            UserError::new(format!("data.path = `{path}`: {what}"), "it names UTF-8 text to train on", fix)
        };
        let root = Path::new(path);
        let files = files(root).map_err(|error| wrong(format!("cannot be read: {error}"), "check the path"))?;
        let mut bytes = Vec::new();
        for file in &files {
            let name = file.display();
            let text = std::fs::read(file)
                .map_err(|error| wrong(format!("{name} cannot be read: {error}"), "check its permissions"))?;
            if std::str::from_utf8(&text).is_err() {
                if root.is_dir() {
                    eprintln!("skipping {name}: it is not UTF-8");
                    continue;
                }
                return Err(wrong("is not UTF-8".into(), "convert it, for example with iconv"));
            }
            bytes.extend(text);
        }
        let windows = (bytes.len().saturating_sub(1) / seq) as u64;
        let training = (windows as f64 * split).floor() as u64;
        if training == 0 || (split < 1.0 && training == windows) {
            let what = format!("holds {} bytes, too few for sequences of {seq} in both splits", bytes.len());
            return Err(wrong(what, "give more text, a smaller model.seq_length, or data.split = 1"));
        }
        let name = format!("{path}, {} files, {} bytes", files.len(), bytes.len());
        Ok(ByteText { bytes, seq, seed, training, windows, name })
    }

    /// Whether part of the text was kept for validation.
    pub fn validates(&self) -> bool {
        self.training < self.windows
    }

    /// The window of a sample: within each epoch a permutation of the split's windows.
    fn window(&self, split: Split, number: u64) -> u64 {
        match split {
            Split::Train => {
                let (epoch, place) = (number / self.training, number % self.training);
                permuted(place, self.training, word(self.seed, epoch))
            }
            Split::Validation => self.training + number % (self.windows - self.training).max(1),
        }
    }
}

impl Source for ByteText {
    fn batch(&self, split: Split, first: u64, count: usize) -> Batch {
        token_batch(first, count, self.seq, |number, row| {
            let start = self.window(split, number) as usize * self.seq;
            row.iter_mut().zip(&self.bytes[start..]).for_each(|(token, byte)| *token = i32::from(*byte));
        })
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

/// The files of a folder and its folders, sorted; or the file itself.
fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        std::fs::metadata(path)?;
        return Ok(vec![path.into()]);
    }
    let mut found = Vec::new();
    let mut entries = std::fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = entry.path();
        if path.is_dir() && !entry.file_type()?.is_symlink() {
            found.extend(files(&path)?);
        } else if path.is_file() {
            found.push(path);
        }
    }
    Ok(found)
}

/// A permutation of `0..count` as a function: a Feistel network over the next power of four, walked until it lands inside
/// (Black and Rogaway, 2002).
fn permuted(place: u64, count: u64, key: u64) -> u64 {
    let half = (64 - (count.max(2) - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut at = place;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (word(key ^ right, round) & mask));
        }
        at = left << half | right;
        if at < count {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_visits_every_window_once_in_another_order_each_time() {
        for count in [1, 2, 3, 17, 64, 1000] {
            let epoch = |key| (0..count).map(|i| permuted(i, count, key)).collect::<Vec<_>>();
            let mut sorted = epoch(1);
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            if count > 3 {
                assert_ne!(epoch(1), epoch(2));
            }
        }
    }

    #[test]
    fn inputs_and_targets_are_the_text_shifted_by_one() {
        let folder = std::env::temp_dir().join(format!("byte-text-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a.txt"), "abcdefghij").unwrap();
        std::fs::write(folder.join("b.txt"), "klmnopqrstu").unwrap();
        let text = ByteText::read(folder.to_str().unwrap(), 5, 0.5, 1).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((text.windows, text.training, text.validates()), (4, 2, true));
        let Batch::Tokens { inputs, targets } = text.batch(Split::Validation, 0, 2) else { unreachable!() };
        let letters = |tokens: &[i32]| tokens.iter().map(|t| *t as u8 as char).collect::<String>();
        assert_eq!((letters(&inputs), letters(&targets)), ("klmnopqrst".into(), "lmnopqrstu".into()));
    }
}
