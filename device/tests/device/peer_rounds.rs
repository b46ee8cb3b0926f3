//! The order in which blocks of `kernels/transfers/peers.cu` show pieces, wait and combine, and those of `peer_rows.cu`
//! beside it write rows, tried in all ways that ranks can overtake each other: no piece is overwritten before all have
//! combined it, no row is written into an output in use or after it is read, and no rank waits for ever.

use std::collections::HashSet;

/// An action of a block, in rounds counted over all transfers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// Copies its piece to a slot for all others to read.
    Show(usize),
    /// Writes the number of the round into the flags of all others.
    Flag(usize),
    /// Waits for the flags of all others.
    Wait(usize),
    /// Reads the slots of all others.
    Combine(usize),
    /// The last use of its output before that exchange of rows.
    Use(usize),
    /// Writes rows into the outputs of all others.
    Put(usize),
    /// Reads its output after that exchange.
    Read(usize),
}
use Action::{Combine, Flag, Put, Read, Show, Use, Wait};

/// The actions of a block in transfers of so many rounds each, as `rounds` in `kernels/headers/peers.cuh`.
fn block(transfers: &[usize]) -> Vec<Action> {
    let (mut actions, mut before) = (Vec::new(), 0);
    for &rounds in transfers {
        let shows = |round: usize| [Show(round), Flag(round)];
        actions.extend((rounds > 0).then(|| shows(before + 1)).into_iter().flatten());
        for n in 0..rounds {
            let round = before + 1 + n;
            actions.extend((n + 1 < rounds).then(|| shows(round + 1)).into_iter().flatten());
            actions.extend([Wait(round), Combine(round)]);
        }
        before += rounds;
    }
    actions
}

/// The actions of a block in so many exchanges of rows, as `exchange` in `kernels/transfers/peer_rows.cu`.
fn rows(exchanges: usize) -> Vec<Action> {
    let one = |n: usize| {
        let (ready, done) = (2 * n - 1, 2 * n);
        [Use(n), Flag(ready), Wait(ready), Put(n), Flag(done), Wait(done), Read(n)]
    };
    (1..=exchanges).flat_map(one).collect()
}

/// Tries all orders of the ranks' `actions`. Fails with a description of the mistake.
fn try_all_orders(ranks: usize, actions: &[Action], slots: usize) -> Result<usize, String> {
    let last = |done: usize, of: fn(&Action) -> Option<usize>| actions[..done].iter().filter_map(of).next_back();
    let flagged = |done| last(done, |action| if let Flag(round) = action { Some(*round) } else { None }).unwrap_or(0);
    let combined =
        |done| last(done, |action| if let Combine(round) = action { Some(*round) } else { None }).unwrap_or(0);
    let used = |done| last(done, |action| if let Use(n) = action { Some(*n) } else { None }).unwrap_or(0);
    let put = |done| last(done, |action| if let Put(n) = action { Some(*n) } else { None }).unwrap_or(0);
    let shown = |done: usize, slot: usize| {
        let mut of_slot = actions[..done].iter().filter_map(|action| match action {
            Show(round) if round % slots == slot => Some(*round),
            _ => None,
        });
        of_slot.next_back().unwrap_or(0)
    };
    let (mut seen, mut open) = (HashSet::new(), vec![vec![0; ranks]]);
    while let Some(state) = open.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let mut stuck = true;
        for rank in 0..ranks {
            let Some(&action) = actions.get(state[rank]) else { continue };
            let others = || (0..ranks).filter(|&other| other != rank).map(|other| state[other]);
            match action {
                Show(round) if others().any(|other| combined(other) + slots < round) => {
                    return Err(format!("rank {rank} overwrites a piece of round {} in {state:?}", round - slots));
                }
                Combine(round) if others().any(|other| shown(other, round % slots) != round) => {
                    return Err(format!("rank {rank} reads another round than {round} in {state:?}"));
                }
                Put(n) if others().any(|other| used(other) < n) => {
                    return Err(format!("rank {rank} writes rows into an output in use in {state:?}"));
                }
                Read(n) if others().any(|other| put(other) < n) => {
                    return Err(format!("rank {rank} reads an output that is not whole in {state:?}"));
                }
                Wait(round) if others().any(|other| flagged(other) < round) => continue,
                _ => {}
            }
            stuck = false;
            let mut next = state.clone();
            next[rank] += 1;
            open.push(next);
        }
        if stuck && state.iter().any(|&done| done < actions.len()) {
            return Err(format!("all ranks wait in {state:?}"));
        }
    }
    Ok(seen.len())
}

fn slots_of_the_kernel() -> usize {
    let header = include_str!("../../kernels/headers/peers.cuh");
    let (_, rest) = header.split_once("SLOTS = ").expect("peers.cuh has SLOTS");
    rest.split(';').next().unwrap().parse().unwrap()
}

#[test]
fn no_piece_is_overwritten_before_it_is_combined_and_no_rank_waits_for_ever() {
    let slots = slots_of_the_kernel();
    for (ranks, transfers) in [(2, &[5, 1, 1, 7, 0, 3, 2][..]), (3, &[4, 1, 3]), (4, &[3, 2])] {
        let states = try_all_orders(ranks, &block(transfers), slots).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(states > 100, "only {states} states of {ranks} ranks");
    }
}

#[test]
fn with_a_slot_less_a_piece_would_be_overwritten() {
    let problem = try_all_orders(2, &block(&[6]), slots_of_the_kernel() - 1).unwrap_err();
    assert!(problem.contains("overwrites a piece"), "{problem}");
}

#[test]
fn rows_are_written_into_no_output_in_use_and_read_when_all_are_there() {
    for (ranks, exchanges) in [(2, 6), (3, 3), (4, 2)] {
        let states = try_all_orders(ranks, &rows(exchanges), 0).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(states > 100, "only {states} states of {ranks} ranks");
    }
}

#[test]
fn without_either_wait_an_exchange_of_rows_would_be_wrong() {
    let without = |round| rows(2).into_iter().filter(|action| *action != Wait(round)).collect::<Vec<_>>();
    for (round, problem) in [(3, "an output in use"), (4, "not whole")] {
        let found = try_all_orders(2, &without(round), 0).unwrap_err();
        assert!(found.contains(problem), "{found}");
    }
}
