//! The trials of `trainer doctor` on the host. They compare a device of one thread, with the checker on, with one of three
//! threads without it.

use device::trials::{Outcome, all, run};
use device::{Device, HostOptions};

#[test]
fn every_operation_touches_what_it_declares_and_has_the_same_bits_on_any_number_of_threads() {
    let stream = Device::host(HostOptions { threads: 3, ..HostOptions::default() }).unwrap().stream("trials");
    let as_declared = Outcome { right: true, text: "relative error 0.0e0, the same bits replayed".into() };
    let wrong = all(true).into_iter().map(|case| (case.name.clone(), run(&case, &stream)));
    let wrong: Vec<_> = wrong.filter(|(_, outcome)| *outcome != as_declared).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
