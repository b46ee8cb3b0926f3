//! Checkpoints of other trainers. A run must not take their folder for an empty one, and silently start at step 0.

use std::fs::DirEntry;
use std::path::Path;

use common::UserError;

use super::folder::steps;
use crate::config::{CheckpointConfig, Resume};

/// A format, and an entry of a folder that shows it.
struct Format {
    name: &'static str,
    /// How a user gets a model of Hugging Face from a checkpoint of the format.
    export: &'static str,
    /// Whether an entry of that name is one of the format.
    has: fn(&str, &DirEntry) -> bool,
}

const FORMATS: [Format; 4] = [
    Format {
        name: "Megatron-LM",
        export: "Megatron's tools/checkpoint/convert.py, or Megatron Bridge",
        has: |name, entry| {
            name == "latest_checkpointed_iteration.txt" || (is_numbered(name, "iter_") && is_folder(entry))
        },
    },
    Format {
        name: "DeepSpeed",
        export: "the zero_to_fp32.py that lies beside it, and the model's save_pretrained",
        has: |name, entry| is_numbered(name, "global_step") && is_folder(entry),
    },
    Format {
        name: "torch.distributed (DCP), as torchtitan and FSDP write it",
        export: "torchtitan's convert_to_hf.py, or dcp_to_torch_save and the model's save_pretrained",
        has: |name, entry| (name == ".metadata" || name.ends_with(".distcp")) && !is_folder(entry),
    },
    Format {
        name: "transformers' Trainer",
        export: "the checkpoint's own folder: it is a model of Hugging Face",
        has: |name, entry| is_numbered(name, "checkpoint-") && entry.path().join("trainer_state.json").is_file(),
    },
];

fn is_numbered(name: &str, stem: &str) -> bool {
    name.strip_prefix(stem).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_folder(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

/// Fails if a run would look for checkpoints, or write checkpoints, in a folder with another trainer's. If the folder
/// also has checkpoints of ours, it is no mistake.
///
/// # Errors
/// Names the folder, the format, and the file that shows it. A folder that cannot be read is no error here.
pub fn refuse_other_formats(settings: &CheckpointConfig) -> Result<(), UserError> {
    let resume = match &settings.resume {
        Resume::From(path) => Some(("checkpoint.resume", path)),
        Resume::Auto | Resume::Never => None,
    };
    let dir = settings.dir.as_ref().map(|dir| ("checkpoint.dir", dir));
    for (key, path) in resume.into_iter().chain(dir) {
        let folder = Path::new(path);
        let Some((format, shown)) = other_format(folder) else { continue };
        if steps(folder).is_ok_and(|steps| !steps.is_empty()) {
            continue;
        }
        return Err(UserError::new(
            format!("{key} = {path} has a checkpoint of {}: {shown}", format.name),
            "a run continues checkpoints of its own format only, and would start at step 0 beside these",
            format!(
                "make a Hugging Face model of it ({}), name that with --init-from, and another folder with --save",
                format.export
            ),
        ));
    }
    Ok(())
}

/// The format of another trainer's checkpoint in a folder or in one of its folders named `step-1000`, and the path in the
/// folder that shows it.
fn other_format(folder: &Path) -> Option<(&'static Format, String)> {
    let of = |entry: &DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let format = FORMATS.iter().find(|format| (format.has)(&name, entry))?;
        Some((format, name))
    };
    let entries: Vec<DirEntry> = std::fs::read_dir(folder).ok()?.flatten().collect();
    let inside = |entry: &DirEntry| {
        let name = entry.file_name().into_string().ok().filter(|name| is_numbered(name, "step-"))?;
        let (format, shown) = std::fs::read_dir(entry.path()).ok()?.flatten().find_map(|entry| of(&entry))?;
        Some((format, format!("{name}/{shown}")))
    };
    entries.iter().find_map(of).or_else(|| entries.iter().find_map(inside))
}
