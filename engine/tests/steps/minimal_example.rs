//! The example that newcomers read trains.

use device::{Device, HostOptions};
use engine::precision::Precision;

use crate::minimal;

#[test]
fn the_minimal_example_learns_sums_on_the_host() {
    let device = Device::host(HostOptions { threads: 2, check: true, dry: false }).unwrap();
    let (first, last) = minimal::train(&device, Precision::F32, &minimal::sums(), 15).unwrap();
    // Guessing among 256 bytes has a loss of 5.5.
    assert!((5.0..6.0).contains(&first) && last < 3.5, "{first} and {last}");
}
