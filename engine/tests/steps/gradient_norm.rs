//! When the squares of gradients are summed. `same_bits.rs` shows that the norm has the same bits in every setting.

use engine::graph_options::{GraphOptions, Scope};
use graph_manager::GraphReport;

use crate::models::{Kind, Run};

/// The graphs of three steps of a model with a bucket for each layer.
fn graphs(scope: Scope) -> Vec<GraphReport> {
    let graphs = GraphOptions { scope, ..GraphOptions::default() };
    let run = Run { steps: 3, ..Run::new(Kind::Gpt, 2, graphs) };
    let (_, mut stage) = run.train_on(&run.device());
    stage.graphs().report().graphs
}

#[test]
fn in_one_graph_the_squares_of_a_layers_gradients_are_summed_beside_the_backward_of_the_layer_before() {
    let graph = graphs(Scope::FullIteration).remove(0);
    let squares: Vec<usize> = (0..graph.nodes.len()).filter(|&at| graph.nodes[at].ends_with("/square_sum")).collect();
    let region = |at: usize| graph.nodes[at].rsplit_once('/').unwrap().0;
    // Those of the two blocks in the last microbatch, and of the embedding, after which no backward comes.
    let regions: Vec<&str> = squares.iter().map(|&at| region(at)).collect();
    assert!(
        regions[0].ends_with("backward of layer 1, microbatch 1")
            && regions[1].ends_with("backward of layer 0, microbatch 1")
            && regions[2..].iter().all(|region| region.ends_with("optimizer")),
        "{regions:?}"
    );
    let after = graph.waits_for(&squares[..1]);
    let beside = (0..graph.nodes.len()).filter(|&at| region(at) == regions[0] && at != squares[0] && !after[at]);
    assert!(beside.count() > 3, "{:?}", graph.nodes);
    let clip = graph.nodes.iter().position(|node| node.ends_with("/clip_scale")).unwrap();
    assert!(squares.iter().all(|&at| graph.waits_for(&[at])[clip]), "{:?}", graph.nodes);
}

#[test]
fn with_graphs_per_layer_the_update_sums_all_squares() {
    for graph in graphs(Scope::PerLayer) {
        let squares = graph.nodes.iter().filter(|node| node.ends_with("square_sum")).count();
        assert!(squares == 0 || graph.name.starts_with("optimizer"), "{}: {:?}", graph.name, graph.nodes);
    }
}
