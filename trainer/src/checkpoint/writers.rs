//! Which ranks write a checkpoint, and what each of them.

use std::path::Path;
use std::rc::Rc;

use launch::watch::activity::Activity;

use super::layout::Stored;
use crate::error::SaveError;

/// The ranks that write a checkpoint together, each what it alone has. A rank alone is a team of one.
pub struct Writers {
    /// This rank's number among those that have parts of the state: the ranks that share layers, the stages, and with a
    /// distributed optimizer all.
    pub rank: usize,
    /// How many they are.
    pub ranks: usize,
    /// Others with the same state do not write, but go through the same steps.
    pub writes: bool,
    /// It writes what every rank that shares layers with it has.
    pub writes_shared: bool,
    /// Whether it is so on any rank of the run.
    pub any: Rc<dyn Fn(bool) -> bool>,
    /// The sum over all ranks of the run.
    pub sum: Rc<dyn Fn(u64) -> u64>,
    /// Told of each MiB written, so that who watches sees that it goes on.
    pub activity: Activity,
}

impl Writers {
    /// One rank that has everything.
    pub fn alone() -> Writers {
        let (any, sum) = (Rc::new(|here| here), Rc::new(|here| here));
        let activity = Activity::default();
        Writers { rank: 0, ranks: 1, writes: true, writes_shared: true, any, sum, activity }
    }

    /// The one that makes the folder and gives it its name.
    pub(super) fn leads(&self) -> bool {
        self.writes && self.rank == 0
    }

    /// Whether this rank writes what it updates of a tensor.
    pub(super) fn owns(&self, tensor: &Stored) -> bool {
        !tensor.replica && (self.writes_shared || !tensor.everywhere)
    }

    /// The result here, unless another rank's is an error.
    pub(super) fn agree<T>(&self, path: &Path, result: Result<T, SaveError>) -> Result<T, SaveError> {
        match ((self.any)(result.is_err()), result) {
            (true, Ok(_)) => Err(SaveError::Peer { path: path.into() }),
            (_, result) => result,
        }
    }

    /// The name of this rank's file.
    pub(super) fn file(&self, name: &str) -> String {
        match (self.ranks, name.split_once('.')) {
            (1, _) | (_, None) => name.into(),
            (ranks, Some((stem, extension))) => format!("{stem}-{:05}-of-{ranks:05}.{extension}", self.rank + 1),
        }
    }
}
