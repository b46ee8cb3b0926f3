//! The host's time for the launches of graphs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use device::Timeline;
use serde::{Deserialize, Serialize};

/// All launches of one graph. Numbers are for one step.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Launches {
    /// The graph: the region that it was captured from.
    pub graph: String,
    /// How often the graph was launched, for all regions that the graph serves.
    pub count: f64,
    /// Milliseconds of the host's thread to launch the graph; on the host device, to run the graph.
    pub host_ms: f64,
}

/// The launches in a timeline of so many steps, by graph. Those that take most of the host's time come first.
pub fn launches(timeline: &Timeline, steps: usize) -> Vec<Launches> {
    let mut sums: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for span in timeline.spans.iter().filter(|span| span.category == "launch") {
        let (count, nanoseconds) = sums.entry(span.detail("graph").unwrap_or(&span.name)).or_default();
        *count += 1;
        *nanoseconds += span.duration_ns;
    }
    let mut launches: Vec<(&str, (usize, u64))> = sums.into_iter().collect();
    launches.sort_by_key(|(_, (_, nanoseconds))| Reverse(*nanoseconds));
    let each = 1.0 / steps as f64;
    let of_graph = |(graph, (count, nanoseconds)): (&str, (usize, u64))| Launches {
        graph: graph.into(),
        count: count as f64 * each,
        host_ms: nanoseconds as f64 / 1e6 * each,
    };
    launches.into_iter().map(of_graph).collect()
}

#[cfg(test)]
mod tests {
    use super::super::activity::tests::kernel;
    use device::Span;

    use super::*;

    #[test]
    fn the_host_s_time_for_a_graph_is_that_of_its_launches_for_all_regions() {
        let launch = |region: &str, graph: &str, from, to| Span {
            category: "launch",
            details: vec![("graph", graph.to_string())],
            ..kernel(region, from, to, 1)
        };
        let forward = "forward of layer 1, microbatch 0";
        let spans = vec![
            launch("optimizer", "optimizer", 0, 5),
            launch(forward, forward, 10, 14),
            launch("forward of layer 1, microbatch 1", forward, 20, 24),
            kernel("begin/fill", 30, 90, 2),
        ];
        let launches = launches(&Timeline { began_ns: 0, spans }, 2);
        let short: Vec<_> = launches.iter().map(|of| (of.graph.as_str(), of.count, of.host_ms)).collect();
        assert_eq!(short, [(forward, 1.0, 0.004), ("optimizer", 0.5, 0.0025)]);
    }
}
