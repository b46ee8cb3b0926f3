//! A step's list, bound to its plan, has the same results as the step.

use device::DType;
use engine::regions::Mode;

use crate::digests::cases::{Case, cases, settings};
use crate::models::Run;

/// The weights after a step, and after the same step once more: by the step, or by its list.
fn weights(run: Run, by_list: bool) -> Vec<u32> {
    let run = Run { steps: 1, ..run };
    let device = run.device();
    let (_, mut stage) = run.train_on(&device);
    if by_list {
        // One stream, in the order of the list: an operation of any queue is done before the next one begins.
        let stream = device.stream("list");
        let submit = |entry: graph_manager::ListedEntry| entry.op.map_or(Ok(()), |op| stream.submit(op));
        let mut submitted = Ok(());
        let each = |entry| submitted = submitted.clone().and_then(|()| submit(entry));
        stage.graphs().bound_list(Mode::Train.into(), run.microbatches, each).unwrap();
        submitted.unwrap();
    } else {
        stage.train_step(run.settings(0), None).unwrap().wait().unwrap();
    }
    // A frozen weight with codes has values in bf16.
    let masters = stage.params().iter().map(|(_, param)| param.master).filter(|master| master.dtype == DType::F32);
    masters.flat_map(|master| device.download::<f32>(&master).unwrap()).map(f32::to_bits).collect()
}

/// Stages wait for each other, so one stream cannot do their transfers in turn.
fn is_one_stage(case: &Case) -> bool {
    case.layout.stages == 1
}

#[test]
fn a_list_bound_to_its_plan_and_submitted_in_order_leaves_the_weights_of_its_step() {
    for case in cases().iter().filter(|case| is_one_stage(case)) {
        for setting in [settings()[1], settings()[3], settings()[5]] {
            let [stepped, listed] =
                [false, true].map(|by_list| case.layout.on_ranks(|| case.run(setting), |run| weights(run, by_list)));
            assert_eq!(stepped, listed, "{}, {setting}", case.name);
        }
    }
}
