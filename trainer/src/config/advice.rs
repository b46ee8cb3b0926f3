//! Advice about settings that are right but slow where the run is.

use launch::RankEnv;
use parallel::Axis;

use crate::config::GraphScope;
use crate::config::plan::RunPlan;

/// What would make the run faster, if anything is known to.
pub fn notice(plan: &RunPlan, env: &RankEnv) -> Option<String> {
    let (graph, grid) = (&plan.config.cuda_graph, &plan.parallel.grid);
    let per_layer = graph.enable && graph.scope == GraphScope::PerLayer;
    let (tensor, data) = (grid.size(Axis::Tensor), grid.size(Axis::Data));
    // Ranks along these axes are neighbours, and nodes have neighbours.
    let between_nodes = data > 1 && tensor * data > env.local_size;
    (per_layer && between_nodes && grid.size(Axis::Pipeline) > 1).then(|| {
        "with graphs per layer each stage of the pipeline waits for transfers between its data-parallel ranks before it passes \
         results on, which takes long between nodes. --cuda-graph-scope full_iteration does not wait"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    #[test]
    fn graphs_per_layer_are_advised_against_where_the_data_parallel_ranks_of_a_stage_are_in_several_nodes() {
        let told = |settings: &[(&str, &str)], local_size: usize| {
            let mut layers = Layers::default();
            settings.iter().for_each(|(key, value)| layers.set(key, value, "test").unwrap());
            let plan = RunPlan::new(layers.resolve(), 4).unwrap();
            notice(&plan, &RankEnv { local_size, ..RankEnv::local(4) }).is_some()
        };
        let on = [("cuda_graph.enable", "true"), ("parallel.pipeline", "2"), ("train.global_batch_size", "8")];
        assert!(told(&on, 1));
        // Each stage is in one node.
        assert!(!told(&on, 2) && !told(&on, 4));
        // Without graphs, without a pipeline, in one graph.
        assert!(!told(&on[1..], 1));
        assert!(!told(&[on[0], on[2]], 1));
        assert!(!told(&[on[0], on[1], on[2], ("cuda_graph.scope", "full_iteration")], 1));
    }
}
