//! How a run ends: at its last step, early, or because it was asked to.

use std::mem::ManuallyDrop;
use std::path::Path;

use common::format::counted;
use launch::watch::activity::Doing;

use super::Trainer;
use crate::checkpoint::Validated;
use crate::config::plan::RunPlan;
use crate::error::RunError;
use crate::report::checks::Proof;
use crate::report::graph_report::write_graph_report;
use crate::report::reporter::Outcome;

/// The state after the step that was done last, in a checkpoint or not.
#[derive(Clone, Copy, Debug)]
pub(super) enum LastState {
    Saved,
    Unsaved,
}

/// Why a run with the given validation losses ends before the last step, if so.
pub(super) fn stops_early(plan: &RunPlan, validated: &Validated) -> Option<String> {
    let patience = plan.config.train.early_stop_patience;
    (patience > 0 && validated.since >= patience).then(|| {
        format!(
            "the validation loss was lowest after step {} and has not fallen for {}; to go on, set a larger \
             train.early_stop_patience",
            validated.best_step,
            counted(validated.since, "evaluation")
        )
    })
}

impl Trainer<'_> {
    /// Why the run ends now, if so: any rank was asked to end or cannot continue, the validation loss does not fall any
    /// more, or an exit is due. All ranks call it together. Rank 0 knows the reason.
    pub(super) fn stops(&self) -> Option<String> {
        let why = match self.report.must_stop() {
            true => Some(String::new()),
            false => stops_early(self.plan, &self.validated).or_else(|| self.exit_due()).map(|why| why + ": "),
        };
        let stops = self.group.control.any(self.group.stop.is_asked() || why.is_some());
        stops.then(|| why.unwrap_or_else(|| "asked to end: ".into()))
    }

    /// The exit that is due after this step. All ranks go by the clock of rank 0.
    fn exit_due(&self) -> Option<String> {
        let (train, step) = (&self.plan.config.train, self.progress.step);
        if train.exit_interval > 0 && step.is_multiple_of(train.exit_interval) {
            return Some(format!("train.exit_interval = {}", train.exit_interval));
        }
        let minutes = train.exit_duration_minutes.filter(|_| self.group.rank() == 0)?;
        let is_over = self.began.elapsed().as_secs_f64() >= 60.0 * minutes;
        is_over.then(|| format!("train.exit_duration_minutes = {minutes} are over"))
    }

    /// Says why the run ended before the last step, and that the state is saved, if so.
    pub(super) fn say_why_stopped(&self, why: &str, state: LastState) {
        let state = match (state, self.report.has_diverged()) {
            (LastState::Saved, _) => "saved",
            (LastState::Unsaved, true) => "not saved",
            (LastState::Unsaved, false) => "not saved, because checkpoint.dir is unset",
        };
        self.report.say(&format!("{why}stops after step {} of {}, {state}", self.progress.step, self.plan.steps));
    }

    /// Reports the last step and writes the files that are written once, at the end.
    pub(super) fn finish(mut self, graph_report: Option<&Path>) -> Result<Outcome, RunError> {
        self.group.activity.set(Doing::Ends);
        self.report_in_flight()?;
        let Trainer { group, device, stage, source, trace, samples, plan, verified, validated, mut report, .. } = self;
        group.activity.during(Doing::Writes, || {
            report.close()?;
            match graph_report {
                Some(path) => write_graph_report(stage, group, &plan.parallel.mesh, path),
                None => Ok(()),
            }
        })?;
        if let Some(line) = trace.finish(device)? {
            report.say(&line);
        }
        if let Some(line) = verified.words() {
            report.say(&line);
        }
        if let (true, Some(dir)) =
            (plan.config.checkpoint.save_best && validated.best.is_finite(), &plan.config.checkpoint.dir)
        {
            report.say(&format!(
                "lowest validation loss {:.4} after step {}: {}",
                validated.best,
                validated.best_step,
                Path::new(dir).join("best").display()
            ));
        }
        if let Some(checked) = device.checked() {
            let graphs = stage.graphs().report().graphs;
            let nodes = graphs.iter().map(|graph| graph.nodes.len() as u64).sum();
            let (graphs, compared) = ([graphs.len() as u64, nodes], stage.graphs().compared_replays());
            let proof = Proof { graphs, compared, checked }.of_all_ranks(|number| group.control.sum(number));
            report.say(&proof.words(plan.parallel.mesh.ranks()));
        }
        let diverged = !report.last_loss.is_finite() || report.has_diverged();
        let outcome = Outcome {
            loss: report.last_loss,
            finite: !group.control.any(diverged),
            validation_loss: report.last_validation,
            floor: source.floor(),
        };
        report.finish(&outcome);
        drop(ManuallyDrop::into_inner(samples));
        Ok(outcome)
    }
}
