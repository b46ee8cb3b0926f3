//! The training run that a command line asks for.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use crate::config::RunConfig;

/// The training run that a command line asks for.
#[derive(Clone, Debug)]
pub struct TrainRequest {
    /// The time at which this process read the command line.
    pub began: Instant,
    /// The resolved configuration.
    pub config: RunConfig,
    /// Print the plan and stop.
    pub dry_run: bool,
    /// The kind of GPU that the plan of a dry run must fit.
    pub gpu: Option<String>,
    /// Check every operation and launch for races, poison memory after its last use, and compare the code of replayed
    /// regions with their graphs.
    pub check_graphs: bool,
    /// The file for a report of all graphs: JSON, and Graphviz beside it.
    pub graph_report: Option<PathBuf>,
    /// The filter of log messages.
    pub log: String,
    /// Keys of the options that a file or a flag has set.
    pub given: BTreeSet<&'static str>,
    /// Notices for the user.
    pub notices: Vec<String>,
}
