//! Each pass takes waits out of a step. These tests find two operations without a wait between them.

use std::collections::HashMap;

use device::{Device, HostOptions, StreamId};
use engine::regions::Mode;

use crate::digests::cases::cases;
use crate::models::Run;

/// An operation of a list.
struct Entry {
    /// Its region, and its name.
    region: String,
    name: &'static str,
    /// It is a product that writes gradients of parameters and nothing else.
    is_gradient: bool,
    /// By number: whether it waits for an entry, directly or through others.
    before: Vec<bool>,
}

impl Entry {
    fn is(&self, region: &str, name: &str) -> bool {
        self.region == region && self.name == name
    }

    fn waits_for(&self, entry: usize) -> bool {
        self.before.get(entry).copied().unwrap_or(false)
    }
}

/// A training step's list.
fn list(run: &Run) -> Vec<Entry> {
    let device = Device::host(HostOptions { threads: 1, check: false, dry: true }).unwrap();
    let mut stage = run.stage(&device);
    stage.record(run.microbatches, false).unwrap();
    let gradients = stage.params().gradient_buffer();
    let (mut entries, mut last): (Vec<Entry>, HashMap<StreamId, usize>) = (Vec::new(), HashMap::new());
    stage.graphs().list(Mode::Train.into(), run.microbatches, |entry| {
        let mut before = vec![false; entry.number];
        for on in entry.waits.iter().chain(last.get(&entry.queue)) {
            before[*on] = true;
            entries[*on].before.iter().enumerate().for_each(|(at, waits)| before[at] |= waits);
        }
        last.insert(entry.queue, entry.number);
        let (region, name) = (entry.region.to_string(), entry.name);
        let is_gradient = name == "gemm" && entry.accesses.writes.iter().all(|tensor| tensor.buffer == gradients);
        entries.push(Entry { region, name, is_gradient, before });
    });
    entries
}

/// The lists of a case's ranks, with graphs per layer.
fn lists(name: &str) -> Vec<Vec<Entry>> {
    let all = cases();
    let case = all.iter().find(|case| case.name == name).unwrap();
    case.layout.on_ranks(|| case.run("per layer"), |run| list(&run))
}

/// Numbers of the entries that `chosen` takes.
fn those(list: &[Entry], chosen: impl Fn(&Entry) -> bool) -> Vec<usize> {
    (0..list.len()).filter(|at| chosen(&list[*at])).collect()
}

/// The number of the only entry of that name in a region.
fn the_only(list: &[Entry], region: &str, name: &str) -> usize {
    match those(list, |entry| entry.is(region, name))[..] {
        [at] => at,
        ref others => panic!("{region} has {} of {name}", others.len()),
    }
}

#[test]
fn a_backward_does_not_wait_for_its_gradients_of_weights_and_what_follows_it_does() {
    let list = &lists("one rank")[0];
    for layer in 1..=4 {
        let region = format!("backward of layer {layer}, microbatch 0");
        let gradients = those(list, |entry| entry.region == region && entry.is_gradient);
        assert_eq!(gradients.len(), 4, "{region}");
        let sums = the_only(list, &region, "add_partial_columns");
        assert!(gradients.iter().all(|gradient| !list[sums].waits_for(*gradient)), "{region}");
        let next = those(list, |entry| entry.region == format!("backward of layer {}, microbatch 0", layer - 1))[0];
        assert!(gradients.iter().all(|gradient| list[next].waits_for(*gradient)), "after {region}");
    }
}

#[test]
fn a_split_backward_leaves_its_gradients_of_weights_to_their_region() {
    for list in &lists("stages 2, zero bubble") {
        let in_regions = |kind: &str| those(list, |entry| entry.is_gradient && entry.region.starts_with(kind)).len();
        // Two blocks on each stage; four microbatches.
        assert_eq!((in_regions("backward of"), in_regions("weights of")), (0, 2 * 4 * 4));
    }
}

#[test]
fn each_sum_over_tensor_ranks_has_a_gradient_of_weights_beside_it() {
    for name in ["tensor 2, sequence", "tensor 2"] {
        for list in &lists(name) {
            let region = "backward of layer 2, microbatch 1";
            let sum = if name == "tensor 2" { "all_reduce" } else { "reduce_scatter" };
            let sums = those(list, |entry| entry.is(region, sum));
            assert_eq!(sums.len(), 2, "{name}");
            for sum in sums {
                let is_beside = |entry: &Entry| entry.is_gradient && entry.region == region && !entry.waits_for(sum);
                let beside = those(list, is_beside).into_iter().filter(|at| *at > sum && !list[sum].waits_for(*at));
                assert!(beside.count() > 0, "{name}: nothing is beside {sum}");
            }
        }
    }
}

#[test]
fn keys_travel_beside_attention_over_those_that_are_here() {
    for list in &lists("ring, recompute of two blocks") {
        // A region has two blocks. In backward they run again, and gradients of keys travel as often as keys.
        for (region, count) in [("forward of layer 2, microbatch 1", 2), ("backward of layer 2, microbatch 1", 2 + 4)] {
            let steps = those(list, |entry| entry.is(region, "to_next"));
            assert_eq!(steps.len(), count, "{region}");
            for step in steps {
                let is_beside = |at: &usize| !list[*at].waits_for(step) && !list[step].waits_for(*at);
                let products = ["attention", "attention_backward", "gemm"];
                let products = those(list, |entry| entry.region == region && products.contains(&entry.name));
                assert!(products.iter().any(is_beside), "{region}: nothing is beside {step}");
            }
        }
    }
}

#[test]
fn a_bucket_is_summed_while_the_next_layers_backward_runs() {
    for list in &lists("data 2") {
        let region = "backward of layer 2, microbatch 1";
        let sums = those(list, |entry| entry.is(region, "all_reduce"));
        assert!(!sums.is_empty());
        let products = those(list, |entry| entry.region == region && entry.name == "gemm");
        let waiting = products.iter().filter(|product| sums.iter().any(|sum| list[**product].waits_for(*sum)));
        assert_eq!(waiting.count(), 0);
        assert!(sums.iter().all(|sum| products.iter().all(|product| !list[*sum].waits_for(*product))));
    }
}

#[test]
fn the_next_layers_weights_are_gathered_while_a_forward_runs() {
    for list in &lists("data 2, distributed optimizer") {
        let region = "forward of layer 2, microbatch 0";
        let gathers = those(list, |entry| entry.is(region, "all_gather"));
        let products = those(list, |entry| entry.region == region && entry.name == "gemm");
        assert!(!gathers.is_empty() && products.len() == 4);
        assert!(products.iter().all(|product| gathers.iter().all(|gather| !list[*product].waits_for(*gather))));
    }
}

#[test]
fn a_receive_begins_before_the_task_before_the_one_that_reads_it_computes() {
    let list = &lists("stages 2")[1];
    let receive = the_only(list, "forward receive 1", "receive");
    // Its values are copied in the second forward, after the first backward. That one begins with the head.
    let copied = those(list, |entry| entry.region == "inputs of layer 3, microbatch 1" && entry.name == "copy")[0];
    assert!(list[copied].waits_for(receive));
    let first = those(list, |entry| entry.region == "forward of layer 5, microbatch 0")[0];
    assert!(receive < first && !list[receive].waits_for(first) && !list[first].waits_for(receive));
}

#[test]
fn a_backward_and_the_forward_before_it_do_not_wait_for_each_other_where_microbatches_overlap() {
    let list = &lists("overlap")[0];
    let forward = those(list, |entry| entry.region == "forward of layer 2, microbatch 1");
    let backward = those(list, |entry| entry.region == "backward of layer 2, microbatch 0");
    assert!(!forward.is_empty() && !backward.is_empty());
    for (a, b) in forward.iter().flat_map(|a| backward.iter().map(move |b| (*a, *b))) {
        assert!(!list[a].waits_for(b) && !list[b].waits_for(a), "{a}, {b}");
    }
    let next = those(list, |entry| entry.region == "backward of layer 2, microbatch 1")[0];
    assert!(forward.iter().all(|entry| list[next].waits_for(*entry)));
}
