//! The operations that take most of a step, and the nearness of each to the GPU's limits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use device::Timeline;
use serde::{Deserialize, Serialize};

use crate::page::trace::is_transfer;
use trainer::report::gpu_peak::Peaks;

/// All operations of one name, shape and type. Counts and times are for one step.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Total {
    /// The operation, such as `gemm`.
    pub name: String,
    /// Rows, columns and inner size of a product; otherwise the shape of the output.
    pub shape: String,
    /// The type of a product's factors. Empty for other operations.
    #[serde(rename = "type")]
    pub dtype: String,
    /// How many ran.
    pub count: f64,
    /// Milliseconds of all such operations. Operations on several streams run at the same time, so the sum may exceed a
    /// step.
    pub total_ms: f64,
    /// Milliseconds of one.
    pub mean_ms: f64,
    /// Milliseconds of the host's thread for all such operations: to submit them; on the host device, to run them.
    pub host_ms: f64,
    /// Share of the time of all operations.
    pub share: f64,
    /// The least time that the data sheet's peaks allow for the operations' FLOPs and bytes, over the time taken. `None`
    /// for GPUs with unknown peaks, and for transfers.
    pub of_limit: Option<f64>,
    /// Whether FLOPs set that limit, and not bytes.
    pub limited_by_flops: bool,
}

#[derive(Default)]
struct Sum {
    submissions: BTreeSet<u64>,
    nanoseconds: u64,
    host_ns: u64,
    flops: f64,
    bytes: f64,
}

/// The totals of a timeline of so many steps, the largest first. `tf32`: products of f32 are rounded to TF32.
pub fn totals(timeline: &Timeline, steps: usize, peaks: Option<&Peaks>, tf32: bool) -> Vec<Total> {
    let mut sums: BTreeMap<(&str, &str, &str), Sum> = BTreeMap::new();
    for span in timeline.spans.iter().filter(|span| span.is_work() || span.is_submission()) {
        let name = span.name.rsplit('/').next().unwrap_or(&span.name);
        let text = |name| span.detail(name).unwrap_or_default();
        let sum = sums.entry((name, text("shape"), text("type"))).or_default();
        sum.nanoseconds += if span.is_work() { span.duration_ns } else { 0 };
        sum.host_ns += if span.is_submission() { span.duration_ns } else { 0 };
        // An operation of several kernels is counted once.
        if sum.submissions.insert(span.submission) {
            let number = |name| text(name).parse().unwrap_or(0.0);
            sum.flops += number("flops");
            sum.bytes += number("bytes");
        }
    }
    let all: u64 = sums.values().map(|sum| sum.nanoseconds).sum();
    let total = |((name, shape, dtype), sum): (&(&str, &str, &str), &Sum)| {
        let milliseconds = sum.nanoseconds as f64 / 1e6;
        let limit = peaks.and_then(|peaks| Some((peaks.flops_ms(sum.flops, dtype, tf32)?, peaks.bytes_ms(sum.bytes))));
        // An operation without work of the device, such as a mark, has no limit.
        let limit = limit.filter(|_| sum.nanoseconds > 0);
        let of_limit = limit.map(|(flops, bytes)| flops.max(bytes) / milliseconds).filter(|share| *share > 0.0);
        Total {
            name: name.to_string(),
            shape: shape.to_string(),
            dtype: dtype.to_string(),
            count: sum.submissions.len() as f64 / steps as f64,
            total_ms: milliseconds / steps as f64,
            mean_ms: milliseconds / sum.submissions.len() as f64,
            host_ms: sum.host_ns as f64 / 1e6 / steps as f64,
            share: sum.nanoseconds as f64 / all.max(1) as f64,
            of_limit: of_limit.filter(|_| !is_transfer(name, |_| None)),
            limited_by_flops: limit.is_some_and(|(flops, bytes)| flops > bytes),
        }
    };
    let mut totals: Vec<Total> = sums.iter().map(total).collect();
    totals.sort_by_key(|total| Reverse((total.total_ms * 1e6) as u64));
    totals
}

#[cfg(test)]
mod tests {
    use super::super::activity::tests::kernel;
    use device::Span;

    use super::*;

    #[test]
    fn an_operation_of_two_kernels_counts_once_and_its_limit_is_the_larger_of_flops_and_bytes() {
        let details = vec![
            ("shape", "8 x 8 x 8".to_string()),
            ("type", "bf16".into()),
            ("flops", "4e6".into()),
            ("bytes", "1e3".into()),
        ];
        let product = |from, to, submission| Span {
            details: details.clone(),
            ..kernel("forward of layer 1/gemm", from, to, submission)
        };
        let submit = |from, to, submission| Span { category: "submit", ..product(from, to, submission) };
        let spans = vec![
            submit(0, 7, 1),
            product(0, 3, 1),
            product(3, 5, 1),
            submit(7, 8, 2),
            product(10, 15, 2),
            kernel("begin/fill", 20, 21, 3),
            Span { category: "submit", ..kernel("begin/mark", 8, 10, 4) },
        ];
        // 1e12 FLOP/s and 1e9 bytes/s: 4 us and 1 us.
        let peaks = Peaks { bf16_tflops: 1.0, gb_per_s: 1.0 };
        let totals = totals(&Timeline { began_ns: 0, spans }, 1, Some(&peaks), false);
        assert_eq!((totals[0].name.as_str(), totals[0].count, totals[0].total_ms), ("gemm", 2.0, 0.01));
        assert_eq!((totals[0].mean_ms, totals[0].of_limit, totals[0].limited_by_flops), (0.005, Some(0.8), true));
        assert_eq!((totals[1].name.as_str(), totals[1].of_limit), ("fill", None));
        assert!((totals[0].share - 10.0 / 11.0).abs() < 1e-9);
        assert_eq!(totals.iter().map(|total| total.host_ms).collect::<Vec<_>>(), [0.008, 0.0, 0.002]);
        let mark = &totals[2];
        assert_eq!((mark.name.as_str(), mark.count, mark.total_ms, mark.of_limit), ("mark", 1.0, 0.0, None));
    }

    #[test]
    fn on_the_host_device_the_time_of_an_operation_is_the_host_s() {
        let spans = vec![Span { category: "operation", ..kernel("begin/fill", 20, 25, 1) }];
        let totals = totals(&Timeline { began_ns: 0, spans }, 1, None, false);
        assert_eq!((totals[0].total_ms, totals[0].host_ms), (0.005, 0.005));
    }
}
