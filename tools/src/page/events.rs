//! Reads the logs of a run's ranks: the events beside its steps.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use common::files::open_file;
use common::{Choice, choice};
use serde::Deserialize;

/// The longest line of a log that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// Of each log the last events are kept, and all are counted.
const KEPT: usize = 500;

choice! {
    /// The kind of an event.
    pub enum EventKind {
        /// The first start.
        Start = "start",
        /// A further one.
        Restart = "restart",
        /// A checkpoint was saved or continued.
        Checkpoint = "checkpoint",
        /// A step without an update.
        SkippedStep = "skipped step",
        /// A warning.
        Warning = "warning",
        /// The error that ended the run.
        Fault = "fault",
        /// The end of the run.
        End = "end",
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// The event's time by RFC 3339, in UTC. So text sorts as time does.
    pub(crate) time: String,
    pub(crate) rank: usize,
    pub(crate) kind: EventKind,
    pub(crate) text: String,
}

/// The contents of all ranks' logs.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// By time.
    pub(crate) events: Vec<Event>,
    /// Events by kind, in the order of [`Choice::ALL`]; events that are not kept included.
    pub(crate) counts: [usize; <EventKind as Choice>::ALL.len()],
    /// The plan that the last start printed.
    pub(crate) plan: Option<String>,
    /// The line about graphs that the last start printed.
    pub(crate) graphs: Option<String>,
    /// The file of `--graph-report`, from the last command that has the flag.
    pub(crate) graph_report: Option<String>,
    /// Whether the last start did all steps of the run.
    pub(crate) is_done: bool,
}

/// A line of `rank-N.jsonl`.
#[derive(Deserialize)]
struct Line {
    timestamp: String,
    level: String,
    fields: Fields,
}

#[derive(Deserialize)]
struct Fields {
    #[serde(default)]
    message: String,
}

impl Log {
    /// Adds the log of rank `rank`. Of other ranks than 0 only warnings and faults count: they start and end as rank 0
    /// does.
    ///
    /// # Errors
    /// The operating system's error.
    pub(crate) fn add(&mut self, path: &Path, rank: usize) -> std::io::Result<()> {
        let mut file = BufReader::new(open_file(path)?);
        let mut kept: VecDeque<Event> = VecDeque::new();
        let mut line = Vec::new();
        while file.by_ref().take(LONGEST).read_until(b'\n', &mut line)? > 0 {
            let read = serde_json::from_slice::<Line>(&line);
            line.clear();
            let Ok(Line { timestamp, level, fields: Fields { message } }) = read else { continue };
            let Some(kind) = self.kind(&level, &message, rank) else { continue };
            self.counts[kind as usize] += 1;
            kept.push_back(Event { time: timestamp, rank, kind, text: message });
            if kept.len() > KEPT {
                kept.pop_front();
            }
        }
        self.events.extend(kept);
        self.events.sort_by(|a, b| a.time.cmp(&b.time));
        Ok(())
    }

    /// The kind of event that a message tells of. Also notes its facts about the run as a whole.
    fn kind(&mut self, level: &str, message: &str, rank: usize) -> Option<EventKind> {
        let of_rank_0 = match message {
            _ if rank > 0 => None,
            _ if message.starts_with("trainer ") && message.contains(" starts as process ") => {
                self.graph_report = flag_value(message, "--graph-report").or(self.graph_report.take());
                let has_run = self.counts[EventKind::Start as usize] > 0;
                self.is_done = false;
                Some(if has_run { EventKind::Restart } else { EventKind::Start })
            }
            _ if message.starts_with("┌─ plan") => {
                self.plan = Some(message.into());
                return None;
            }
            _ if message.starts_with("graphs: ") => {
                self.graphs = Some(message.into());
                return None;
            }
            _ if message.starts_with("done: ") => {
                self.is_done = true;
                Some(EventKind::End)
            }
            _ if message.contains("stops after step ") => Some(EventKind::End),
            _ if message.contains(": the update was skipped") => Some(EventKind::SkippedStep),
            _ if level == "INFO"
                && ["checkpoint ", "no checkpoint ", "continues "].iter().any(|s| message.starts_with(s)) =>
            {
                Some(EventKind::Checkpoint)
            }
            _ => None,
        };
        of_rank_0.or(match level {
            "ERROR" => Some(EventKind::Fault),
            "WARN" => Some(EventKind::Warning),
            _ => None,
        })
    }

    /// How many events of a kind there were.
    pub(crate) fn count(&self, kind: EventKind) -> usize {
        self.counts[kind as usize]
    }
}

/// The value of a flag in the message at a run's start. The message ends with the command as a list of quoted
/// arguments.
fn flag_value(message: &str, flag: &str) -> Option<String> {
    let (_, list) = message.split_once(": [")?;
    let arguments: Vec<String> = serde_json::from_str(&format!("[{list}")).ok()?;
    let mut values = arguments.iter().enumerate().filter_map(|(at, argument)| match argument.strip_prefix(flag)? {
        "" => arguments.get(at + 1).cloned(),
        rest => rest.strip_prefix('=').map(String::from),
    });
    values.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(of_ranks: [&[(&str, &str)]; 2]) -> Log {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::default();
        for (rank, lines) in of_ranks.into_iter().enumerate() {
            let path = folder.path().join(format!("rank-{rank}.jsonl"));
            let line = |(at, (level, message)): (usize, &(&str, &str))| {
                let time = format!("2026-01-01T00:00:{:02}Z", 2 * at + rank);
                serde_json::json!({ "timestamp": time, "level": level, "fields": { "message": message } }).to_string()
                    + "\n"
            };
            let text: String = lines.iter().enumerate().map(line).collect();
            std::fs::write(&path, text + "not JSON\n{\"timestamp\":").unwrap();
            log.add(&path, rank).unwrap();
        }
        log
    }

    #[test]
    fn starts_checkpoints_skipped_steps_and_faults_of_all_ranks_come_by_time() {
        let start = "trainer 0.1.0 starts as process 7: [\"trainer\", \"--graph-report\", \"g.json\"]";
        let again = "trainer 0.1.0 starts as process 9: [\"trainer\"]";
        let log = log([
            &[
                ("INFO", start),
                ("INFO", "┌─ plan of a rank ┐"),
                ("INFO", "step 1/9  loss 2.0"),
                ("INFO", "step 1: the update was skipped, because the gradients are not finite"),
                ("INFO", "checkpoint after step 2: saved/step-00000002"),
                ("INFO", again),
                ("INFO", "continues saved/step-00000002 at step 2, sample 4"),
                ("INFO", "graphs: 3 graphs, 9 nodes"),
                ("INFO", "done: loss 1.0"),
            ],
            &[("INFO", start), ("ERROR", "error on rank 1: it died"), ("WARN", "slow")],
        ]);
        let kinds: Vec<(usize, EventKind)> = log.events.iter().map(|event| (event.rank, event.kind)).collect();
        use EventKind::*;
        let expected = [(0, Start), (1, Fault), (1, Warning), (0, SkippedStep), (0, Checkpoint), (0, Restart)];
        assert_eq!(kinds, [&expected[..], &[(0, Checkpoint), (0, End)]].concat());
        assert_eq!((log.graph_report.as_deref(), log.is_done), (Some("g.json"), true));
        assert_eq!(log.graphs.as_deref(), Some("graphs: 3 graphs, 9 nodes"));
        assert!(log.plan.is_some());
    }

    #[test]
    fn a_run_that_was_started_again_is_not_done() {
        let start = "trainer 0.1.0 starts as process 7: [\"trainer\"]";
        assert!(!log([&[("INFO", start), ("INFO", "done: loss 1.0"), ("INFO", start)], &[]]).is_done);
    }

    #[test]
    fn of_very_many_events_the_last_are_kept_and_all_are_counted() {
        let many = vec![("WARN", "again"); KEPT + 3];
        let log = log([&many, &[]]);
        assert_eq!((log.events.len(), log.count(EventKind::Warning)), (KEPT, KEPT + 3));
    }

    #[test]
    fn a_flags_value_is_the_next_argument_or_follows_an_equals_sign() {
        let value = |list: &str| flag_value(&format!("trainer 1 starts as process 2: {list}"), "--graph-report");
        assert_eq!(value(r#"["trainer", "--graph-report", "a b\".json", "--x"]"#).as_deref(), Some("a b\".json"));
        assert_eq!(
            value(r#"["trainer", "--graph-report=a.json", "--graph-report=b.json"]"#).as_deref(),
            Some("b.json")
        );
        assert_eq!(
            [value(r#"["trainer", "--graph-reports", "x"]"#), value(r#"["--graph-report"]"#), value("x")],
            [const { None }; 3]
        );
    }
}
