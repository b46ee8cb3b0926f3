//! Timed choices as text: stored on disk, and passed from rank to rank.
//!
//! The first line names the library's version and the GPU; the choices hold for these alone. Each other line is
//! `key method microseconds`. The method is `separate`, `transposed` or `algorithm:workspace:hex`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::descriptors::Algorithm;

/// The best method for a problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ChoiceEntry {
    pub(super) method: ChosenMethod,
    /// The choice's time, in microseconds.
    pub(super) microseconds: f32,
}

/// How a problem is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ChosenMethod {
    /// A single call of cuBLASLt for the product and the epilogue.
    Algorithm(Algorithm),
    /// A plain product, then our own kernel for the epilogue.
    Separate,
    /// A product with a transposed copy of a factor.
    Transposed,
}

/// Entries by their problem's key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChoiceTable {
    header: String,
    pub(super) entries: BTreeMap<String, ChoiceEntry>,
}

impl ChoiceTable {
    /// An empty table for a version of the library and a GPU.
    pub(super) fn new(version: usize, gpu: &str) -> ChoiceTable {
        ChoiceTable { header: format!("cublaslt {version} {gpu}"), entries: BTreeMap::new() }
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.header);
        for (key, entry) in &self.entries {
            let method = match entry.method {
                ChosenMethod::Separate => "separate".to_string(),
                ChosenMethod::Transposed => "transposed".to_string(),
                ChosenMethod::Algorithm(algorithm) => {
                    let hex: String = algorithm.bytes.iter().map(|word| format!("{word:016x}")).collect();
                    format!("algorithm:{}:{hex}", algorithm.workspace)
                }
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{key} {method} {}", entry.microseconds);
        }
        text
    }

    /// Takes over the entries of `text`, or none of them if one line is damaged.
    ///
    /// # Errors
    /// Another version or GPU, or a line that is no entry.
    pub(super) fn merge(&mut self, text: &str) -> Result<(), String> {
        let mut lines = text.lines();
        let header = lines.next().unwrap_or_default();
        if header != self.header {
            return Err(format!("these choices are for `{header}`, this is `{}`", self.header));
        }
        let entries: Vec<(String, ChoiceEntry)> =
            lines.map(|line| entry(line).ok_or_else(|| format!("`{line}` is no entry"))).collect::<Result<_, _>>()?;
        self.entries.extend(entries);
        Ok(())
    }
}

fn entry(line: &str) -> Option<(String, ChoiceEntry)> {
    let mut words = line.split_ascii_whitespace();
    let (key, method, microseconds) = (words.next()?, words.next()?, words.next()?);
    let method = match method.strip_prefix("algorithm:") {
        Some(rest) => ChosenMethod::Algorithm(algorithm(rest)?),
        None if method == "separate" => ChosenMethod::Separate,
        None if method == "transposed" => ChosenMethod::Transposed,
        None => return None,
    };
    let entry = ChoiceEntry { method, microseconds: microseconds.parse().ok()? };
    words.next().is_none().then(|| (key.into(), entry))
}

fn algorithm(text: &str) -> Option<Algorithm> {
    let (workspace, hex) = text.split_once(':')?;
    let mut bytes = [0; 8];
    if hex.len() != 16 * bytes.len() {
        return None;
    }
    for (i, word) in bytes.iter_mut().enumerate() {
        *word = u64::from_str_radix(hex.get(16 * i..16 * (i + 1))?, 16).ok()?;
    }
    Some(Algorithm { bytes, workspace: workspace.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> ChoiceTable {
        let mut table = ChoiceTable::new(130100, "NVIDIA H200");
        let algorithm = Algorithm { bytes: [1, u64::MAX, 3, 0x0123_4567_89ab_cdef, 5, 6, 7, 8], workspace: 33_554_432 };
        let entries = [
            ("8x8x8-nt-bf16-bf16-None", ChoiceEntry { method: ChosenMethod::Algorithm(algorithm), microseconds: 12.5 }),
            ("8x8x8-nt-bf16-bf16-Bias", ChoiceEntry { method: ChosenMethod::Separate, microseconds: 0.1 }),
            ("8x8x8-tn-f32-f32-None", ChoiceEntry { method: ChosenMethod::Transposed, microseconds: 3.0 }),
        ];
        table.entries.extend(entries.map(|(key, entry)| (key.to_string(), entry)));
        table
    }

    #[test]
    fn choices_survive_being_written_and_read() {
        let mut read = ChoiceTable::new(130100, "NVIDIA H200");
        assert_eq!(read.merge(&filled().to_text()), Ok(()));
        assert_eq!(read, filled());
    }

    #[test]
    fn choices_of_another_version_or_gpu_are_rejected() {
        for mut other in [ChoiceTable::new(130200, "NVIDIA H200"), ChoiceTable::new(130100, "NVIDIA A100")] {
            assert!(other.merge(&filled().to_text()).unwrap_err().contains("130100 NVIDIA H200"));
            assert!(other.entries.is_empty());
        }
    }

    #[test]
    fn a_damaged_table_is_rejected_whole() {
        let text = filled().to_text();
        for damaged in
            [text.replace("separate", "seperate"), text.replace("ffff", "fff"), text.replace("12.5", ""), String::new()]
        {
            let mut table = ChoiceTable::new(130100, "NVIDIA H200");
            assert!(table.merge(&damaged).is_err(), "{damaged}");
            assert!(table.entries.is_empty());
        }
    }
}
