//! Runs the steps of several ranks in simulated time.
//!
//! A GPU does one kernel at a time: of those that are ready, the one that was submitted first. The latency of a kernel
//! passes beside the work of others. A transfer begins when it is ready on all of its ranks. While transfers are under
//! way, kernels beside them are slower.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::predict::step_graph::{Meeting, Node, Purpose, Work};

/// The simulated step.
#[derive(Clone, Debug)]
pub(super) struct Simulation {
    /// From the start to the end of the last operation of any rank.
    pub(super) seconds: f64,
    pub(super) ranks: Vec<RankTimes>,
}

/// How a rank spends a step, in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct RankTimes {
    /// A kernel runs or is about to.
    pub(super) computing: f64,
    /// Nothing but transfers, between ranks or to and from the host, is under way.
    pub(super) only_transfers: f64,
    /// The rank's times of computing, with the purpose of each: start, end, purpose.
    pub(super) spans: Vec<(f64, f64, Purpose)>,
}

/// A time that can be ordered.
#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Time) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Time) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Something that will happen. Events of one time happen in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A transfer ends on a rank.
    Transferred { rank: usize, node: u32 },
    /// A copy to or from the host ends on a rank.
    Copied { rank: usize, node: u32 },
    /// The running kernel of a rank's GPU ends, unless the kernel's speed has changed since `version`.
    Computed { rank: usize, version: u64 },
    /// A kernel's latency is over.
    Ready { rank: usize, node: u32 },
}

struct Rank<'n> {
    nodes: &'n [Node],
    /// By operation: those that wait for it.
    dependents: Vec<Vec<u32>>,
    /// By operation: how many it still waits for.
    waits: Vec<u32>,
    /// Kernels whose latency is over.
    queue: BinaryHeap<Reverse<u32>>,
    running: Option<u32>,
    /// Work of the running kernel that was left at `since`, in seconds at full speed.
    left: f64,
    since: f64,
    version: u64,
    /// Kernels that run, are queued, or are in latency.
    kernels: usize,
    /// Transfers under way.
    transfers: usize,
    /// Copies to or from the host under way.
    copies: usize,
    times: RankTimes,
    /// Until when `times` counts.
    counted: f64,
}

/// Simulates a step of the given ranks. `transfer_share` of a GPU is taken by transfers while any is under way.
///
/// # Panics
/// If ranks wait for each other: the schedules' tests show that they do not.
pub(super) fn simulate(ranks: &[Vec<Node>], transfer_share: f64) -> Simulation {
    let ranks = ranks.iter().map(|nodes| Rank::new(nodes)).collect();
    let mut clock =
        Clock { now: 0.0, events: BinaryHeap::new(), ranks, meetings: HashMap::new(), speed: 1.0 - transfer_share };
    clock.run();
    let left: usize = clock.ranks.iter().map(|rank| rank.waits.iter().filter(|waits| **waits > 0).count()).sum();
    assert!(left == 0 && clock.meetings.is_empty(), "{left} operations of a simulated step wait for ever");
    let seconds = clock.now;
    Simulation { seconds, ranks: clock.ranks.into_iter().map(|rank| rank.times).collect() }
}

struct Clock<'n> {
    now: f64,
    events: BinaryHeap<Reverse<(Time, Event)>>,
    ranks: Vec<Rank<'n>>,
    /// Transfers that still lack some ranks, with the ranks that are ready.
    meetings: HashMap<Meeting, Vec<(usize, u32)>>,
    /// Of kernels beside transfers.
    speed: f64,
}

impl Clock<'_> {
    fn run(&mut self) {
        for rank in 0..self.ranks.len() {
            let free =
                (0..self.ranks[rank].nodes.len() as u32).filter(|node| self.ranks[rank].waits[*node as usize] == 0);
            free.collect::<Vec<_>>().into_iter().for_each(|node| self.begin(rank, node));
        }
        while let Some(Reverse((Time(time), event))) = self.events.pop() {
            if let Event::Computed { rank, version } = event
                && self.ranks[rank].version != version
            {
                continue;
            }
            self.now = time;
            match event {
                Event::Ready { rank, node } => {
                    self.ranks[rank].queue.push(Reverse(node));
                    self.next_kernel(rank);
                }
                Event::Computed { rank, .. } => {
                    self.ranks[rank].count(time);
                    self.ranks[rank].kernels -= 1;
                    if let Some(node) = self.ranks[rank].running.take() {
                        self.complete(rank, node);
                    }
                    self.next_kernel(rank);
                }
                Event::Transferred { rank, node } => {
                    self.change_transfers(rank, |transfers| transfers - 1);
                    self.complete(rank, node);
                }
                Event::Copied { rank, node } => {
                    self.ranks[rank].count(time);
                    self.ranks[rank].copies -= 1;
                    self.complete(rank, node);
                }
            }
        }
    }

    fn at(&mut self, time: f64, event: Event) {
        self.events.push(Reverse((Time(time), event)));
    }

    /// All that an operation waits for is done.
    fn begin(&mut self, rank: usize, node: u32) {
        match self.ranks[rank].nodes[node as usize].work {
            Work::Compute(price) => {
                self.ranks[rank].count(self.now);
                self.ranks[rank].kernels += 1;
                self.at(self.now + price.latency, Event::Ready { rank, node });
            }
            Work::Copy { seconds } => {
                self.ranks[rank].count(self.now);
                self.ranks[rank].copies += 1;
                self.at(self.now + seconds, Event::Copied { rank, node });
            }
            Work::Transfer { seconds, meeting: None } => self.transfer(&[(rank, node)], seconds),
            Work::Transfer { seconds, meeting: Some(meeting) } => {
                let here = self.meetings.entry(meeting).or_default();
                here.push((rank, node));
                if here.len() == meeting.ranks {
                    let all = self.meetings.remove(&meeting).unwrap_or_default();
                    self.transfer(&all, seconds);
                }
            }
        }
    }

    fn transfer(&mut self, ends: &[(usize, u32)], seconds: f64) {
        for &(rank, node) in ends {
            self.change_transfers(rank, |transfers| transfers + 1);
            self.at(self.now + seconds, Event::Transferred { rank, node });
        }
    }

    fn complete(&mut self, rank: usize, node: u32) {
        for dependent in std::mem::take(&mut self.ranks[rank].dependents[node as usize]) {
            let waits = &mut self.ranks[rank].waits[dependent as usize];
            *waits -= 1;
            if *waits == 0 {
                self.begin(rank, dependent);
            }
        }
    }

    /// Starts the next kernel, if the GPU is free.
    fn next_kernel(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if state.running.is_some() {
            return;
        }
        let Some(Reverse(node)) = state.queue.pop() else { return };
        let Work::Compute(price) = state.nodes[node as usize].work else { return };
        (state.running, state.left, state.since) = (Some(node), price.work, self.now);
        self.expect_end(rank);
    }

    /// Notes when the running kernel will end at the present speed.
    fn expect_end(&mut self, rank: usize) {
        let speed = if self.ranks[rank].transfers > 0 { self.speed } else { 1.0 };
        let state = &mut self.ranks[rank];
        state.version += 1;
        let (end, version) = (self.now + state.left / speed, state.version);
        self.at(end, Event::Computed { rank, version });
    }

    fn change_transfers(&mut self, rank: usize, change: impl FnOnce(usize) -> usize) {
        let (now, slow) = (self.now, self.speed);
        let state = &mut self.ranks[rank];
        state.count(now);
        let before = state.transfers;
        state.transfers = change(before);
        if state.running.is_some() && (before == 0) != (state.transfers == 0) {
            let speed = if before > 0 { slow } else { 1.0 };
            state.left = (state.left - (now - state.since) * speed).max(0.0);
            state.since = now;
            self.expect_end(rank);
        }
    }
}

impl<'n> Rank<'n> {
    fn new(nodes: &'n [Node]) -> Rank<'n> {
        let mut dependents = vec![Vec::new(); nodes.len()];
        for (node, of) in nodes.iter().enumerate() {
            of.after.iter().for_each(|before| dependents[*before as usize].push(node as u32));
        }
        let waits = nodes.iter().map(|node| node.after.len() as u32).collect();
        Rank {
            nodes,
            dependents,
            waits,
            queue: BinaryHeap::new(),
            running: None,
            left: 0.0,
            since: 0.0,
            version: 0,
            kernels: 0,
            transfers: 0,
            copies: 0,
            times: RankTimes::default(),
            counted: 0.0,
        }
    }

    /// Counts the time until `now`.
    fn count(&mut self, now: f64) {
        let passed = now - self.counted;
        if self.kernels > 0 {
            self.times.computing += passed;
            if let Some(purpose) = self.running.map(|node| self.nodes[node as usize].purpose) {
                match self.times.spans.last_mut().filter(|span| span.2 == purpose && self.counted - span.1 < 1e-5) {
                    Some(span) => span.1 = now,
                    None => self.times.spans.push((self.counted, now, purpose)),
                }
            }
        } else if self.transfers + self.copies > 0 {
            self.times.only_transfers += passed;
        }
        self.counted = now;
    }
}

#[cfg(test)]
mod tests {
    use parallel::{Schedule, Task};

    use super::*;
    use crate::predict::price::Price;

    fn kernel(work: f64, after: &[u32]) -> Node {
        let work = Work::Compute(Price { latency: 1.0, work });
        Node { work, purpose: Purpose::Forward, after: after.to_vec() }
    }

    fn transfer(seconds: f64, after: &[u32]) -> Node {
        Node { work: Work::Transfer { seconds, meeting: None }, purpose: Purpose::Forward, after: after.to_vec() }
    }

    #[test]
    fn a_chain_takes_latency_and_work_of_each_and_branches_share_the_gpu() {
        assert_eq!(simulate(&[vec![kernel(4.0, &[]), kernel(2.0, &[0])]], 0.0).seconds, 8.0);
        // The second's latency passes while the first works.
        assert_eq!(simulate(&[vec![kernel(4.0, &[]), kernel(2.0, &[])]], 0.0).seconds, 7.0);
    }

    #[test]
    fn transfers_pass_beside_kernels_and_slow_them_down() {
        let step = [vec![transfer(9.0, &[]), kernel(4.0, &[])]];
        assert_eq!(simulate(&step, 0.0).seconds, 9.0);
        let slowed = simulate(&step, 0.5);
        assert_eq!(slowed.seconds, 9.0);
        assert_eq!((slowed.ranks[0].computing, slowed.ranks[0].only_transfers), (9.0, 0.0));
        // A copy engine leaves kernels their speed.
        let copy = Node { work: Work::Copy { seconds: 9.0 }, purpose: Purpose::Forward, after: Vec::new() };
        let copied = simulate(&[vec![copy, kernel(4.0, &[])]], 0.5);
        assert_eq!(copied.seconds, 9.0);
        assert_eq!((copied.ranks[0].computing, copied.ranks[0].only_transfers), (5.0, 4.0));
        // Half of the kernel's work is done beside the transfer.
        let step = [vec![transfer(5.0, &[]), kernel(4.0, &[])]];
        assert_eq!(simulate(&step, 0.5).seconds, 7.0);
    }

    /// The steps of all stages: forwards and backwards of a chunk take 1 and 2 seconds (or 1 and 1, with weight gradients apart),
    /// transfers nothing.
    fn pipeline(schedule: Schedule, microbatches: usize) -> Vec<Vec<Node>> {
        let placement = schedule.placement();
        let (stages, chunks) = (placement.stages(), placement.chunks());
        let split = schedule.splits_backward();
        let free = |work| Work::Compute(Price { latency: 0.0, work });
        let step = |stage: usize| {
            let mut nodes: Vec<Node> = Vec::new();
            let mut last = None;
            for task in schedule.tasks(stage, microbatches).unwrap() {
                let part = placement.virtual_stage(stage, task.chunk());
                let here = task.microbatch();
                // Each transfer is the only one of its communicator.
                let meeting = |edge: usize, way: usize| {
                    let inside = (1..stages * chunks).contains(&edge);
                    let communicator = (edge * 2 + way) * microbatches + here;
                    let meeting = Some(Meeting { communicator, number: 0, ranks: 2 });
                    inside.then_some(Work::Transfer { seconds: 0.0, meeting })
                };
                let (work, receive, send) = match task {
                    Task::Forward { .. } => (1.0, meeting(part, 0), meeting(part + 1, 0)),
                    Task::Backward { .. } if split => (1.0, meeting(part + 1, 1), meeting(part, 1)),
                    Task::Backward { .. } => (2.0, meeting(part + 1, 1), meeting(part, 1)),
                    Task::Weights { .. } => (1.0, None, None),
                };
                let mut add = |work, after: Vec<u32>| {
                    nodes.push(Node { work, purpose: Purpose::Forward, after });
                    nodes.len() as u32 - 1
                };
                let received = receive.map(|receive| add(receive, Vec::new()));
                let kernel = add(free(work), last.into_iter().chain(received).collect());
                last = Some(kernel);
                send.map(|send| add(send, vec![kernel]));
            }
            nodes
        };
        (0..stages).map(step).collect()
    }

    #[test]
    fn idle_times_of_the_schedules_are_those_of_their_papers() {
        for (stages, microbatches) in [(2, 4), (4, 8), (4, 16), (8, 16)] {
            let work = 3.0 * microbatches as f64;
            let seconds = |schedule| simulate(&pipeline(schedule, microbatches), 0.0).seconds;
            // 1F1B: (P - 1)/M of the work. Interleaved: divided by the chunks. Zero bubble: a third.
            let idle = 3.0 * (stages - 1) as f64;
            assert_eq!(seconds(Schedule::one_f_one_b(stages)), work + idle, "{stages} {microbatches}");
            assert_eq!(seconds(Schedule::zero_bubble(stages)), work + idle / 3.0, "{stages} {microbatches}");
            // A chunk here takes as long as a stage of one chunk, so the work is doubled.
            assert_eq!(seconds(Schedule::interleaved(stages, 2, stages)), 2.0 * work + idle, "{stages} {microbatches}");
        }
    }
}
