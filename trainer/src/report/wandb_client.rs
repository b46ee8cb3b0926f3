//! Sends a run's rows to Weights & Biases during the run, by Weights & Biases' Python client in a separate process. The
//! run never waits for it: rows wait in a queue, and a client that ends or falls behind is given up. The files have every
//! row.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use common::files::open_to_append;
use serde_json::json;

use crate::config::RunConfig;
use crate::config::model_name::name;
use crate::told::{say_and_log, tell};

/// The client's program, in Python.
const SCRIPT: &str = include_str!("wandb_client.py");

/// The file in `logging.dir` with the client's output.
pub(crate) const CLIENT_LOG: &str = "wandb-client.log";

/// The exit code of the script if Python has no module `wandb`.
const NO_MODULE: i32 = 3;

/// So many rows may wait for the client.
const QUEUE: usize = 4096;

/// The client's time at the end to send the remaining rows.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that is running.
pub struct Client {
    /// `None` once the client was given up.
    running: Option<(Child, SyncSender<String>)>,
    log: String,
}

impl Client {
    /// Starts the client of the run named `run`. `None` if the environment asks for none (`WANDB_MODE`), or there is no
    /// Python. Later failures are told by a notice.
    pub fn start(folder: &Path, run: &str, config: &RunConfig) -> Option<Client> {
        // Offline it writes a folder for `wandb sync`.
        if std::env::var("WANDB_MODE").is_ok_and(|mode| mode == "disabled") {
            return None;
        }
        let log = folder.join(CLIENT_LOG);
        let opened = open_to_append(&log);
        let output = opened.inspect_err(|error| tell(&refusal(&log, error))).ok()?;
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).stdout(output.try_clone().ok()?).stderr(output);
        let mut client = Client::spawn(command, log.display().to_string())?;
        client.send(&(begin(folder, run, config) + "\n"));
        Some(client)
    }

    /// Starts a command that reads rows.
    fn spawn(mut command: Command, log: String) -> Option<Client> {
        // A terminal's ^C asks the run to end, and its last rows are still to be sent.
        let mut child = command.stdin(Stdio::piped()).process_group(0).spawn().ok()?;
        let (rows, next) = sync_channel(QUEUE);
        let input = child.stdin.take()?;
        Builder::new().name("wandb".into()).spawn(move || feed(input, &next)).ok()?;
        Some(Client { running: Some((child, rows)), log })
    }

    /// Passes on a row. It must end with a line break. Waits for nothing.
    pub fn send(&mut self, row: &str) {
        let Some((mut child, rows)) = self.running.take() else { return };
        match child.try_wait() {
            Ok(Some(status)) if status.code() == Some(NO_MODULE) => {
                say_and_log("wandb: python3 has no module wandb: files only");
            }
            Ok(Some(status)) => self.give_up(&format!("ended early ({status})")),
            _ => match rows.try_send(row.into()) {
                Err(TrySendError::Full(_)) => {
                    end(child);
                    self.give_up("takes rows too slowly");
                }
                // A client that reads no more is about to end. The next row finds its exit status.
                Ok(()) | Err(TrySendError::Disconnected(_)) => self.running = Some((child, rows)),
            },
        }
    }

    /// Tells the client that the run ended, and waits a minute at most until everything is sent.
    pub fn finish(mut self) {
        self.send("null\n");
        let Some((mut child, rows)) = self.running.take() else { return };
        drop(rows);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match child.try_wait() {
                Ok(None) => sleep(Duration::from_millis(20)),
                Ok(Some(status)) if status.success() => return,
                Ok(Some(status)) if status.code() == Some(NO_MODULE) => return,
                Ok(Some(status)) => return self.give_up(&format!("failed ({status})")),
                Err(_) => return,
            }
        }
        end(child);
        self.give_up("did not come to its end");
    }

    fn give_up(&self, why: &str) {
        let line = format!("notice: the client of Weights & Biases {why}: see {}. The files have every row", self.log);
        tell(&line);
    }
}

/// Why there is no client: its output has no file.
fn refusal(log: &Path, error: &std::io::Error) -> String {
    format!(
        "notice: Weights & Biases is sent nothing: {} cannot be written: {error}. The files have every row",
        log.display()
    )
}

/// The first line for the client: the arguments of `wandb.init`. A run that resumes is the same one there.
fn begin(folder: &Path, run: &str, config: &RunConfig) -> String {
    let project = std::env::var("WANDB_PROJECT").unwrap_or("trainer".into());
    let default = || format!("{}-{}", name(&config.model), run.get(..4).unwrap_or(run));
    let name = std::env::var("WANDB_NAME").unwrap_or_else(|_| default());
    let config = serde_json::to_value(config).unwrap_or_default();
    json!({ "project": project, "name": name, "id": run, "resume": "allow", "dir": folder, "config": config })
        .to_string()
}

/// Writes rows to the client until there are no more rows, or the client reads no more.
fn feed(mut client: ChildStdin, rows: &Receiver<String>) {
    for row in rows {
        if client.write_all(row.as_bytes()).is_err() {
            break;
        }
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_closed_its_input_is_not_called_slow() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec <&-; exec sleep 1000000"]);
        let mut client = Client::spawn(command, "client.log".into()).unwrap();
        let begun = Instant::now();
        // Until the thread has met the closed pipe, and beyond.
        while begun.elapsed() < Duration::from_millis(500) {
            client.send("row\n");
            sleep(Duration::from_millis(5));
        }
        let (child, _) = client.running.take().expect("it still runs");
        end(child);
    }

    #[test]
    fn a_client_that_reads_nothing_is_ended_once_its_queue_is_full() {
        let mut command = Command::new("sleep");
        command.arg("1000000");
        let mut client = Client::spawn(command, "client.log".into()).unwrap();
        let row = "x".repeat(1000) + "\n";
        // More than the queue, a pipe and the thread between them hold.
        for _ in 0..QUEUE + 200 {
            client.send(&row);
        }
        assert!(client.running.is_none());
        client.send(&row);
        client.finish();
    }
}
