//! Ranks have one sequence of transfers on each communicator. Libraries match transfers by their order alone: two ranks that
//! begin them in different orders wait for each other for ever, or add values of one tensor to those of another.
//!
//! All ranks' steps are recorded, in every layout and setting of the digests. Three things must hold. Each two members of a
//! communicator submit the same transfers to it in the same order, of those that both take part in. On each rank a transfer
//! is ordered after the one before it on the same communicator, by its queue or by waits. And the orders of all ranks on all
//! communicators fit together: no transfer waits, through other transfers and ranks, for itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use device::ops::{Collective, CollectiveKind};
use device::{DType, Device, HostOptions, Op, Progress, StreamId};
use engine::passes::PassName;
use graph_manager::ListedEntry;

use crate::digests::cases::{Case, cases, settings};
use crate::digests::recorded::{Clock, KINDS, join, mode, record};
use crate::models::Run;

/// A communicator by its name and its members' world ranks, in the group's order.
type Group = (String, Vec<usize>);

/// A transfer, as all ranks that take part in it see it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Transfer {
    kind: &'static str,
    /// The sender and the receiver of a message.
    between: Option<(usize, usize)>,
    dtype: DType,
    /// The number of elements of the input: of a part, if ranks gather.
    elements: usize,
}

impl Transfer {
    fn of(op: &Collective) -> Transfer {
        let me = op.communicator.rank();
        let (kind, between) = match op.kind {
            CollectiveKind::Send { to } => ("message", Some((me, to))),
            CollectiveKind::Receive { from } => ("message", Some((from, me))),
            kind => (kind.name(), None),
        };
        Transfer { kind, between, dtype: op.input.dtype, elements: op.input.elements() }
    }

    /// Whether these two members of the group take part.
    fn has_both(&self, a: usize, b: usize) -> bool {
        self.between.is_none_or(|pair| pair == (a, b) || pair == (b, a))
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} {}", self.kind, self.elements, self.dtype)?;
        self.between.map_or(Ok(()), |(from, to)| write!(f, " from member {from} to {to}"))
    }
}

/// The transfers that a rank submits to a communicator, in order, each with its region. `Err`: it is not ordered after
/// the one before.
type Sequence = Vec<(Transfer, String, Result<(), String>)>;

/// A transfer among those of all ranks: its communicator, the sender and receiver of a message, and its number among the
/// transfers between them.
type TransferId = (Group, Option<(usize, usize)>, usize);

/// A rank's transfers in one step.
#[derive(Default)]
struct Transfers {
    sequences: BTreeMap<Group, Sequence>,
    /// Each transfer, and those that end before it begins: the last one of each queue.
    after: Vec<(TransferId, Vec<TransferId>)>,
}

/// A step's list, as far as it was read.
#[derive(Default)]
struct Read {
    transfers: Transfers,
    /// The transfers of each queue.
    of_queue: HashMap<StreamId, Vec<TransferId>>,
    /// By communicator: the last transfer's queue, and its number there.
    last: HashMap<Group, (StreamId, usize)>,
    /// The transfers that are done after the last entry of a queue, and after each entry.
    queues: HashMap<StreamId, Clock>,
    entries: Vec<Clock>,
}

impl Read {
    fn read(&mut self, entry: &ListedEntry) {
        let mut clock = self.queues.remove(&entry.queue).unwrap_or_default();
        entry.waits.iter().for_each(|on| join(&mut clock, &self.entries[*on]));
        if let Some(Op::Collective(op)) = &entry.op {
            self.transfer(entry.queue, op, &entry.region, &mut clock);
        }
        self.entries.push(clock.clone());
        self.queues.insert(entry.queue, clock);
    }

    fn transfer(&mut self, queue: StreamId, op: &Collective, region: &str, clock: &mut Clock) {
        let group: Group = (op.communicator.name().into(), op.communicator.members());
        let is_after = |(other, number): &(StreamId, usize)| clock.get(other).is_some_and(|done| done >= number);
        let ordered = match self.last.get(&group) {
            Some(last) if !is_after(last) => Err(format!("queue {} does not wait for queue {}", queue.0, last.0.0)),
            _ => Ok(()),
        };
        let transfer = Transfer::of(op);
        let sequence = self.transfers.sequences.entry(group.clone()).or_default();
        let before = sequence.iter().filter(|(other, ..)| other.between == transfer.between).count();
        let id = (group.clone(), transfer.between, before);
        let done = clock.iter().map(|(stream, &done)| self.of_queue[stream][done - 1].clone());
        self.transfers.after.push((id.clone(), done.collect()));
        self.of_queue.entry(queue).or_default().push(id);
        let number = clock.entry(queue).or_default();
        *number += 1;
        self.last.insert(group, (queue, *number));
        sequence.push((transfer, region.into(), ordered));
    }
}

/// The transfers of a rank, by kind of step.
type Steps = [(&'static str, Transfers); 4];

/// Records a rank's steps without memory: training, evaluation, a step that measures, and one with half as many microbatches.
/// A rehearsal runs such a list without sends and receives.
fn recorded(run: &Run) -> Steps {
    let device = Device::host(HostOptions { threads: 1, check: false, dry: true }).unwrap();
    if run.watched {
        device.watch(Progress::default()).unwrap();
    }
    let mut stage = run.stage(&device);
    KINDS.map(|kind| {
        record(&mut stage, run, kind);
        let mut list = Read::default();
        let (mode, microbatches) = mode(run, kind);
        stage.graphs().list(mode.into(), microbatches, |entry| list.read(&entry));
        (kind, list.transfers)
    })
}

/// The sequences of all ranks, in steps without some passes.
fn of_all_ranks(case: &Case, setting: &str, left_out: &[PassName]) -> Vec<Steps> {
    let make = || Run { left_out: left_out.to_vec(), ..case.run(setting) };
    case.layout.on_ranks(make, |run| recorded(&run))
}

/// The faults in the sequences of all ranks. There are none if they fit.
fn problems(ranks: &[Steps]) -> Vec<String> {
    let mut problems = Vec::new();
    for step in 0..ranks[0].len() {
        let kind = ranks[0][step].0;
        let empty = Sequence::new();
        let of_rank = |rank: &Steps| rank[step].1.after.clone();
        if let Some(waits) = circle(&ranks.iter().flat_map(of_rank).collect::<Vec<_>>()) {
            problems.push(format!("{kind}: transfers wait for each other: {waits}"));
        }
        let sequence = |rank: usize, group: &Group| ranks[rank][step].1.sequences.get(group).unwrap_or(&empty);
        for (rank, group) in
            (0..ranks.len()).flat_map(|rank| ranks[rank][step].1.sequences.keys().map(move |group| (rank, group)))
        {
            let (name, members) = group;
            let mut say = |problem: String| problems.push(format!("{kind}, `{name}` of ranks {members:?}: {problem}"));
            for (transfer, scope, ordered) in sequence(rank, group) {
                if let Err(why) = ordered {
                    say(format!("{transfer} in {scope} on rank {rank} may begin before the one before it: {why}"));
                }
            }
            let me = members.iter().position(|member| *member == rank).unwrap();
            // Each pair once, and a member that submits nothing with those that do.
            for (other, &other_rank) in members.iter().enumerate().filter(|(_, other)| **other != rank) {
                let both = |rank| sequence(rank, group).iter().filter(|(transfer, ..)| transfer.has_both(me, other));
                let (ours, theirs): (Vec<_>, Vec<_>) = (both(rank).collect(), both(other_rank).collect());
                if other < me && !theirs.is_empty() {
                    continue;
                }
                let differs = |at: &usize| ours.get(*at).map(|each| each.0) != theirs.get(*at).map(|each| each.0);
                if let Some(at) = (0..ours.len().max(theirs.len())).find(differs) {
                    let text = |each: Option<&&(Transfer, String, _)>| {
                        each.map_or("nothing".into(), |(transfer, scope, _)| format!("{transfer} in {scope}"))
                    };
                    let (ours, theirs) = (text(ours.get(at)), text(theirs.get(at)));
                    say(format!("transfer {at} is {ours} on rank {rank}, and {theirs} on rank {other_rank}"));
                }
            }
        }
    }
    problems
}

/// Transfers that wait for each other, if there are any. A transfer begins once it is reached on all of its ranks, so it is
/// after whatever is before it on one of them.
fn circle(after: &[(TransferId, Vec<TransferId>)]) -> Option<String> {
    let mut waits: BTreeMap<&TransferId, Vec<&TransferId>> = BTreeMap::new();
    for (transfer, before) in after {
        waits.entry(transfer).or_default().extend(before);
    }
    loop {
        let open: HashSet<&TransferId> = waits.keys().copied().collect();
        waits.retain(|_, before| before.iter().any(|other| open.contains(other)));
        if waits.len() == open.len() {
            break;
        }
    }
    let word = |((name, members), ..): &&TransferId| format!("`{name}` of ranks {members:?}");
    let words: BTreeSet<String> = waits.keys().map(word).collect();
    (!words.is_empty()).then(|| words.into_iter().collect::<Vec<_>>().join(", "))
}

#[test]
fn on_each_communicator_all_ranks_submit_the_same_transfers_in_one_order() {
    let mut all = Vec::new();
    for case in cases().iter().filter(|case| case.layout.ranks() > 1) {
        let all_passes = settings().map(|setting| (setting, vec![]));
        let without = case
            .passes()
            .into_iter()
            .flat_map(|pass| ["per layer", "whole iteration"].map(|setting| (setting, vec![pass])));
        for (setting, left_out) in all_passes.into_iter().chain(without) {
            let ranks = of_all_ranks(case, setting, &left_out);
            let found = problems(&ranks);
            let name = format!("{}, {setting}, without {left_out:?}", case.name);
            all.extend(found.into_iter().map(|problem| format!("{name}: {problem}")));
            for (kind, of) in ranks.iter().flatten() {
                assert!(*kind == "evaluate" || !of.sequences.is_empty(), "{}: no transfers in {kind}", case.name);
            }
        }
    }
    assert!(all.is_empty(), "{} problems:\n{}", all.len(), all.join("\n"));
}

#[test]
fn a_rank_with_another_sequence_than_its_partners_is_found() {
    let all = cases();
    let named = |name: &str| of_all_ranks(all.iter().find(|case| case.name == name).unwrap(), "per layer", &[]);
    let changed = |name: &str, communicator: &str, change: fn(&mut Sequence)| {
        let mut ranks = named(name);
        assert_eq!(problems(&ranks), [""; 0]);
        let (_, transfers) = &mut ranks[1][0];
        let (_, sequence) = transfers.sequences.iter_mut().find(|(group, _)| group.0 == communicator).unwrap();
        change(sequence);
        problems(&ranks).join("\n")
    };
    // The first two that are not equal.
    let swap = |sequence: &mut Sequence| {
        let at = (1..sequence.len()).find(|&at| sequence[at - 1].0 != sequence[at].0).unwrap();
        sequence.swap(at - 1, at);
    };
    let text = changed("data 2, distributed optimizer", "data", swap);
    assert!(text.contains("train, `data` of ranks [0, 1]: transfer ") && text.contains("on rank 1"), "{text}");
    let text = changed("tensor 2, data 2", "tensor", |sequence| _ = sequence.pop());
    assert!(text.contains("and nothing on rank 1"), "{text}");
    let text = changed("stages 2", "forward", |sequence| sequence[0].0.elements += 1);
    assert!(text.contains("transfer 0 is message of ") && text.contains("from member 0 to 1"), "{text}");
    let text = changed("stages 2", "forward", Vec::clear);
    assert!(text.contains("and nothing on rank 1"), "{text}");
}

#[test]
fn transfers_of_a_communicator_on_two_queues_that_do_not_wait_are_found() {
    let device = Device::host(HostOptions { dry: true, ..HostOptions::default() }).unwrap();
    let tensor = device.virtual_tensor("values", [4], DType::F32);
    let rank = parallel::ThreadWorld::ranks(1, std::time::Duration::from_secs(1)).remove(0);
    let op: Op = Collective::in_place(CollectiveKind::AllReduceSum, rank.communicator("data"), tensor).into();
    let (first, second) = (device.stream("first").id(), device.stream("second").id());
    let (mut list, entries) = (Read::default(), [(first, None), (first, None), (second, Some(0)), (second, None)]);
    for (number, (queue, on)) in entries.into_iter().enumerate() {
        let (name, accesses, waits) = (op.name(), op.accesses(), on.into_iter().collect());
        let (visit, region, op) = (None, "layer".into(), Some(op.clone()));
        list.read(&ListedEntry {
            number,
            position: number,
            visit,
            region,
            graph: None,
            queue,
            name,
            op,
            accesses,
            waits,
        });
    }
    let found: Vec<bool> = list.transfers.sequences.values().flatten().map(|(.., ordered)| ordered.is_ok()).collect();
    assert_eq!(found, [true, true, false, true], "the third waits for the first, and not for the second");
}

#[test]
fn ranks_that_order_two_communicators_differently_are_found() {
    let all = cases();
    let case = all.iter().find(|case| case.name == "tensor 2, data 2").unwrap();
    let mut ranks = of_all_ranks(case, "whole iteration", &[]);
    assert_eq!(problems(&ranks), [""; 0]);
    // Ranks 0 and 1 share layers; rank 1 sums a bucket with rank 3, and then waits for it earlier than rank 0 does.
    let (_, of_first) = &ranks[0][0];
    let is_of = |id: &TransferId, name: &str| id.0.0 == name;
    let (shared, _) = of_first.after.iter().find(|(id, _)| is_of(id, "tensor")).unwrap().clone();
    let (_, transfers) = &mut ranks[1][0];
    let (bucket, _) = transfers.after.iter().rfind(|(id, _)| is_of(id, "data")).unwrap().clone();
    transfers.after.push((shared, vec![bucket]));
    let text = problems(&ranks).join("\n");
    assert!(
        text.contains("transfers wait for each other") && text.contains("`data`") && text.contains("`tensor`"),
        "{text}"
    );
}
