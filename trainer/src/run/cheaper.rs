//! Changes of settings that let a run that does not fit do with less memory.

use common::format::bytes;
use device::available_memory;

use crate::config::plan::RunPlan;
use crate::config::{GraphMempool, GraphScope, RecomputeGranularity, RunConfig};
use crate::error::RunError;

/// A change of one setting, and its new value in words.
type Change = fn(&mut RunConfig) -> String;

const CHANGES: [Change; 9] = [
    |config| {
        config.model.loss_pieces = Some(8);
        "model.loss_pieces = 8".into()
    },
    |config| {
        config.cuda_graph.mempool = GraphMempool::Single;
        "cuda_graph.mempool = \"single\"".into()
    },
    |config| {
        config.cuda_graph.scope = GraphScope::FullIteration;
        "cuda_graph.scope = \"full_iteration\"".into()
    },
    |config| {
        config.recompute.keep_attention = false;
        "recompute.keep_attention = false".into()
    },
    |config| {
        config.recompute.granularity = RecomputeGranularity::Selective;
        "recompute.granularity = \"selective\"".into()
    },
    |config| {
        config.recompute.granularity = RecomputeGranularity::Full;
        config.cuda_graph.mempool = GraphMempool::Single;
        "recompute.granularity = \"full\" with cuda_graph.mempool = \"single\"".into()
    },
    |config| {
        config.recompute.granularity = RecomputeGranularity::Full;
        config.recompute.mlp_tiles = 8;
        "recompute.granularity = \"full\" with recompute.mlp_tiles = 8".into()
    },
    |config| {
        config.recompute.granularity = RecomputeGranularity::Full;
        config.offload.activation_layers = config.model.layers;
        format!("recompute.granularity = \"full\" with offload.activation_layers = {}", config.model.layers)
    },
    |config| {
        (config.offload.optimizer, config.offload.optimizer_fraction) = (true, Some(1.0));
        "offload.optimizer = true with offload.optimizer_fraction = 1".into()
    },
];

/// Whether the memory of this machine has room for a rank's master weights, if all ranks divide them.
fn host_may_hold_masters(plan: &RunPlan) -> bool {
    let masters = plan.size.parameters.saturating_mul(4) / plan.parallel.mesh.ranks();
    available_memory().is_none_or(|available| masters < available)
}

/// Each change of a setting that lowers a rank's need by at least a twentieth of `needed` bytes, with the lower need:
/// the end of a sentence. Empty if there is none. `bytes_needed` rehearses a plan.
pub(crate) fn cheaper_settings(
    plan: &RunPlan,
    needed: usize,
    bytes_needed: impl Fn(&RunPlan) -> Result<usize, RunError>,
) -> String {
    let with = |change: &Change| {
        let mut config = plan.config.clone();
        let words = change(&mut config);
        // A rehearsal has an entry for each part of state that moves, so it takes long where there can be no room for it.
        if config.offload.optimizer && !plan.config.offload.optimizer && !host_may_hold_masters(plan) {
            return None;
        }
        // A change that the plan's rules refuse, or that saves too little, is no help.
        let other = RunPlan::new(config, plan.parallel.mesh.ranks()).ok()?;
        let less = bytes_needed(&other).ok().filter(|less| *less < needed - needed / 20)?;
        Some(format!("{words} needs {}", bytes(less)))
    };
    let found: Vec<String> = CHANGES.iter().filter_map(with).collect();
    if found.is_empty() { String::new() } else { format!("; {}", found.join(", ")) }
}
