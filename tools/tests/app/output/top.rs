//! `trainer top` without a terminal, on an immense one, and on a folder that is not that of a run.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::harness::{Folder, expect, run};

#[test]
fn without_a_terminal_the_user_is_told_to_use_the_report() {
    let folder = Folder::new("top");
    expect(&run(2, &folder.0, "--steps 3 --heartbeat-seconds 0.05"), 0, &[]);
    assert!(folder.path("log/ranks.json").is_file(), "rank 0 keeps the state of all ranks");
    let top = |folder: &str| Command::new(env!("CARGO_BIN_EXE_trainer")).args(["top", folder]).output().unwrap();
    let log = folder.path("log");
    let fix = format!("Fix: for a file use trainer report {}", log.display());
    expect(&top(log.to_str().unwrap()), 2, &["trainer top without a terminal", "Rule: ", &fix]);
    expect(&top("no-such-run"), 2, &["no-such-run has neither metrics.jsonl nor rank-0.jsonl", "Fix: "]);
}

#[test]
fn a_terminal_that_says_it_is_immense_is_drawn_in_part() {
    let folder = Folder::new("top-immense");
    expect(&run(1, &folder.0, "--steps 2"), 0, &["done: loss"]);
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: u16::MAX, ws_col: u16::MAX, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let path = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let end = || Stdio::from(File::options().read(true).write(true).open(&path).unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.arg("top").arg(folder.path("log")).env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().unwrap();
    drop(command); // it holds the other end too
    let (mut shown, mut buffer, mut terminal) = (String::new(), [0; 4096], File::from(terminal));
    let mut is_ended = false;
    while let Ok(read @ 1..) = terminal.read(&mut buffer) {
        shown += &String::from_utf8_lossy(&buffer[..read]);
        if !is_ended && shown.contains("q quits") {
            terminal.write_all(b"q").unwrap();
            is_ended = true;
        }
    }
    assert!(child.wait().unwrap().success() && is_ended);
    assert!(shown.trim_end().ends_with("log: step 2") && shown.len() < 4 << 20, "{} bytes", shown.len());
}
