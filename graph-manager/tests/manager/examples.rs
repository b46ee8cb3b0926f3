//! Every example runs on the host device. Each compares its losses with an eager run to the bit.

#[path = "../../examples/by_hand.rs"]
mod by_hand;
#[path = "../../examples/graphed_callables.rs"]
mod graphed_callables;
#[path = "../../examples/one_block.rs"]
mod one_block;
#[path = "../../examples/per_layer.rs"]
mod per_layer;
#[path = "../../examples/pipeline_order.rs"]
mod pipeline_order;
#[path = "../../examples/shapes.rs"]
mod shapes;
#[path = "../../examples/skipped_update.rs"]
mod skipped_update;
#[path = "../../examples/whole_iteration.rs"]
mod whole_iteration;

#[test]
fn every_example_has_the_losses_of_its_eager_run() {
    whole_iteration::main().unwrap();
    by_hand::main().unwrap();
    graphed_callables::main().unwrap();
    per_layer::main().unwrap();
    one_block::main().unwrap();
    pipeline_order::main().unwrap();
    shapes::main().unwrap();
    skipped_update::main().unwrap();
}
