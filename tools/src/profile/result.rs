//! The measurements and predictions of a profile.

use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::expected::Expected;
use super::launches::Launches;
use super::op_memory::OpMemory;
use super::operations::Total;
use crate::predict::Memory;

/// Steps of all ranks, without graphs and in each scope.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// The model, in words.
    pub model: String,
    /// The GPU's name, or `host`.
    pub device: String,
    /// The run's ranks, by number. All have the same scopes.
    pub ranks: Vec<RankProfile>,
    /// By scope: the prediction from the steps without graphs.
    pub expected: Vec<Expected>,
    /// The conclusion, in a sentence or two.
    pub verdict: String,
}

/// The measurements of a rank.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct RankProfile {
    /// The rank.
    pub rank: usize,
    /// First the steps without graphs.
    pub scopes: Vec<ScopeProfile>,
    /// The operations of a step without graphs, by time.
    pub operations: Vec<Total>,
    /// The memory of a step's operations without graphs, those first that run while most is in use.
    #[serde(default)] // Older profiles do not have it.
    pub op_memory: Vec<OpMemory>,
}

/// Steps in one scope.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct ScopeProfile {
    /// `off`, or the extent of one graph.
    pub scope: String,
    /// Median milliseconds of a step of a run.
    pub step_ms: f64,
    /// Milliseconds that the host needs to submit a step to an idle device.
    pub host_ms: f64,
    /// Graph launches of a step.
    pub launches: f64,
    /// Launches by graph, with the host's time for the launches.
    pub graphs: Vec<Launches>,
    /// Bytes of device memory.
    pub memory: Memory,
    /// The device's work.
    pub activity: Activity,
}

impl Profile {
    /// The rank whose steps without graphs took longest.
    pub fn slowest(&self) -> &RankProfile {
        let step = |rank: &&RankProfile| rank.scopes[0].step_ms;
        let slowest = self.ranks.iter().max_by(|a, b| step(a).total_cmp(&step(b)));
        slowest.expect("a run has at least one rank")
    }

    /// The expectation of a scope. `None` for steps without graphs.
    pub fn expected(&self, scope: &str) -> Option<&Expected> {
        self.expected.iter().find(|expected| expected.scope == scope)
    }
}

impl RankProfile {
    /// The fastest steps with graphs.
    pub fn fastest(&self) -> &ScopeProfile {
        let fastest = self.scopes[1..].iter().min_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        fastest.expect("graphs are measured in each scope")
    }

    /// The steps without graphs.
    pub fn eager(&self) -> &ScopeProfile {
        &self.scopes[0]
    }
}
