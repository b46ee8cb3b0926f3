//! Changes of settings that let a run that does not fit do with less memory.

use common::format::bytes;
use device::available_memory;
use toml::{Table, Value};

use crate::config::RunConfig;
use crate::config::plan::RunPlan;
use crate::error::RunError;

/// The settings of each change, in TOML.
fn changes(layers: usize) -> [String; 9] {
    [
        "model.loss_pieces = 8",
        "cuda_graph.mempool = \"single\"",
        "cuda_graph.scope = \"full_iteration\"",
        "recompute.keep_attention = false",
        "recompute.granularity = \"selective\"",
        "recompute.granularity = \"full\"\ncuda_graph.mempool = \"single\"",
        "recompute.granularity = \"full\"\nrecompute.mlp_tiles = 8",
        format!("recompute.granularity = \"full\"\noffload.activation_layers = {layers}").as_str(),
        "offload.optimizer = true\noffload.optimizer_fraction = 1.0",
    ]
    .map(String::from)
}

/// The same configuration with the given settings.
fn changed(config: &RunConfig, settings: &str) -> Option<RunConfig> {
    let mut all = Table::try_from(config).ok()?;
    for (section, values) in settings.parse::<Table>().ok()? {
        if let (Some(Value::Table(all)), Value::Table(values)) = (all.get_mut(&section), values) {
            all.extend(values);
        }
    }
    all.try_into().ok()
}

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
    let need = |settings: String| {
        let config = changed(&plan.config, &settings)?;
        // A rehearsal has an entry for each part of state that moves, so it takes long where there can be no room for it.
        if config.offload.optimizer && !plan.config.offload.optimizer && !host_may_hold_masters(plan) {
            return None;
        }
        // A change that the plan's rules refuse, or that saves too little, is no help.
        let other = RunPlan::new(config, plan.parallel.mesh.ranks()).ok()?;
        let less = bytes_needed(&other).ok().filter(|less| *less < needed - needed / 20)?;
        Some(format!("{} needs {}", settings.replace('\n', " with "), bytes(less)))
    };
    let found: Vec<String> = changes(plan.config.model.layers).into_iter().filter_map(need).collect();
    if found.is_empty() { String::new() } else { format!("; {}", found.join(", ")) }
}
