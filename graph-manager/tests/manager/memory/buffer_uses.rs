//! The memory plan that a report has.

use std::collections::HashMap;

use device::ALIGNMENT;
use graph_manager::{BufferUse, ManagerOptions, Mempool};

use crate::toy::{LAYERS, Mode, ToyPolicy, WIDTH, toy_with};

#[test]
fn buffers_that_share_bytes_are_in_use_at_different_times_and_fill_the_areas_that_are_planned() {
    for (mempool, splits_backward, ahead) in [
        (Mempool::PerMicrobatch, false, 0),
        (Mempool::PerMicrobatch, false, 2),
        (Mempool::PerMicrobatch, true, 1),
        (Mempool::Single, false, 2),
    ] {
        let toy = toy_with(ToyPolicy { splits_backward, ..ToyPolicy::default() });
        let mut manager = toy.manager(ManagerOptions { mempool, ..ManagerOptions::default() });
        let microbatches = 4;
        manager.record(Mode::Train, microbatches, &mut |cx| toy.step(cx, ahead)).unwrap();
        let report = manager.report();
        let [step] = &report.steps[..] else { panic!("one kind of step: {:?}", report.steps) };
        // Of each microbatch its input, and for each layer a scratch, an output and a gradient.
        assert_eq!(step.buffers.len(), microbatches * (1 + 3 * LAYERS));
        let end = |buffer: &BufferUse| buffer.offset + buffer.bytes.next_multiple_of(ALIGNMENT);
        let mut filled: HashMap<&str, usize> = HashMap::new();
        for (at, buffer) in step.buffers.iter().enumerate() {
            assert_eq!(buffer.bytes, 4 * WIDTH);
            for other in step.buffers[..at].iter().filter(|other| other.area == buffer.area) {
                let apart_in_time = other.last < buffer.first || buffer.last < other.first;
                let apart_in_memory = end(other) <= buffer.offset || end(buffer) <= other.offset;
                assert!(apart_in_time || apart_in_memory, "{mempool:?}: {other:?} and {buffer:?}");
            }
            let most = filled.entry(&buffer.area).or_default();
            *most = end(buffer).max(*most);
            let taken = step.order.iter().find(|launch| launch.region == buffer.region).unwrap();
            assert!((taken.start..taken.end).contains(&buffer.first), "{buffer:?} is first used outside of {taken:?}");
        }
        let planned: HashMap<&str, usize> = report.memory.iter().map(|area| (&*area.area, area.bytes)).collect();
        assert_eq!(filled, planned, "{mempool:?}");
    }
}
