//! Slots: how many microbatches need memory of their own, and whether they can share it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hash;

use crate::error::{Error, Result};
use crate::program::Program;

/// When a microbatch is in flight: from its first region to its last.
struct Flight {
    first_visit: usize,
    last_visit: usize,
    /// Position in the list.
    end: u32,
}

/// By chunk and microbatch.
fn flights<R>(program: &Program<R>) -> BTreeMap<usize, BTreeMap<usize, Flight>> {
    let mut chunks: BTreeMap<usize, BTreeMap<usize, Flight>> = BTreeMap::new();
    for (at, visit) in program.visits.iter().enumerate() {
        let Some(instance) = &visit.instance else { continue };
        let end = visit.positions().end;
        let begun = Flight { first_visit: at, last_visit: at, end };
        let flight = chunks.entry(instance.chunk).or_default().entry(instance.microbatch).or_insert(begun);
        (flight.last_visit, flight.end) = (at, flight.end.max(end));
    }
    chunks
}

/// By chunk, the largest number of microbatches in flight at any time. It is the number of slots.
pub(crate) fn in_flight<R>(program: &Program<R>) -> BTreeMap<usize, usize> {
    let most = |flights: &BTreeMap<usize, Flight>| {
        let alive = |at: usize| {
            flights.values().filter(|flight| (flight.first_visit..=flight.last_visit).contains(&at)).count()
        };
        // The number grows only when a microbatch begins.
        flights.values().map(|flight| alive(flight.first_visit)).max().unwrap_or(1)
    };
    flights(program).iter().map(|(chunk, flights)| (*chunk, most(flights))).collect()
}

/// By chunk, the number of slots that hold every one of the steps `programs`.
pub(crate) fn slots<R>(programs: &[&Program<R>]) -> BTreeMap<usize, usize> {
    let mut slots = BTreeMap::new();
    programs.iter().for_each(|program| raise(&mut slots, &in_flight(program)));
    slots
}

/// Makes each number at least as large as needed.
pub(crate) fn raise<K: Ord + Copy>(numbers: &mut BTreeMap<K, usize>, needed: &BTreeMap<K, usize>) {
    for (key, needed) in needed {
        let number = numbers.entry(*key).or_default();
        *number = (*needed).max(*number);
    }
}

/// Fails if a buffer is used after the last region of the buffer's microbatch, when another microbatch may have the
/// slot.
pub(crate) fn check_flights<R: Copy + Eq + Hash + Display>(
    program: &Program<R>,
    slots: &BTreeMap<usize, usize>,
) -> Result<()> {
    let flights = flights(program);
    for (at, (buffer, index)) in program.taken_in_order().enumerate() {
        let visit = &program.visits[buffer.visit()];
        let Some(instance) = &visit.instance else { continue };
        let (of_chunk, slots) = (&flights[&instance.chunk], slots.get(&instance.chunk).copied().unwrap_or(1));
        let end = of_chunk[&instance.microbatch].end;
        if of_chunk.len() > slots && program.used(at).last >= end {
            let name = program.own(buffer.visit(), index).map_or("", |(_, name)| name);
            let problem = format!("buffer `{name}` of `{}` is used after its microbatch has ended", visit.name);
            return Err(Error::usage(problem, "copy it in a region of the microbatch, or set mempool to Single"));
        }
    }
    Ok(())
}
