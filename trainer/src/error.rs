//! The errors that end a command, and the exit codes.

use std::io::Error as IoError;
use std::path::PathBuf;

use common::UserError;
use common::format::bytes;
use data::{DataError, TokenizeError};

/// An error that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The user's input is wrong: exit code 2.
    #[error(transparent)]
    User(#[from] UserError),
    /// A step failed: exit code 3.
    #[error("{0}")]
    Step(#[from] graph_manager::Error),
    /// The device failed: exit code 3.
    #[error("{0}")]
    Device(#[from] device::Error),
    /// The last checkpoint could not be written: exit code 3.
    #[error("{0}")]
    Checkpoint(#[from] SaveError),
    /// Data can no longer be read, or could not be written: exit code 3.
    #[error("{0}")]
    Data(#[from] DataError),
    /// A model has no scores: exit code 3.
    #[error(
        "the model's loss on {data} is {loss}. Rule: losses are finite. Fix: evaluate a checkpoint from before its training \
         diverged, or use --compute f32"
    )]
    NotFinite {
        /// The user's name of the data.
        data: String,
        /// The loss.
        loss: f64,
    },
    /// A step left other bits with graphs than without: exit code 5.
    #[error(
        "step {step}, {difference}. Rule: a graph does what its code does. Fix: `--check-graphs` finds values that froze, races \
         and reads of memory that was used again; docs/graphs.md says what may be captured"
    )]
    Graphs {
        /// The step, counted from 1.
        step: usize,
        /// The first value that differs.
        difference: Box<graph_manager::Difference>,
    },
    /// A layout has other numbers than one rank: exit code 3.
    #[error("{0}. Rule: every layout has the numbers of one rank. Fix: leave that axis out, and report the flags")]
    Layout(String),
    /// The trainer has a bug: exit code 3.
    #[error("the trainer panicked: {0}. Fix: report it")]
    Panic(String),
    /// A file could not be written: exit code 3.
    #[error("{what}: {error}. Fix: check the folder's permissions and space, or set another")]
    File {
        /// The file or folder, in words.
        what: String,
        /// The operating system's error.
        error: std::io::Error,
    },
}

impl RunError {
    /// The process's exit code.
    pub fn exit_code(&self) -> i32 {
        match self {
            RunError::User(_) => 2,
            RunError::Graphs { .. } => 5,
            _ => 3,
        }
    }

    /// Whether another rank's fault may be the cause: a transfer failed, or others could not write a checkpoint.
    pub fn follows(&self) -> bool {
        let device = match self {
            RunError::Checkpoint(error) => return matches!(error, SaveError::Peer { .. }),
            RunError::Device(error) | RunError::Step(graph_manager::Error::Device { source: error, .. }) => error,
            _ => return false,
        };
        matches!(device, device::Error::Communication { .. })
    }
}

impl From<TokenizeError> for RunError {
    fn from(error: TokenizeError) -> RunError {
        match error {
            TokenizeError::User(error) => RunError::User(error),
            TokenizeError::Data(error) => RunError::Data(error),
        }
    }
}

/// Why a checkpoint was not written. Earlier checkpoints are untouched.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// There is not enough space. Nothing was written.
    #[error(
        "checkpoint {} was not written: it needs {}, {} are free there. Earlier checkpoints are untouched. \
         Fix: free space, lower checkpoint.keep, or set another checkpoint.dir",
        path.display(), bytes(*needed as usize), bytes(*free as usize)
    )]
    Space {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Bytes of all files of the checkpoint.
        needed: u64,
        /// Bytes free in `checkpoint.dir`.
        free: u64,
    },
    /// A file or folder could not be written. The files that were already written are removed.
    #[error(
        "checkpoint file {} was not written: {error}. The checkpoint needs {}, {} are free there. \
         Earlier checkpoints are untouched. Fix: check space, quota and permissions, or set another checkpoint.dir",
        path.display(), bytes(*needed as usize), free.map_or("unknown".into(), |free| bytes(free as usize))
    )]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Bytes of all files of the checkpoint.
        needed: u64,
        /// Bytes free in `checkpoint.dir`, if the system says.
        free: Option<u64>,
        /// The operating system's error.
        error: IoError,
    },
    /// Another rank could not write a part of the checkpoint. That rank says why.
    #[error("checkpoint {} was not written: another rank could not write its part", path.display())]
    Peer {
        /// The checkpoint's folder.
        path: PathBuf,
    },
    /// The device could not be read.
    #[error(transparent)]
    Device(#[from] device::Error),
}

/// Adds the name of the file that was being written to the operating system's error.
pub fn file_error(what: String) -> impl FnOnce(std::io::Error) -> RunError {
    move |error| RunError::File { what, error }
}

#[cfg(test)]
mod tests {
    use device::DType;
    use graph_manager::{Difference, DifferingValues, Sameness};

    use super::*;

    #[test]
    fn a_step_that_differs_with_graphs_ends_with_a_code_of_its_own_and_one_line() {
        let (graphed, eager) = ("0.5".into(), "0.25".into());
        let difference = Difference {
            region: "backward of layer 3, microbatch 1".into(),
            operation: "gemm",
            tensor: "main_grad of h.2.mlp.c_fc.weight".into(),
            address: 0,
            dtype: DType::F32,
            elements: 64,
            same: Sameness::Bits,
            values: Some(DifferingValues { elements: 7, first: 12, graphed, eager }),
            hidden_by_waits: false,
        };
        let error = RunError::Graphs { step: 20, difference: Box::new(difference) };
        assert_eq!((error.exit_code(), error.follows()), (5, false));
        let words = "step 20, backward of layer 3, microbatch 1: `main_grad of h.2.mlp.c_fc.weight` (64 x f32, written by \
                     `gemm`) has other bits with graphs: 7 elements differ, the first at index 12: 0.5 with graphs, 0.25 \
                     without. Rule: a graph does what its code does. Fix: ";
        let text = error.to_string();
        assert!(text.starts_with(words) && !text.contains('\n'), "{text}");
    }
}
