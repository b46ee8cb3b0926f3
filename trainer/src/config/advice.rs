//! Advice about settings that are valid, but slow on the run's machines or for benchmarks alone.

use std::collections::BTreeSet;

use common::format::counted;
use launch::RankEnv;
use parallel::Axis;

use crate::config::GraphScope;
use crate::config::plan::RunPlan;

/// The advice about a run.
pub fn notices(plan: &RunPlan, env: &RankEnv) -> impl Iterator<Item = String> {
    faster(plan, env).into_iter().chain(forced_balance(plan))
}

/// The rates of fine-tuning that are taken because nothing in `given` sets them; `None` if there are none.
pub fn fine_tuning(plan: &RunPlan, given: &BTreeSet<&str>) -> Option<String> {
    let rate = &plan.optimizer.learning_rate;
    let of_lr = || {
        let trained = if plan.config.model.lora_rank > 0 { "adapters" } else { "all weights" };
        format!("optimizer.lr = {:e} for {trained} (--lr)", rate.peak)
    };
    let of_warmup = || {
        let steps = counted(rate.warmup, "step");
        format!("a warm-up of {steps}, 3 % of the run (--lr-warmup-steps)")
    };
    let lr = (!given.contains("optimizer.lr")).then(of_lr);
    let warmup = (!given.contains("optimizer.warmup_steps")).then(of_warmup);
    let taken: Vec<String> = lr.into_iter().chain(warmup).collect();
    (plan.config.fine_tunes() && !taken.is_empty()).then(|| format!("fine-tuning takes {}", taken.join(" and ")))
}

/// Tells that routers choose nothing.
fn forced_balance(plan: &RunPlan) -> Option<String> {
    let forced = plan.config.model.experts > 0 && plan.config.train.force_expert_balance;
    forced.then(|| {
        "train.force_expert_balance = true: tokens take experts in turn, whatever the routers say. This is for benchmarks; the \
         model learns nothing of use"
            .into()
    })
}

/// Advice to make the run faster; `None` if nothing is known to help.
fn faster(plan: &RunPlan, env: &RankEnv) -> Option<String> {
    let (graph, mesh) = (&plan.config.cuda_graph, &plan.parallel.mesh);
    let in_parts = graph.enable && matches!(graph.scope, GraphScope::PerLayer | GraphScope::PerChunk);
    let (tensor, data) = (mesh.size(Axis::Tensor), mesh.size(Axis::Tokens));
    // Ranks along these axes are neighbours, and nodes have neighbours.
    let between_nodes = data > 1 && tensor * data > env.local_size;
    (in_parts && between_nodes && mesh.size(Axis::Pipeline) > 1).then(|| {
        format!(
            "with cuda_graph.scope = \"{}\" each stage of the pipeline waits for transfers between its data-parallel \
             ranks before it passes results on, which takes long between nodes. --cuda-graph-scope full_iteration does \
             not wait",
            graph.scope
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn graphs_of_parts_are_advised_against_where_the_data_parallel_ranks_of_a_stage_are_in_several_nodes() {
        let told = |settings: &[(&str, &str)], local_size: usize| {
            let mut sources = ConfigSources::default();
            settings.iter().for_each(|(key, value)| sources.set(key, value, "test").unwrap());
            let plan = RunPlan::new(sources.resolve(), 4).unwrap();
            faster(&plan, &RankEnv { local_size, ..RankEnv::local(4) }).is_some()
        };
        let on = [("cuda_graph.enable", "true"), ("parallel.pipeline", "2"), ("train.global_batch_size", "8")];
        assert!(told(&on, 1));
        // Each stage is in one node.
        assert!(!told(&on, 2) && !told(&on, 4));
        // Without graphs, without a pipeline, in one graph.
        assert!(!told(&on[1..], 1));
        assert!(!told(&[on[0], on[2]], 1));
        assert!(told(&[on[0], on[1], on[2], ("cuda_graph.scope", "per_chunk")], 1));
        assert!(!told(&[on[0], on[1], on[2], ("cuda_graph.scope", "full_iteration")], 1));
    }

    #[test]
    fn loads_that_are_forced_to_be_equal_are_told() {
        let told = |text: &str| {
            let mut sources = ConfigSources::default();
            sources.read_text(text, "test").unwrap();
            let plan = RunPlan::new(sources.resolve(), 1).unwrap();
            notices(&plan, &RankEnv::local(1)).collect::<Vec<String>>()
        };
        let model = "[model]\nexperts = 4\nactivation = \"swiglu\"\nbias = false\n";
        assert_eq!(told(model), [""; 0]);
        let lines = told(&format!("{model}[train]\nforce_expert_balance = true"));
        assert!(lines.len() == 1 && lines[0].contains("for benchmarks"), "{lines:?}");
    }
}
