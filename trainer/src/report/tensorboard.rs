//! TensorBoard's event files: records of length, checksum and an `Event` message, as TensorFlow writes them
//! (`tensorflow/core/lib/io/record_writer.cc`, `tensorflow/core/util/event.proto`).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use common::files::create_file;
use common::host_name;
use engine::step::BlockLoad;

use crate::report::fp8_losses;
use crate::report::metrics::StepMetrics;

/// The first part of the names of event files.
pub(crate) const PREFIX: &str = "events.out.tfevents.";

/// Appends the scalars of steps to an event file. Every process that runs has its own file, and TensorBoard shows all files
/// of a folder as one.
pub struct EventFile {
    file: BufWriter<File>,
}

impl EventFile {
    /// Creates a file in `folder`. If a run continues after `step` steps, the file tells TensorBoard to forget later ones of
    /// earlier files.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn create(folder: &Path, step: usize) -> std::io::Result<EventFile> {
        let now = seconds();
        let host = host_name();
        // TensorBoard reads files in the order of their names. So the time comes first, and it is after those of earlier
        // files, also if they are of this second or another machine's clock is ahead.
        let time = (now as u64).max(last_time(folder)?.saturating_add(1));
        let name = format!("{PREFIX}{time:010}.{host}.{}.0", std::process::id());
        let mut file = EventFile { file: BufWriter::new(create_file(&folder.join(name))?) };
        file.record(&event(now, 0, |event| bytes(event, 3, b"brain.Event:2")))?;
        if step > 0 {
            // SessionLog { status: START }.
            file.record(&event(now, step as u64 + 1, |event| bytes(event, 7, &[8, 1])))?;
        }
        Ok(file)
    }

    /// Adds a step's numbers.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn write(&mut self, metrics: &StepMetrics) -> std::io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars(metrics) {
            let mut scalar = Vec::new();
            bytes(&mut scalar, 1, tag.as_bytes());
            scalar.push(2 << 3 | 5); // simple_value, 32 bits
            scalar.extend((value as f32).to_le_bytes());
            bytes(&mut summary, 1, &scalar);
        }
        self.record(&event(seconds(), metrics.step as u64, |event| bytes(event, 5, &summary)))?;
        self.file.flush()
    }

    fn record(&mut self, message: &[u8]) -> std::io::Result<()> {
        let length = (message.len() as u64).to_le_bytes();
        self.file.write_all(&length)?;
        self.file.write_all(&masked_crc(&length).to_le_bytes())?;
        self.file.write_all(message)?;
        self.file.write_all(&masked_crc(message).to_le_bytes())
    }
}

/// The time in the name of the last event file of a folder; 0 if there is none.
fn last_time(folder: &Path) -> std::io::Result<u64> {
    let mut last = 0;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let time = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok());
        last = last.max(time.unwrap_or(0));
    }
    Ok(last)
}

/// The scalars of a step by name. The part before the slash is the group.
pub(crate) fn scalars(metrics: &StepMetrics) -> Vec<(String, f64)> {
    let named = |(name, value): (&'static str, f64)| (name.to_string(), value);
    let always = [
        ("train/loss", metrics.loss),
        ("train/grad_norm", f64::from(metrics.grad_norm)),
        ("train/skipped", f64::from(metrics.skipped)),
        ("train/lr", metrics.lr),
        ("train/samples", metrics.samples as f64),
        ("speed/tokens_per_s", metrics.tokens_per_s),
        ("speed/tflops", metrics.tflops),
        ("speed/step_ms", metrics.step_ms),
        ("speed/host_ms", metrics.host_ms),
        ("speed/data_wait_ms", metrics.data_wait_ms),
        ("memory/bytes", metrics.memory_bytes as f64),
    ];
    let mut scalars: Vec<(String, f64)> = always.into_iter().map(named).collect();
    scalars.extend(metrics.seq_length.map(|length| named(("train/seq_length", length as f64))));
    scalars.extend(metrics.added.iter().map(|(name, loss)| (format!("train/{name}"), *loss)));
    scalars.extend(metrics.expert_imbalance.map(|imbalance| named(("experts/imbalance", imbalance))));
    scalars.extend(metrics.rank_imbalance.map(|imbalance| named(("experts/imbalance_of_ranks", imbalance))));
    scalars.extend(metrics.dropped_choices.map(|dropped| named(("experts/dropped_choices", dropped))));
    let of_block = |load: &BlockLoad| (format!("experts/imbalance_of_block_{}", load.block), load.imbalance());
    scalars.extend(metrics.expert_loads.iter().map(of_block));
    let dropped =
        |load: &BlockLoad| Some((format!("experts/dropped_choices_of_block_{}", load.block), f64::from(load.dropped?)));
    scalars.extend(metrics.expert_loads.iter().filter_map(dropped));
    scalars.extend(metrics.mfu.map(|mfu| named(("speed/mfu", mfu))));
    scalars.extend(metrics.validation_loss.map(|loss| named(("validation/loss", loss))));
    scalars.extend(metrics.fp8.iter().flat_map(fp8_losses::scalars).map(named));
    scalars.extend(metrics.validation_perplexity.map(|value| named(("validation/perplexity", value))));
    scalars.extend(metrics.validation_pairs.iter().map(|(name, value)| (format!("validation/{name}"), *value)));
    scalars.extend(metrics.validation_sets.iter().map(|(name, loss)| (format!("validation/{name}/loss"), *loss)));
    scalars
}

/// Seconds since 1970.
pub(crate) fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// An `Event` message: time, step, and the fields that `fill` adds.
fn event(time: f64, step: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1]; // wall_time, 64 bits
    event.extend(time.to_le_bytes());
    event.push(2 << 3); // step, varint
    varint(&mut event, step);
    fill(&mut event);
    event
}

/// A field of bytes, text or a message. `field` is below 16.
fn bytes(message: &mut Vec<u8>, field: u8, content: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, content.len() as u64);
    message.extend(content);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// TensorFlow's masked CRC-32C: rotated and offset, because the CRC of data that contain a CRC is weak.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_resumed_run_comes_after_all_earlier_ones() {
        let folder = tempfile::tempdir().unwrap();
        // A file of another machine. Its clock is an hour ahead.
        let ahead = format!("{PREFIX}{:010}.zebra.9.0", seconds() as u64 + 3600);
        std::fs::write(folder.path().join(&ahead), "").unwrap();
        for step in [3, 4] {
            EventFile::create(folder.path(), step).unwrap();
        }
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!((names.len(), &names[0]), (3, &ahead));
    }
}
