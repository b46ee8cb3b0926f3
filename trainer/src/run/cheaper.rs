//! Changes of settings that let a run that does not fit do with less memory.

use common::format::bytes;

use crate::config::plan::RunPlan;
use crate::config::{GraphMempool, GraphScope, RecomputeGranularity, RunConfig};
use crate::error::RunError;

/// One setting changed.
type Change = (&'static str, fn(&mut RunConfig));

const CHANGES: [Change; 7] = [
    ("model.loss_pieces = 8", |config| config.model.loss_pieces = Some(8)),
    ("cuda_graph.mempool = \"single\"", |config| config.cuda_graph.mempool = GraphMempool::Single),
    ("cuda_graph.scope = \"full_iteration\"", |config| config.cuda_graph.scope = GraphScope::FullIteration),
    ("recompute.keep_attention = false", |config| config.recompute.keep_attention = false),
    ("recompute.granularity = \"selective\"", |config| {
        config.recompute.granularity = RecomputeGranularity::Selective;
    }),
    ("recompute.granularity = \"full\" with cuda_graph.mempool = \"single\"", |config| {
        config.recompute.granularity = RecomputeGranularity::Full;
        config.cuda_graph.mempool = GraphMempool::Single;
    }),
    ("recompute.granularity = \"full\" with offload.activation_layers = 999", |config| {
        config.recompute.granularity = RecomputeGranularity::Full;
        config.offload.activation_layers = 999;
    }),
];

/// Each change of a setting that lowers a rank's need by at least a twentieth of `needed` bytes, with the lower need:
/// the end of a sentence. Empty if there is none. `bytes_needed` rehearses a plan.
pub(crate) fn cheaper_settings(
    plan: &RunPlan,
    needed: usize,
    bytes_needed: impl Fn(&RunPlan) -> Result<usize, RunError>,
) -> String {
    let with = |(words, change): &Change| {
        let mut config = plan.config.clone();
        change(&mut config);
        // A change that the plan's rules refuse, or that saves too little, is no help.
        let other = RunPlan::new(config, plan.parallel.mesh.ranks()).ok()?;
        let less = bytes_needed(&other).ok().filter(|less| *less < needed - needed / 20)?;
        Some(format!("{words} needs {}", bytes(less)))
    };
    let found: Vec<String> = CHANGES.iter().filter_map(with).collect();
    if found.is_empty() { String::new() } else { format!("; {}", found.join(", ")) }
}
