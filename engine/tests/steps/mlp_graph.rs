//! The graph of an MLP's iteration. It is so short that every kernel on its longest path counts.

use engine::graph_options::{GraphOptions, Scope};
use graph_manager::GraphReport;

use crate::models::{Kind, Run};

fn whole_iteration(microbatches: usize, dropout: f32) -> GraphReport {
    let graphs = GraphOptions { scope: Scope::FullIteration, ..GraphOptions::default() };
    let run = Run { steps: 3, dropout, ..Run::new(Kind::Mlp, microbatches, graphs) };
    let (_, mut stage) = run.train_on(&run.device());
    stage.graphs().report().graphs.remove(0)
}

#[test]
fn samples_are_read_where_they_are() {
    let graph = whole_iteration(3, 0.1);
    assert!(!graph.nodes.iter().any(|node| node.contains("copy")), "{:?}", graph.nodes);
}

#[test]
fn samples_have_a_record_only_for_dropout() {
    for (dropout, records) in [(0.1, 3), (0.0, 0)] {
        let graph = whole_iteration(3, dropout);
        let found = graph.nodes.iter().filter(|node| node.ends_with("/write_sample_record")).count();
        assert_eq!(found, records, "dropout {dropout}: {:?}", graph.nodes);
    }
}

#[test]
fn no_backward_waits_for_the_sum_of_losses_or_for_the_weight_gradients_of_the_layers_after_it() {
    let graph = whole_iteration(2, 0.1);
    for microbatch in 0..2 {
        let of_layer = |layer: usize| format!("backward of layer {layer}, microbatch {microbatch}/");
        let positions = |layer: usize, what: &str| -> Vec<usize> {
            let name = of_layer(layer) + what;
            (0..graph.nodes.len()).filter(|&at| graph.nodes[at] == name).collect()
        };
        // A layer submits its weight gradient before its input gradient.
        let weight_gradients = [positions(1, "gemm")[0], positions(2, "gemm")[0]];
        let others: Vec<usize> = weight_gradients.into_iter().chain(positions(3, "sum_into")).collect();
        assert_eq!(others.len(), 3, "{:?}", graph.nodes);
        let after = graph.waits_for(&others);
        for layer in 0..2 {
            let [at] = positions(layer, "relu_dropout_backward")[..] else { panic!("{:?}", graph.nodes) };
            assert!(!after[at], "{} waits", graph.nodes[at]);
        }
        let update = graph.nodes.iter().position(|node| node.contains("/sgd") || node.contains("/adamw")).unwrap();
        assert!(others.iter().all(|&at| graph.waits_for(&[at])[update]), "{:?}", graph.nodes);
        if microbatch == 0 {
            // The memory of the tensors that weight gradients read is used again.
            let next =
                graph.nodes.iter().position(|node| node.contains("forward of layer 1, microbatch 1/gemm")).unwrap();
            assert!(others.iter().all(|&at| graph.waits_for(&[at])[next]), "{:?}", graph.nodes);
        }
    }
}
