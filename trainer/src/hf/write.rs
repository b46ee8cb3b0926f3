//! Weights into safetensors files in the form of `transformers`: the same bytes for the same tensors.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use common::UserError;

use super::names::{Entry, TensorRows};
use crate::checkpoint::{DataType, beginning};
use crate::error::RunError;

/// A tensor to write: a part of an entry.
struct Target<'e> {
    entry: usize,
    part: &'e TensorRows,
    shape: Vec<usize>,
}

/// Writes all parts of all entries to `folder`, in files of at most `shard_bytes` unless a single tensor is larger. Their
/// names begin with `stem`.
/// `rows` returns those rows of the entry with that number. One tensor at a time is in memory. After an error no file is
/// left.
///
/// # Errors
/// An error of `rows`, a value that the type cannot hold, or a file that cannot be written.
pub(super) fn write(
    (folder, stem): (&Path, &str),
    entries: &[Entry],
    dtype: DataType,
    shard_bytes: usize,
    rows: &dyn Fn(usize, Range<usize>) -> Result<Vec<f32>, UserError>,
) -> Result<(), RunError> {
    let mut targets: Vec<Target<'_>> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let target = |part| Target { entry: index, part, shape: entry.part_shape(part) };
        targets.extend(entry.parts.iter().map(target));
    }
    targets.sort_by(|a, b| a.part.name.cmp(&b.part.name));
    let bytes = |target: &Target<'_>| target.shape.iter().product::<usize>() * dtype.size();
    let mut shards: Vec<Vec<Target<'_>>> = vec![Vec::new()];
    let mut filled = 0;
    let mut total = 0;
    for target in targets {
        let size = bytes(&target);
        if filled > 0 && filled + size > shard_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += size;
        total += size;
        if let Some(shard) = shards.last_mut() {
            shard.push(target);
        }
    }
    let count = shards.len();
    let (mut weight_map, mut finished) = (serde_json::Map::new(), Vec::new());
    for (number, shard) in shards.iter().enumerate() {
        let name = match count {
            1 => format!("{stem}.safetensors"),
            _ => format!("{stem}-{:05}-of-{count:05}.safetensors", number + 1),
        };
        for target in shard {
            weight_map.insert(target.part.name.clone(), name.clone().into());
        }
        // Renamed once it is whole.
        let partial = folder.join(format!("{name}.partial"));
        let written = write_file(&partial, shard, dtype, &|target| {
            Ok(entries[target.entry].rows_to_file(rows(target.entry, target.part.rows.clone())?))
        });
        if let Err(error) = written {
            for file in finished.iter().chain([&partial]) {
                let _ = std::fs::remove_file(file);
            }
            return Err(error);
        }
        let file = folder.join(&name);
        std::fs::rename(&partial, &file).map_err(not_written(&partial))?;
        finished.push(file);
    }
    if count > 1 {
        let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        let path = folder.join(format!("{stem}.safetensors.index.json"));
        std::fs::write(&path, format!("{index:#}\n")).map_err(not_written(&path))?;
    }
    Ok(())
}

/// Writes and syncs the file of a shard.
fn write_file(
    path: &Path,
    shard: &[Target<'_>],
    dtype: DataType,
    values: &dyn Fn(&Target<'_>) -> Result<Vec<f32>, UserError>,
) -> Result<(), RunError> {
    let failed = not_written(path);
    let mut file = BufWriter::new(File::create(path).map_err(&failed)?);
    let named = |target: &Target<'_>| (target.part.name.clone(), dtype, target.shape.clone());
    file.write_all(&beginning(shard.iter().map(named))).map_err(&failed)?;
    for target in shard {
        let values = values(target)?;
        if let Some(large) = dtype.too_large(&values) {
            return Err(no_room(&target.part.name, large, dtype).into());
        }
        file.write_all(&dtype.encode(&values)).map_err(&failed)?;
    }
    file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all()).map_err(failed)
}

/// The error of a value that would become infinity.
fn no_room(tensor: &str, value: f32, dtype: DataType) -> UserError {
    let (name, largest) = (dtype.torch_name(), dtype.largest());
    UserError::new(
        format!("tensor `{tensor}` has the value {value}, which becomes infinity as {name}"),
        format!("values of an export are finite: those of {name} are at most {largest}"),
        "use --dtype bf16 or f32",
    )
}

/// A file that could not be written.
pub(super) fn not_written(path: &Path) -> impl Fn(std::io::Error) -> RunError {
    move |error| RunError::File { what: format!("{} was not written", path.display()), error }
}
