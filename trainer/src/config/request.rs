//! A training run as a command line asks for it.

use std::path::PathBuf;

use super::RunConfig;

/// A training run as asked for.
#[derive(Clone, Debug)]
pub struct TrainRequest {
    /// The raw configuration.
    pub config: RunConfig,
    /// Print the plan and stop.
    pub dry_run: bool,
    /// Check every operation and launch, and poison dead memory.
    pub check_graphs: bool,
    /// Where to write the graphs, as JSON and Graphviz.
    pub graph_report: Option<PathBuf>,
    /// Filter of log messages.
    pub log: String,
    /// Things to tell the user.
    pub notices: Vec<String>,
}
