//! The decision on the rank at fault: a pure function of the ranks' reports and of the times without one.

use std::time::Duration;

use super::message::{Beat, Fault};

/// The monitor's knowledge about a rank.
#[derive(Clone, Debug, Default)]
pub struct RankStatus {
    /// The name of its host, once it has connected.
    pub host: Option<String>,
    /// The rank's process there.
    pub process: u32,
    /// The rank has reported its clean end.
    pub left: bool,
    /// The rank's connection is closed.
    pub closed: bool,
    /// The rank ended because it got no heartbeats from rank 0.
    pub lost_monitor: bool,
    /// Time since its last message, or since the monitor started.
    pub silent: Duration,
    /// The error that it reported.
    pub fault: Option<Fault>,
    /// The rank's last report of progress.
    pub beat: Option<Beat>,
}

/// How long a rank may make no progress.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In a step.
    pub step: Duration,
    /// During set-up and while files are written: minutes are normal then.
    pub setup: Duration,
    /// The interval of heartbeats, at which ranks report.
    pub heartbeat: Duration,
}

/// How long a message may be on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(150);

impl Limits {
    /// The age of the oldest report of a rank with a heart that beats. A report is up to a heartbeat old. A rank with an
    /// older report than the others may seem to be behind them although it is not.
    fn report(&self) -> Duration {
        2 * self.heartbeat + ON_ITS_WAY
    }
}

/// Why a run ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// The rank at fault.
    pub rank: usize,
    /// The rank's fault.
    pub problem: Problem,
}

/// The fault of a rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// The rank reported an error.
    Failed(Fault),
    /// The rank's connection broke before a clean end: the process is dead.
    Died,
    /// The rank sends no messages.
    Silent,
    /// The rank is rank 0, and the monitor was silent for so long that other ranks have ended.
    Absent,
    /// The rank makes no progress.
    Hangs {
        /// The ranks that wait for it.
        waiting: Vec<usize>,
        /// Other ranks that make no progress and wait for none.
        others: Vec<usize>,
    },
}

impl Problem {
    /// How long the problem must persist before the run is ended.
    pub fn grace(&self, limits: Limits) -> Duration {
        match self {
            Problem::Failed(fault) if !fault.follows => Duration::ZERO,
            Problem::Hangs { .. } => limits.report(),
            // The message with the original error may not have arrived yet.
            _ => ON_ITS_WAY,
        }
    }
}

/// The root cause, if there is one. In order of precedence: a rank's own error, the absence of rank 0, a dead rank, an error
/// that may have followed from another rank's, a silent rank, and a rank that others wait for.
///
/// Of several ranks that hang alike, `suspect` is chosen, the one of the previous decision.
pub fn decide(rows: &[RankStatus], limits: Limits, suspect: Option<usize>) -> Option<Cause> {
    let ranks = || rows.iter().enumerate().filter(|(_, row)| !row.left);
    let fault = |follows: bool| {
        ranks().find_map(|(rank, row)| {
            let fault = row.fault.clone().filter(|fault| fault.follows == follows)?;
            Some(Cause { rank, problem: Problem::Failed(fault) })
        })
    };
    let absent = || ranks().any(|(_, row)| row.lost_monitor).then_some(Cause { rank: 0, problem: Problem::Absent });
    let died = || {
        let (rank, _) = ranks().find(|(_, row)| row.closed && row.fault.is_none())?;
        Some(Cause { rank, problem: Problem::Died })
    };
    let silent = || {
        let longest = ranks().filter(|(_, row)| row.silent > limits.step).max_by_key(|(_, row)| row.silent)?;
        Some(Cause { rank: longest.0, problem: Problem::Silent })
    };
    fault(false)
        .or_else(absent)
        .or_else(died)
        .or_else(|| fault(true))
        .or_else(silent)
        .or_else(|| hanging(rows, limits, suspect))
}

/// A rank that makes no progress and waits for no other rank. A rank that waits for one that may take its time, such as for a
/// checkpoint, is not at fault, and neither is the other. While a rank is not heard of, all others may wait for it: none is at
/// fault before that rank is heard of again, or silent for too long.
fn hanging(rows: &[RankStatus], limits: Limits, suspect: Option<usize>) -> Option<Cause> {
    if rows.iter().any(|row| !row.left && row.silent > limits.report()) {
        return None;
    }
    let quiet = |row: &RankStatus| {
        let beat = row.beat.as_ref().filter(|_| !row.left)?;
        let limit = if beat.doing.is_slow() { limits.setup } else { limits.step };
        let quiet = Duration::from_millis(beat.quiet_ms) + row.silent;
        (quiet > limit).then_some(quiet)
    };
    let stuck: Vec<(usize, Duration)> =
        rows.iter().enumerate().filter_map(|(rank, row)| Some((rank, quiet(row)?))).collect();
    let most = |(rank, quiet): &&(usize, Duration)| (suspect == Some(*rank), *quiet);
    let absent = || stuck.iter().filter(|(rank, _)| !(0..rows.len()).any(|other| is_behind(rows, other, *rank)));
    let first = absent().max_by_key(most);
    // If all wait for each other in a circle, the one that has waited longest is named.
    let everyone = || {
        let all = stuck.len() == rows.iter().filter(|row| !row.left).count();
        stuck.iter().filter(|_| all).max_by_key(most)
    };
    let (rank, _) = *first.or_else(everyone)?;
    let waiting = (0..rows.len()).filter(|&other| is_behind(rows, rank, other)).collect();
    let others = absent().map(|(rank, _)| *rank).filter(|&other| other != rank && first.is_some());
    Some(Cause { rank, problem: Problem::Hangs { waiting, others: others.collect() } })
}

/// Whether `rank` has begun fewer transfers than `than` on a communicator that both use, so that `than` waits for it, or
/// soon will.
fn is_behind(rows: &[RankStatus], rank: usize, than: usize) -> bool {
    let (Some(mine), Some(theirs)) = (&rows[rank].beat, &rows[than].beat) else { return false };
    if rank == than || rows[rank].left {
        return false;
    }
    theirs.begun.iter().filter(|order| order.ranks.contains(&rank)).any(|order| {
        let takes_part = order.between.is_none_or(|(from, to)| [order.ranks[from], order.ranks[to]].contains(&rank));
        let same = mine.begun.iter().find(|mine| {
            (&mine.communicator, &mine.ranks, mine.between) == (&order.communicator, &order.ranks, order.between)
        });
        takes_part && same.map_or(0, |mine| mine.count) < order.count
    })
}

impl Cause {
    /// The exit code of the rank at fault.
    pub fn code(&self) -> i32 {
        match &self.problem {
            Problem::Failed(fault) => fault.code,
            _ => 3,
        }
    }

    /// The line to print.
    pub fn line(&self, rows: &[RankStatus], limits: Limits) -> String {
        let row = &rows[self.rank];
        let seconds = |time: Duration| time.as_secs();
        let what = match &self.problem {
            Problem::Failed(fault) => fault.error.replace('\n', " "),
            Problem::Died => "the process died without a word (killed, out of memory, or its node went down)".into(),
            Problem::Silent if row.host.is_none() => {
                format!("did not join the others within {} s", seconds(row.silent))
            }
            Problem::Silent => {
                let others = rows.iter().enumerate().filter(|(rank, row)| {
                    *rank != self.rank && !row.left && row.host.is_some() && row.silent > limits.step
                });
                let others: Vec<usize> = others.map(|(rank, _)| rank).collect();
                format!(
                    "not heard of for {} s{}: the process is stopped, or its node or the network is down",
                    seconds(row.silent),
                    others_too(", nor", &others)
                )
            }
            Problem::Absent => format!(
                "not heard of for {} s by other ranks, which have ended: the process was stopped, or its node or the \
                 network was down",
                seconds(limits.step)
            ),
            Problem::Hangs { waiting, others } => {
                let quiet = row.beat.as_ref().map_or(0, |beat| beat.quiet_ms / 1000) + seconds(row.silent);
                let ranks: Vec<String> = waiting.iter().map(usize::to_string).collect();
                let waiting = match ranks.len() {
                    0 => String::new(),
                    1 => format!("; rank {} waits for it", ranks[0]),
                    _ => format!("; ranks {} wait for it", ranks.join(", ")),
                };
                let slow = row.beat.as_ref().is_some_and(|beat| beat.doing.is_slow());
                let (key, limit) = match slow {
                    true => ("setup_timeout_seconds", limits.setup),
                    false => ("distributed_timeout_seconds", limits.step),
                };
                let others = others_too(", nor on", others);
                format!("no progress for {quiet} s{others}{waiting} (parallel.{key} = {})", seconds(limit))
            }
        };
        format!("error on rank {}: {what} [{}]", self.rank, last_report(row))
    }
}

/// Other ranks with the same fault, after these words.
fn others_too(words: &str, ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match ranks.len() {
        0 => String::new(),
        1 => format!("{words} rank {}", numbers[0]),
        _ => format!("{words} ranks {}", numbers.join(", ")),
    }
}

/// The rank that can show the threads of the rank at fault: itself if its heart beats, else one that does on its machine.
pub fn shows_threads(cause: &Cause, rows: &[RankStatus], limits: Limits) -> Option<usize> {
    let row = &rows[cause.rank];
    match cause.problem {
        Problem::Hangs { .. } => Some(cause.rank),
        Problem::Silent => (0..rows.len()).find(|&rank| {
            let other = &rows[rank];
            let speaks = !other.left && !other.closed && other.silent <= limits.step;
            rank != cause.rank && speaks && other.host.is_some() && other.host == row.host
        }),
        _ => None,
    }
}

/// The activity of a rank according to its last report.
fn last_report(row: &RankStatus) -> String {
    let mut parts = vec![format!("host {}", row.host.as_deref().unwrap_or("unknown"))];
    if let Some(beat) = &row.beat {
        parts.push(beat.doing.to_string());
        parts.extend(beat.step.map(|step| format!("step {}", step + 1)));
        parts.extend(beat.region.clone());
        parts.push(match &beat.transfer {
            Some((name, number)) => format!("last collective {name}, number {number}"),
            None => "no collective so far".into(),
        });
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::activity::Doing;
    use super::super::message::TransferCount;
    use super::*;

    const LIMITS: Limits =
        Limits { step: Duration::from_secs(45), setup: Duration::from_secs(600), heartbeat: Duration::from_secs(1) };

    fn begun(communicator: &str, ranks: &[usize], between: Option<(usize, usize)>, count: u64) -> TransferCount {
        TransferCount { communicator: communicator.into(), ranks: ranks.to_vec(), between, count }
    }

    /// A rank that has made no progress for so many seconds.
    fn row(quiet: u64, doing: Doing, begun: Vec<TransferCount>) -> RankStatus {
        let beat = Beat {
            doing,
            quiet_ms: quiet * 1000,
            step: Some(11),
            region: Some("backward of layer 3".into()),
            transfer: begun.last().map(|order| (format!("all_reduce on {}", order.communicator), order.count)),
            begun,
        };
        RankStatus { host: Some("node1".into()), beat: Some(beat), ..RankStatus::default() }
    }

    /// Ranks of one data-parallel group, each quiet for so long, that have begun so many collectives.
    fn group(ranks: &[(u64, u64)]) -> Vec<RankStatus> {
        let all: Vec<usize> = (0..ranks.len()).collect();
        let row = |&(quiet, count): &(u64, u64)| row(quiet, Doing::Steps, vec![begun("data", &all, None, count)]);
        ranks.iter().map(row).collect()
    }

    fn fault(error: &str, follows: bool) -> Option<Fault> {
        Some(Fault { code: 3, error: error.into(), follows })
    }

    fn culprit(rows: &[RankStatus]) -> Option<usize> {
        decide(rows, LIMITS, None).map(|cause| cause.rank)
    }

    #[test]
    fn ranks_that_make_progress_are_left_alone() {
        assert_eq!(decide(&group(&[(0, 7), (44, 7), (3, 6)]), LIMITS, None), None);
        assert_eq!(
            decide(&[RankStatus::default(), RankStatus::default()], LIMITS, None),
            None,
            "nobody has connected yet"
        );
    }

    #[test]
    fn the_rank_behind_hangs_and_not_those_that_wait_for_it_longer() {
        let rows = group(&[(60, 8), (50, 7), (55, 8)]);
        let cause = decide(&rows, LIMITS, None).unwrap();
        assert_eq!(cause, Cause { rank: 1, problem: Problem::Hangs { waiting: vec![0, 2], others: vec![] } });
        let line = cause.line(&rows, LIMITS);
        assert_eq!(
            line,
            "error on rank 1: no progress for 50 s; ranks 0, 2 wait for it (parallel.distributed_timeout_seconds = 45) \
             [host node1, submitting a step, step 12, backward of layer 3, last collective all_reduce on data, number 7]"
        );
    }

    #[test]
    fn all_ranks_that_others_wait_for_are_named() {
        let mut rows = group(&[(50, 8), (60, 7), (55, 8), (47, 7), (3, 8)]);
        let cause = decide(&rows, LIMITS, None).unwrap();
        let line = cause.line(&rows, LIMITS);
        let says = "error on rank 1: no progress for 60 s, nor on rank 3; ranks 0, 2, 4 wait for it (";
        assert!(line.starts_with(says), "{line}");
        assert_eq!(shows_threads(&cause, &rows, LIMITS), Some(1));

        // Those that are silent are shown by one that is not, on the same machine.
        for silent in [0, 1, 3] {
            rows[silent].silent = Duration::from_secs(46 + silent as u64);
        }
        rows[2].host = Some("node2".into());
        let cause = decide(&rows, LIMITS, None).unwrap();
        let line = cause.line(&rows, LIMITS);
        assert!(line.starts_with("error on rank 3: not heard of for 49 s, nor ranks 0, 1: the process"), "{line}");
        assert_eq!(shows_threads(&cause, &rows, LIMITS), Some(4));
        rows[4].closed = true;
        assert_eq!(shows_threads(&cause, &rows, LIMITS), None);
    }

    #[test]
    fn ranks_that_wait_for_one_still_within_its_time_are_not_at_fault() {
        assert_eq!(culprit(&group(&[(60, 8), (20, 7)])), None);
        // A checkpoint takes its time, and the others wait for its end.
        let waiting = row(100, Doing::WaitsForRanks, vec![begun("world", &[0, 1], None, 5)]);
        let mut rows = vec![row(100, Doing::Writes, vec![begun("world", &[0, 1], None, 4)]), waiting];
        assert_eq!(culprit(&rows), None);
        rows[0].silent = Duration::from_secs(2); // it counts, but 102 s are fine too
        assert_eq!(culprit(&rows), None);
        rows[0].beat.as_mut().unwrap().quiet_ms = 601_000;
        assert_eq!(culprit(&rows), Some(0));
    }

    #[test]
    fn a_chain_of_waiting_ranks_is_followed_to_its_end() {
        // Two groups of tensor parallelism, two of data parallelism; rank 3 hangs, 2 waits for it, and so 0 for 2.
        let rows = [
            vec![begun("tensor", &[0, 1], None, 20), begun("data", &[0, 2], None, 6)],
            vec![begun("tensor", &[0, 1], None, 20), begun("data", &[1, 3], None, 6)],
            vec![begun("tensor", &[2, 3], None, 20), begun("data", &[0, 2], None, 5)],
            vec![begun("tensor", &[2, 3], None, 19), begun("data", &[1, 3], None, 5)],
        ];
        let rows: Vec<RankStatus> = rows.into_iter().map(|begun| row(50, Doing::Steps, begun)).collect();
        assert_eq!(culprit(&rows), Some(3));
    }

    #[test]
    fn a_stage_that_others_expect_a_message_from_is_at_fault_though_it_counts_by_other_neighbours() {
        let all = [0, 1, 2];
        let message = |from, to, count| begun("pipeline", &all, Some((from, to)), count);
        let rows = vec![
            row(50, Doing::Steps, vec![message(0, 1, 9)]),
            row(50, Doing::Steps, vec![message(0, 1, 9), message(1, 2, 8)]),
            row(50, Doing::Steps, vec![message(1, 2, 9)]),
        ];
        assert_eq!(culprit(&rows), Some(1), "rank 2 has asked for a ninth message that rank 1 has not sent");
    }

    #[test]
    fn where_all_wait_in_a_circle_the_one_that_waited_longest_is_named() {
        let rows = vec![
            row(51, Doing::Steps, vec![begun("a", &[0, 1], None, 2), begun("b", &[0, 1], None, 1)]),
            row(52, Doing::Steps, vec![begun("a", &[0, 1], None, 1), begun("b", &[0, 1], None, 2)]),
        ];
        assert_eq!(culprit(&rows), Some(1));
    }

    #[test]
    fn an_error_of_a_rank_comes_before_death_and_death_before_an_error_that_follows_from_it() {
        let mut rows = group(&[(60, 8), (50, 7), (0, 8), (0, 8)]);
        assert_eq!(culprit(&rows), Some(1));
        rows[0].silent = Duration::from_secs(46);
        assert_eq!(decide(&rows, LIMITS, None).unwrap(), Cause { rank: 0, problem: Problem::Silent });
        rows[3].fault = fault("all_reduce on data: remote error", true);
        assert_eq!(culprit(&rows), Some(3));
        rows[2].closed = true;
        assert_eq!(decide(&rows, LIMITS, None).unwrap(), Cause { rank: 2, problem: Problem::Died });
        rows[1].fault = fault("the metrics in log: No space left", false);
        let cause = decide(&rows, LIMITS, None).unwrap();
        assert_eq!((cause.rank, cause.code()), (1, 3));
        let line = cause.line(&rows, LIMITS);
        assert!(line.starts_with("error on rank 1: the metrics in log: No space left [host node1, "), "{line}");
        rows[1].closed = true; // it has ended, as it said
        assert_eq!(culprit(&rows), Some(1));
    }

    #[test]
    fn a_rank_that_is_done_is_neither_dead_nor_late() {
        let mut rows = group(&[(0, 8), (0, 8)]);
        rows[1] = RankStatus { left: true, closed: true, silent: Duration::from_secs(100), ..rows[1].clone() };
        assert_eq!(culprit(&rows), None);
        rows[0].beat.as_mut().unwrap().quiet_ms = 46_000;
        assert_eq!(culprit(&rows), Some(0), "who is left behind can still hang");
    }

    #[test]
    fn rank_0_that_goes_on_after_others_have_ended_for_it_names_itself() {
        let mut rows = group(&[(0, 8), (0, 8), (0, 8)]);
        (rows[1].lost_monitor, rows[1].closed) = (true, true);
        rows[2].closed = true; // the launcher has ended it
        let cause = decide(&rows, LIMITS, None).unwrap();
        assert_eq!((cause.rank, cause.code()), (0, 3));
        let line = cause.line(&rows, LIMITS);
        assert!(line.starts_with("error on rank 0: not heard of for 45 s by other ranks, which have ended"), "{line}");
    }

    #[test]
    fn a_rank_that_never_connects_is_named() {
        let mut rows = group(&[(0, 0), (0, 0)]);
        rows[1] = RankStatus { silent: Duration::from_secs(46), ..RankStatus::default() };
        let cause = decide(&rows, LIMITS, None).unwrap();
        assert_eq!(cause.line(&rows, LIMITS), "error on rank 1: did not join the others within 46 s [host unknown]");
    }

    /// Rank 1 wrote a file for longer than a step may take, and both have gone on; only rank 1 was heard of since.
    #[test]
    fn a_rank_that_was_heard_of_before_another_went_on_is_given_time_to_be_heard_of_again() {
        let rows = group(&[(46, 100), (0, 102)]);
        let cause = decide(&rows, LIMITS, None).unwrap();
        assert_eq!((cause.rank, &cause.problem), (0, &Problem::Hangs { waiting: vec![1], others: vec![] }));
        let heartbeat = LIMITS.heartbeat;
        assert!(cause.problem.grace(LIMITS) > 2 * heartbeat);
        assert_eq!(decide(&group(&[(0, 103), (0, 102)]), LIMITS, None), None);
        assert!(Problem::Died.grace(LIMITS) < heartbeat);
    }

    /// Rank 1 was stopped in a step that had taken seconds. All wait in the same collective.
    #[test]
    fn while_a_rank_is_not_heard_of_none_hangs() {
        let mut rows = group(&[(47, 8), (4, 8), (47, 7)]);
        for (silent, cause) in [
            (0, Some(Problem::Hangs { waiting: vec![0, 1], others: vec![] })),
            (3, None),
            (44, None),
            (46, Some(Problem::Silent)),
        ] {
            rows[1].silent = Duration::from_secs(silent);
            assert_eq!(decide(&rows, LIMITS, None).map(|cause| cause.problem), cause, "{silent}");
        }
        (rows[1].left, rows[1].closed) = (true, true);
        assert_eq!(culprit(&rows), Some(2), "a rank that is done is not waited for");
    }

    #[test]
    fn of_ranks_that_hang_alike_the_suspected_one_stays_so() {
        let rows = [row(60, Doing::Steps, vec![]), row(61, Doing::Steps, vec![])];
        for (suspect, culprit) in [(None, 1), (Some(0), 0), (Some(1), 1)] {
            assert_eq!(decide(&rows, LIMITS, suspect).map(|cause| cause.rank), Some(culprit));
        }
    }
}
