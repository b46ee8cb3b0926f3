//! The section `checkpoint`.

use serde::{Deserialize, Serialize};

section!(CheckpointConfig {
    dir: Option<String>,
    interval: usize,
    memory_interval: usize,
    keep: usize,
    save_best: bool,
    async_save: bool,
    resume: Resume,
});

impl CheckpointConfig {
    /// Whether checkpoints before the last are written while training goes on. `in_memory`: so are states in memory.
    pub fn saves_meanwhile(&self, in_memory: bool) -> bool {
        self.async_save && (self.interval > 0 || self.save_best || in_memory)
    }

    /// Whether states in memory are asked for, beside checkpoints on disk.
    pub fn keeps_states(&self) -> bool {
        self.memory_interval > 0 && self.dir.is_some()
    }
}

/// The checkpoint that a run continues. Any text is one: a word, or else a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Resume {
    /// The newest in `checkpoint.dir`, if there is one.
    Auto,
    /// None.
    Never,
    /// A checkpoint, or the newest in a folder of checkpoints.
    From(String),
}

impl From<String> for Resume {
    fn from(text: String) -> Resume {
        match text.as_str() {
            "auto" => Resume::Auto,
            "never" => Resume::Never,
            _ => Resume::From(text),
        }
    }
}

impl From<Resume> for String {
    fn from(resume: Resume) -> String {
        match resume {
            Resume::Auto => "auto".into(),
            Resume::Never => "never".into(),
            Resume::From(path) => path,
        }
    }
}
