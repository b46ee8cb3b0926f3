//! A file with the state of all ranks, for people and programs outside of the run. A thread of its own writes it,
//! because a disk may hang and the monitor must not.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};

use common::files::replace_file;
use serde::{Deserialize, Serialize};

use super::decide::RankStatus;

/// The name of the file in a run's folder.
pub const RANKS: &str = "ranks.json";

/// A rank by the last heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRow {
    /// The rank.
    pub rank: usize,
    /// The rank's host, once the rank has joined.
    pub host: Option<String>,
    /// The rank's state.
    pub state: RankState,
    /// The activity of the rank's host.
    pub doing: Option<String>,
    /// The step under way on the rank's device.
    pub step: Option<u64>,
    /// The region that began last.
    pub region: Option<String>,
    /// Milliseconds since the rank's last message.
    pub silent_ms: u64,
    /// Milliseconds without progress, by the rank's own count.
    pub quiet_ms: u64,
}

common::choice! {
    /// How a rank is.
    #[derive(Default)]
    pub enum RankState {
        /// The rank has not connected.
        #[default]
        Joining = "joining",
        /// The rank sends heartbeats.
        Alive = "alive",
        /// The rank reported a clean end.
        Left = "left",
        /// The rank reported an error, or the rank's connection broke.
        Failed = "failed",
    }
}

impl RankRow {
    fn new(rank: usize, status: &RankStatus) -> RankRow {
        let state = match status {
            RankStatus { left: true, .. } => RankState::Left,
            RankStatus { fault: Some(_), .. } | RankStatus { closed: true, .. } => RankState::Failed,
            RankStatus { host: None, .. } => RankState::Joining,
            _ => RankState::Alive,
        };
        let beat = status.beat.as_ref();
        RankRow {
            rank,
            host: status.host.clone(),
            state,
            doing: beat.map(|beat| beat.doing.to_string()),
            step: beat.and_then(|beat| beat.step),
            region: beat.and_then(|beat| beat.region.clone()),
            silent_ms: status.silent.as_millis() as u64,
            quiet_ms: beat.map_or(0, |beat| beat.quiet_ms),
        }
    }
}

/// Writes the file.
pub(super) struct RanksFile(SyncSender<Vec<RankRow>>);

impl RanksFile {
    /// Starts the thread that writes the file at `path`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(path: PathBuf) -> std::io::Result<RanksFile> {
        let (sender, rows) = sync_channel::<Vec<RankRow>>(1);
        let write = move || rows.iter().for_each(|rows| write(&path, &rows).unwrap_or_default());
        std::thread::Builder::new().name("ranks file".into()).spawn(write)?;
        Ok(RanksFile(sender))
    }

    /// Has the ranks' state written, unless an earlier one is still being written. It never waits.
    pub(super) fn tell(&self, statuses: &[RankStatus]) {
        let rows = statuses.iter().enumerate().map(|(rank, status)| RankRow::new(rank, status));
        let _ = self.0.try_send(rows.collect());
    }
}

fn write(path: &Path, rows: &[RankRow]) -> std::io::Result<()> {
    let text = serde_json::to_vec(rows)?;
    replace_file(path, |file| file.write_all(&text)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::watch::activity::Doing;
    use crate::watch::message::{Beat, Fault};

    #[test]
    fn the_file_says_how_each_rank_is_and_what_it_does() {
        let beat = |doing| {
            let region = Some("forward of layer 2".into());
            Some(Beat { doing, quiet_ms: 7, step: Some(4), region, transfer: None, begun: Vec::new() })
        };
        let host = || Some("node3".into());
        let fault = Some(Fault { code: 3, error: "no".into(), follows: false });
        let statuses = [
            RankStatus { silent: Duration::from_millis(1500), ..RankStatus::default() },
            RankStatus { host: host(), beat: beat(Doing::Steps), ..RankStatus::default() },
            RankStatus { host: host(), fault, ..RankStatus::default() },
            RankStatus { host: host(), closed: true, beat: beat(Doing::Writes), ..RankStatus::default() },
            RankStatus { host: host(), closed: true, left: true, ..RankStatus::default() },
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RANKS);
        let file = RanksFile::start(path.clone()).unwrap();
        file.tell(&statuses);
        let rows: Vec<RankRow> = loop {
            match std::fs::read(&path) {
                Ok(bytes) => break serde_json::from_slice(&bytes).unwrap(),
                Err(_) => std::thread::yield_now(),
            }
        };
        let states: Vec<String> = rows.iter().map(|row| row.state.to_string()).collect();
        assert_eq!(states, ["joining", "alive", "failed", "failed", "left"]);
        assert_eq!((rows[0].silent_ms, rows[1].step, rows[1].quiet_ms), (1500, Some(4), 7));
        assert_eq!(
            (rows[3].doing.as_deref(), rows[1].region.as_deref()),
            (Some("writing files"), Some("forward of layer 2"))
        );
    }
}
