//! The work of a GPU in a step, from a timeline: its busy time, its kernels, and its waits.

use device::{Span, Timeline};
use serde::{Deserialize, Serialize};

use crate::page::trace::is_transfer;

/// Upper ends of a histogram's bins, microseconds. The last bin has no end.
pub const BINS_US: [f64; 9] = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// A kernel is short below this, microseconds. Without graphs the host needs about 5 to 20 us for each.
pub const SHORT_US: f64 = 50.0;

/// How many times are in each of the bins that end at [`BINS_US`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Histogram(pub Vec<usize>);

impl Histogram {
    fn of(times_us: impl Iterator<Item = f64>) -> Histogram {
        let mut bins = vec![0; BINS_US.len() + 1];
        for time in times_us {
            bins[BINS_US.partition_point(|end| *end <= time)] += 1;
        }
        Histogram(bins)
    }

    /// The range of each bin, in words.
    pub fn labels() -> Vec<String> {
        let mut labels = vec![format!("< {} us", BINS_US[0])];
        labels.extend(BINS_US.windows(2).map(|ends| format!("{} to {} us", ends[0], ends[1])));
        labels.push(format!(">= {} us", BINS_US[BINS_US.len() - 1]));
        labels
    }
}

/// A device's work in a timeline of some steps. Numbers are for one step.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Activity {
    /// Milliseconds with some kernel, copy or transfer running.
    pub busy_ms: f64,
    /// Kernels; operations on the host device.
    pub kernels: f64,
    /// Kernels shorter than 50 us.
    pub short_kernels: f64,
    /// Milliseconds with a transfer between ranks, or to or from the host's memory, under way.
    pub transfers_ms: f64,
    /// Milliseconds with nothing but transfers under way.
    pub exposed_ms: f64,
    /// Kernels of all steps by duration.
    pub kernel_times: Histogram,
    /// Idle times between two kernels, of all steps.
    pub gaps: Histogram,
}

impl Activity {
    /// Reads a timeline of so many steps.
    pub fn of(timeline: &Timeline, steps: usize) -> Activity {
        let interval = |span: &Span| (span.start_ns, span.start_ns + span.duration_ns);
        let work: Vec<&Span> = timeline.spans.iter().filter(|span| span.is_work()).collect();
        let busy = union(work.iter().map(|span| interval(span)).collect());
        let transfers = union(work.iter().filter(|span| is_transfer_span(span)).map(|span| interval(span)).collect());
        let others = union(work.iter().filter(|span| !is_transfer_span(span)).map(|span| interval(span)).collect());
        let kernels: Vec<f64> =
            work.iter().filter(|span| span.is_kernel()).map(|span| span.duration_ns as f64 / 1e3).collect();
        let each = 1.0 / steps.max(1) as f64;
        let milliseconds = |ns: u64| ns as f64 / 1e6 * each;
        Activity {
            busy_ms: milliseconds(total(&busy)),
            kernels: kernels.len() as f64 * each,
            short_kernels: kernels.iter().filter(|time| **time < SHORT_US).count() as f64 * each,
            transfers_ms: milliseconds(total(&transfers)),
            exposed_ms: milliseconds(total(&busy) - total(&others)),
            gaps: Histogram::of(busy.windows(2).map(|pair| (pair[1].0 - pair[0].1) as f64 / 1e3)),
            kernel_times: Histogram::of(kernels.into_iter()),
        }
    }
}

fn is_transfer_span(span: &Span) -> bool {
    is_transfer(&span.name, |detail| span.detail(detail))
}

/// The times with at least one of the intervals under way, from and to in nanoseconds.
fn union(mut intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    intervals.sort_unstable();
    let mut union: Vec<(u64, u64)> = Vec::new();
    for (from, to) in intervals {
        match union.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => union.push((from, to)),
        }
    }
    union
}

fn total(union: &[(u64, u64)]) -> u64 {
    union.iter().map(|(from, to)| to - from).sum()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A kernel on a stream, in microseconds.
    pub(in crate::profile) fn kernel(name: &str, from: u64, to: u64, submission: u64) -> Span {
        let (start_ns, duration_ns) = (from * 1000, (to - from) * 1000);
        let row = "stream compute".into();
        Span { row, name: name.into(), category: "kernel", start_ns, duration_ns, details: Vec::new(), submission }
    }

    #[test]
    fn work_that_overlaps_is_busy_once_and_a_transfer_is_exposed_where_nothing_else_runs() {
        let host = Span { category: "call", row: "host".into(), ..kernel("cuLaunchKernel", 0, 900, 0) };
        let spans = vec![
            kernel("forward of layer 1, microbatch 0/gemm", 10, 110, 1),
            kernel("forward of layer 1, microbatch 0/all_reduce", 100, 130, 2),
            kernel("forward of layer 1, microbatch 0/norm", 120, 125, 3),
            kernel("forward of layer 2, microbatch 0/gemm", 133, 233, 4),
            Span {
                details: vec![("way", "to the host".into())],
                ..kernel("forward of layer 2, microbatch 0/copy", 230, 243, 5)
            },
            host,
        ];
        let activity = Activity::of(&Timeline { began_ns: 0, spans }, 1);
        assert_eq!((activity.busy_ms, activity.kernels, activity.short_kernels), (0.23, 5.0, 3.0));
        assert_eq!((activity.transfers_ms, activity.exposed_ms), (0.043, 0.025));
        assert_eq!(activity.gaps.0, [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(activity.kernel_times.0, [0, 0, 1, 1, 1, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn a_time_at_the_end_of_a_bin_is_in_the_next() {
        let times = Histogram::of([1.9, 2.0, 999.0, 1000.0].into_iter());
        assert_eq!(times.0, [1, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(Histogram::labels().len(), times.0.len());
    }
}
