//! The timeline of a few steps, written to `logging.trace`.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use common::UserError;
use common::files::create_file;
use common::format::counted;
use device::Device;
use engine::graph_options::GraphOptions;
use launch::watch::activity::{Activity, Doing};

use crate::config::LoggingConfig;
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::report::summary::describe_device;
use crate::told::tell;

/// The timeline of a run, if one is asked for.
pub struct StepTrace {
    target: Option<Target>,
    state: State,
    /// Why the timeline's file was not written.
    write_error: Option<RunError>,
}

/// The file of the timeline.
struct Target {
    path: PathBuf,
    rank: usize,
    /// The rank and the rank's device, in words.
    process: String,
    steps: usize,
    /// Tells the watch that the timeline is being written. This may take long.
    activity: Activity,
}

enum State {
    /// Steps to wait for before the timeline begins.
    Waiting(usize),
    /// Steps of the timeline that are left.
    Running(usize),
    Written,
}

impl StepTrace {
    /// Prepares the timeline, if one is asked for. Call it before the first graph is captured. The process starts at step
    /// `first_step` of the run. [`check_writable`](crate::run::run_folder::check_writable) has checked that the file can be
    /// written.
    ///
    /// # Errors
    /// CUPTI is missing on a GPU.
    pub fn prepare(
        logging: &LoggingConfig,
        graphs: &GraphOptions,
        group: &ProcessGroup,
        device: &Device,
        first_step: usize,
    ) -> Result<StepTrace, UserError> {
        let Some(file) = &logging.trace else {
            return Ok(StepTrace { target: None, state: State::Written, write_error: None });
        };
        let path = of_rank(Path::new(file), group.rank());
        device.prepare_timeline().map_err(|error| {
            let text = error.to_string();
            let (what, fix) = text.split_once(". Fix: ").unwrap_or((&text, "leave out --trace"));
            UserError::new(format!("logging.trace: {what}"), "times on a GPU come from CUPTI", fix)
        })?;
        let first_replay = if graphs.enable { graphs.warmup_steps + 1 } else { 1 };
        let after = logging.trace_after.map_or(first_replay, |step| step.saturating_sub(first_step));
        let target = Target {
            path,
            rank: group.rank(),
            process: format!("rank {}, {}", group.rank(), describe_device(device, group)),
            steps: logging.trace_steps,
            activity: group.activity.clone(),
        };
        Ok(StepTrace { target: Some(target), state: State::Waiting(after), write_error: None })
    }

    /// Starts the timeline before the timeline's first step.
    ///
    /// # Errors
    /// Device errors.
    pub fn before_step(&mut self, device: &Device) -> Result<(), RunError> {
        match (&self.target, &mut self.state) {
            (Some(target), State::Waiting(0)) => {
                device.begin_timeline()?;
                self.state = State::Running(target.steps);
            }
            (_, State::Waiting(steps)) => *steps -= 1,
            _ => {}
        }
        Ok(())
    }

    /// Ends and writes the timeline after the timeline's last step. If the file cannot be written, the user is warned,
    /// and the run ends with the error only after its last step.
    ///
    /// # Errors
    /// Device errors.
    pub fn after_step(&mut self, device: &Device) -> Result<(), RunError> {
        let State::Running(steps) = &mut self.state else { return Ok(()) };
        *steps -= 1;
        if *steps == 0 { self.write(device) } else { Ok(()) }
    }

    /// Ends and writes an unfinished timeline at the end of the run. Returns a line about the timeline, if one was asked for.
    ///
    /// # Errors
    /// As [`StepTrace::after_step`]; a file that could not be written.
    pub fn finish(mut self, device: &Device) -> Result<Option<String>, RunError> {
        if matches!(self.state, State::Running(_)) {
            self.write(device)?;
        }
        self.write_error.take().map_or(Ok(()), Err)?;
        let Some(target) = &self.target else { return Ok(None) };
        Ok(Some(match self.state {
            State::Waiting(steps) => {
                let steps = counted(steps + 1, "step");
                format!("no timeline: the run ended {steps} before its first. Fix: a smaller --trace-after")
            }
            _ => format!("timeline: {}, for ui.perfetto.dev", target.path.display()),
        }))
    }

    fn write(&mut self, device: &Device) -> Result<(), RunError> {
        self.state = State::Written;
        let Some(target) = &self.target else { return Ok(()) };
        let timeline = device.end_timeline()?;
        let written = target.activity.during(Doing::Writes, || {
            let file = create_file(&target.path)?;
            timeline.write_chrome(target.rank, &target.process, BufWriter::new(file))
        });
        if let Err(error) = written {
            let what = format!("the timeline, {}", target.path.display());
            tell(&format!("WARNING: {what}, was not written: {error}. The run continues."));
            self.write_error = Some(RunError::File { what, error });
        }
        Ok(())
    }
}

/// The file of a rank: `trace.json` for rank 0, `trace-rank1.json` for rank 1.
pub fn of_rank(path: &Path, rank: usize) -> PathBuf {
    if rank == 0 {
        return path.into();
    }
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, extension) = (text(path.file_stem()), text(path.extension()));
    let dot = if extension.is_empty() { "" } else { "." };
    path.with_file_name(format!("{stem}-rank{rank}{dot}{extension}"))
}
