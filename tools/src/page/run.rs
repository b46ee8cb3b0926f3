//! A run, from the run's folder.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use common::UserError;
use common::files::{open_file, read_file, read_text};
use graph_manager::Report;
use launch::watch::ranks_file::RANKS;
use parallel::{Axis, Mesh, MeshSizes, Schedule};
use serde::Deserialize;

use super::events::Log;
use super::expert_loads::ExpertLoads;
use super::metrics::Metrics;
use super::overview::{Settings, settings};
use super::trace::{Trace, number_after};
use trainer::config::plan::ranks::layout;
use trainer::config::{ConfigSources, RunConfig};
use trainer::report::metrics::METRICS;
use trainer::report::samples::{SAMPLES, StepSamples};
use trainer::run::run_folder::CONFIG;
use trainer::run::trace::of_rank;

/// The largest metrics that are read, bytes.
const LARGEST_METRICS: u64 = 4 << 30;

/// The largest configuration that is read, bytes.
pub(crate) const LARGEST_CONFIG: u64 = 16 << 20;

/// The largest report of graphs or timeline that is read, bytes.
const LARGEST_MADE: u64 = 2 << 30;

/// The most timelines that are read.
const MOST_TRACES: usize = 64;

/// The content of a file that a run writes only on request, or why the file is not shown, as a sentence.
pub(crate) type Made<T> = Result<T, String>;

/// The graphs of one rank, from `--graph-report`.
#[derive(Debug, Deserialize)]
pub(crate) struct RankGraphs {
    pub(crate) rank: usize,
    pub(crate) pipeline: usize,
    #[serde(flatten)]
    pub(crate) report: Report,
}

#[derive(Deserialize)]
struct GraphFile {
    ranks: Vec<RankGraphs>,
}

/// A run, as far as the run's files tell.
pub struct Run {
    /// The user's name of the folder.
    pub(crate) name: String,
    pub(crate) metrics: Metrics,
    pub(crate) expert_loads: ExpertLoads,
    pub(crate) samples: Vec<StepSamples>,
    pub(crate) settings: Settings,
    /// The settings as options; `None` if this version of the trainer does not know all settings.
    pub(crate) config: Option<RunConfig>,
    pub(crate) log: Log,
    pub(crate) ranks: usize,
    /// The graphs of the first rank of each pipeline stage, or of every rank without a pipeline.
    pub(crate) graphs: Made<Vec<RankGraphs>>,
    /// The timelines of the same ranks.
    pub(crate) traces: Made<Vec<Trace>>,
}

impl Run {
    /// Reads the folder of a run: its `logging.dir`.
    ///
    /// # Errors
    /// A folder that is not that of a run, or cannot be read.
    pub fn read(folder: &Path) -> Result<Run, UserError> {
        let name = folder.display().to_string();
        let optional = |file: &Path, content: std::io::Result<Vec<u8>>| match content {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            content => content.map_err(|error| unreadable(file, &error)),
        };
        let logs = rank_logs(folder);
        let metrics = folder.join(METRICS);
        check_folder(folder, &logs)?;
        let lines = optional(&metrics, read_file(&metrics, LARGEST_METRICS))?;
        let metrics = Metrics::read(&lines);
        let expert_loads = ExpertLoads::read(&lines, &metrics);
        drop(lines);
        let path = folder.join(SAMPLES);
        let lines = optional(&path, read_file(&path, LARGEST_METRICS))?;
        // Lines that cannot be read are left out.
        let samples = lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let path = folder.join(CONFIG);
        let text = optional(&path, read_text(&path, LARGEST_CONFIG).map(String::into_bytes))?;
        let text = String::from_utf8_lossy(&text);
        let config = config_in(&text);
        let mut log = Log::default();
        for (rank, path) in &logs {
            log.add(path, *rank).map_err(|error| unreadable(path, &error))?;
        }
        let ranks = logs.len().max(1);
        let shown = shown_ranks(config.as_ref(), ranks);
        let graphs = match &log.graph_report {
            Some(file) => made(file, folder, |bytes| serde_json::from_slice::<GraphFile>(bytes)),
            None => Err("The run made no report of its graphs: `--graph-report FILE` makes one at its end.".into()),
        };
        let graphs = graphs.map(|all| all.ranks.into_iter().filter(|graphs| shown.contains(&graphs.rank)).collect());
        let trace = config.as_ref().and_then(|config| config.logging.trace.as_deref());
        let traces = traces(trace, folder, &shown);
        Ok(Run { name, metrics, expert_loads, samples, settings: settings(&text), config, log, ranks, graphs, traces })
    }

    /// How the run's pipeline works on steps of so many microbatches. `None` without a pipeline.
    pub(crate) fn schedule(&self, microbatches: usize) -> Option<Schedule> {
        let config = self.config.as_ref().filter(|config| config.parallel.pipeline > 1)?;
        layout::schedule(config, &[microbatches]).ok()
    }

    /// Whether the run did all steps, so that the run's files no longer change.
    pub fn is_done(&self) -> bool {
        self.log.is_done
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.metrics.last_step()
    }
}

/// The options in the text of a `config.toml`; `None` if this version of the trainer does not know all options.
pub(crate) fn config_in(text: &str) -> Option<RunConfig> {
    let mut sources = ConfigSources::default();
    sources.read_text(text, CONFIG).ok().map(|()| sources.resolve())
}

/// Fails on a folder that is not a run's, or has files that cannot be read. `logs` are the logs in it.
pub(crate) fn check_folder(folder: &Path, logs: &[(usize, PathBuf)]) -> Result<(), UserError> {
    let others = [METRICS, CONFIG, RANKS].map(|name| folder.join(name));
    for path in logs.iter().map(|(_, path)| path).chain(&others) {
        match open_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(unreadable(path, &error)),
            _ => {}
        }
    }
    if !logs.is_empty() || folder.join(METRICS).is_file() {
        return Ok(());
    }
    let what = format!("{} has neither {METRICS} nor rank-0.jsonl", folder.display());
    let fix = "name the run's --log-dir, which is runs/last if it was not set";
    Err(UserError::new(what, "RUN is the folder into which a run writes", fix))
}

fn unreadable(file: &Path, error: &std::io::Error) -> UserError {
    let what = format!("{} cannot be read: {error}", file.display());
    let rule = "the files in a run's folder are regular files that can be read";
    UserError::new(what, rule, "change the file's permissions, or restore it")
}

/// The logs in a folder by rank.
pub(crate) fn rank_logs(folder: &Path) -> Vec<(usize, PathBuf)> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let rank = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        let digits = name.strip_prefix("rank-")?.strip_suffix(".jsonl")?;
        number_after(name, "rank-").filter(|rank| rank.to_string() == digits)
    };
    let mut logs: Vec<(usize, PathBuf)> = files.filter_map(|path| Some((rank(&path)?, path))).collect();
    logs.sort();
    logs
}

/// The ranks with graphs and timelines to show: the first of each pipeline stage, and all without a pipeline.
fn shown_ranks(config: Option<&RunConfig>, ranks: usize) -> Vec<usize> {
    let staged = config.map(|config| &config.parallel).filter(|parallel| parallel.pipeline > 1);
    let sizes = staged.map(|of| MeshSizes { tensor: of.tensor, pipeline: of.pipeline, ..MeshSizes::of(ranks) });
    let mesh = sizes.and_then(|sizes| Mesh::new(sizes).ok());
    mesh.map_or_else(|| (0..ranks).take(MOST_TRACES).collect(), |mesh| mesh.members_along(0, Axis::Pipeline))
}

fn traces(file: Option<&str>, folder: &Path, ranks: &[usize]) -> Made<Vec<Trace>> {
    let Some(file) = file else {
        return Err("The run made no timeline: `--trace FILE` makes one of a few steps.".into());
    };
    let trace = |rank: &usize| made(&of_rank(Path::new(file), *rank).display().to_string(), folder, Trace::read);
    ranks.iter().map(trace).collect()
}

/// Reads a file. It is searched in the run's working folder, if that is this process's, and then in the run's folder.
fn made<T>(name: &str, folder: &Path, parse: impl FnOnce(&[u8]) -> serde_json::Result<T>) -> Made<T> {
    let path = Path::new(name);
    let beside = path.file_name().map(|name| folder.join(name));
    let found = std::iter::once(path.to_path_buf()).chain(beside).find(|path| path.is_file());
    let path =
        found.ok_or_else(|| format!("The run names {name}, which is neither there nor in {}.", folder.display()))?;
    let read = read_file(&path, LARGEST_MADE).map_err(|error| error.to_string());
    let parsed = read.and_then(|bytes| match bytes.is_empty() {
        true => Err("the run has not written it yet".into()),
        false => parse(&bytes).map_err(|error| error.to_string()),
    });
    parsed.map_err(|problem| format!("{} cannot be shown: {problem}.", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_name_in_the_runs_folder_and_a_bad_one_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| match made(name, folder.path(), |bytes| serde_json::from_slice::<Vec<u32>>(bytes)) {
            Ok(content) => format!("{content:?}"),
            Err(why) => why,
        };
        assert!(read("elsewhere/t.json").starts_with("The run names elsewhere/t.json, which is neither there nor in "));
        for (text, shown) in [("[1, 2]", "[1, 2]"), ("", "has not written it yet."), ("[1,", "EOF while parsing")] {
            std::fs::write(folder.path().join("t.json"), text).unwrap();
            assert!(read("elsewhere/t.json").contains(shown), "{text}: {}", read("elsewhere/t.json"));
        }
    }
}
