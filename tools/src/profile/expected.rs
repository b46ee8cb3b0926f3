//! The expected gain of graphs, from steps without graphs alone.

use common::format::step_time;
use serde::Serialize;

use super::activity::SHORT_US;
use super::result::{RankProfile, ScopeProfile};

/// Microseconds between the end of a kernel in a graph and the start of the kernel that waits for that end. Measured on
/// an H200: one more kernel in a chain costs 0.7 us.
const NODE_US: f64 = 0.7;

/// Microseconds between the last kernel of a graph and the first of the next. Measured on an H200: graphs for each layer of
/// GPT-2 124M take 0.3 ms longer than one graph for its step of 224 launches.
const LAUNCH_US: f64 = 1.5;

/// Microseconds that the host is busy with a graph's launch. Measured: 4 to 7.
const HOST_LAUNCH_US: f64 = 6.0;

/// From this busy share on graphs gain little.
const BUSY: f64 = 0.95;

/// The busy share below which a GPU waits for the host, if there are kernels enough.
const WAITING: f64 = 0.8;

/// With so many short kernels in a step graphs are useful.
const MANY: f64 = 200.0;

/// The expected gain of a scope.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// The extent of one graph.
    pub scope: String,
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// The step without graphs, as a multiple of that.
    pub gain: f64,
}

impl Expected {
    /// The expected gain of a scope of so many launches a step. A GPU's work stays the same, its gaps become those of
    /// graphs, and the host submits launches alone. On the host device submitting is running: nothing changes.
    ///
    /// `eager` is a rank's. `exposed_ms` is the least time of any rank with nothing but transfers running. The rest of
    /// this rank's exposed time is its wait for the host of another rank.
    pub fn of(scope: &str, launches: f64, eager: &ScopeProfile, exposed_ms: f64, on_gpu: bool) -> Expected {
        let activity = &eager.activity;
        let gaps_ms = (activity.kernels * NODE_US + launches * LAUNCH_US) / 1e3;
        let busy_ms = activity.busy_ms - activity.exposed_ms + exposed_ms;
        let graphed = (busy_ms + gaps_ms).max(launches * HOST_LAUNCH_US / 1e3);
        let step_ms = if on_gpu { graphed.min(eager.step_ms) } else { eager.step_ms };
        Expected { scope: scope.into(), step_ms, gain: eager.step_ms / step_ms }
    }
}

/// The verdict on a profile, in a sentence or two: the expected gain of graphs, and the measured one. `exposed_ms` as
/// in [`Expected::of`].
pub fn verdict(rank: &RankProfile, expected: &[Expected], exposed_ms: f64, on_gpu: bool) -> String {
    let (eager, fastest) = (rank.eager(), rank.fastest());
    let waits_ms = eager.activity.exposed_ms - exposed_ms;
    let busy = ((eager.activity.busy_ms - waits_ms) / eager.step_ms).min(1.0);
    let gain = expected.iter().map(|expected| expected.gain).fold(1.0, f64::max);
    let (percent, short, all) = (busy * 100.0, eager.activity.short_kernels, eager.activity.kernels);
    let first = if !on_gpu {
        "On the host device to submit an operation is to run it, so graphs gain nothing here".to_string()
    } else if busy >= BUSY {
        format!("Without graphs the GPU is busy for {percent:.0} % of a step, so graphs gain little: {gain:.2} times")
    } else if busy < WAITING && short >= MANY {
        format!(
            "Graphs are for steps like this: {short:.0} of {all:.0} kernels are shorter than {SHORT_US:.0} us, and the GPU is \
             busy for only {percent:.0} % of a step. Expected is {gain:.2} times the speed"
        )
    } else {
        format!(
            "Without graphs the GPU is busy for {percent:.0} % of a step. Expected with graphs is {gain:.2} times the speed"
        )
    };
    if !on_gpu {
        return format!("{first}.");
    }
    format!(
        "{first}. Measured: {} is the fastest, {} instead of {} a step, {:.2} times.",
        fastest.scope,
        step_time(fastest.step_ms),
        step_time(eager.step_ms),
        eager.step_ms / fastest.step_ms
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::Memory;
    use crate::profile::Activity;

    fn scope(name: &str, step_ms: f64, busy_ms: f64, kernels: f64, short_kernels: f64) -> ScopeProfile {
        ScopeProfile {
            scope: name.into(),
            step_ms,
            host_ms: step_ms,
            launches: 0.0,
            graphs: Vec::new(),
            memory: Memory::default(),
            activity: Activity { busy_ms, kernels, short_kernels, ..Activity::default() },
        }
    }

    fn said(eager: ScopeProfile, graphed: f64) -> String {
        let expected = [Expected::of("full_iteration", 1.0, &eager, 0.0, true)];
        let graphed = scope("full_iteration", graphed, 0.0, 0.0, 0.0);
        verdict(
            &RankProfile { rank: 0, scopes: vec![eager, graphed], operations: vec![], op_memory: vec![] },
            &expected,
            0.0,
            true,
        )
    }

    #[test]
    fn a_gpu_that_waits_for_its_host_gains_and_a_busy_one_does_not() {
        let eager = scope("off", 130.0, 60.0, 2000.0, 1900.0);
        let expected = Expected::of("full_iteration", 1.0, &eager, 0.0, true);
        assert!((expected.step_ms - 61.4015).abs() < 1e-6 && (expected.gain - 2.117).abs() < 1e-3, "{expected:?}");
        let many = Expected::of("per_layer", 50_000.0, &eager, 0.0, true);
        assert_eq!((many.step_ms, many.gain), (130.0, 1.0), "never slower than expected without graphs");
        let text = said(eager, 62.0);
        assert!(
            text.contains("1900 of 2000 kernels are shorter than 50 us") && text.contains("46 % of a step"),
            "{text}"
        );
        assert!(text.contains("full_iteration is the fastest"), "{text}");
        let text = said(scope("off", 100.0, 98.0, 500.0, 100.0), 99.0);
        assert!(text.contains("busy for 98 %") && text.contains("gain little: 1.02 times"), "{text}");
        let text = said(scope("off", 100.0, 88.0, 500.0, 100.0), 90.0);
        assert!(text.contains("Expected with graphs is 1.13 times the speed"), "{text}");
    }

    #[test]
    fn the_host_device_gains_nothing() {
        let eager = scope("off", 130.0, 60.0, 2000.0, 1900.0);
        let expected = Expected::of("full_iteration", 1.0, &eager, 0.0, false);
        assert_eq!(expected.gain, 1.0);
        let graphed = scope("full_iteration", 130.0, 0.0, 0.0, 0.0);
        let rank = RankProfile { rank: 0, scopes: vec![eager, graphed], operations: vec![], op_memory: vec![] };
        let text = verdict(&rank, &[expected], 0.0, false);
        assert_eq!(text, "On the host device to submit an operation is to run it, so graphs gain nothing here.");
    }
}
