//! The output on a terminal: nothing is wider than it, little is coloured, and a line at the bottom shows the run's
//! progress. Files and pipes get plain lines.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use unicode_width::UnicodeWidthChar;

use crate::harness::{Folder, arguments, expect, mpi_folder, printed, run, saved};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

/// Variables that change colours. Tests set those that they are about.
const COLOURS: [&str; 4] = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM"];

/// The lines that a terminal showed.
pub struct Shown {
    /// All bytes.
    pub bytes: String,
    /// The lines that stay.
    pub lines: Vec<String>,
    /// Lines that were erased: the texts of the line at the bottom.
    pub erased: Vec<String>,
    /// The most columns that a line took at any time.
    pub widest: usize,
}

impl Shown {
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// The text without the breaks that wrapping puts between its words.
    fn unwrapped(&self) -> String {
        self.text().split_whitespace().collect()
    }
}

/// Runs a command on a terminal of 80 columns.
pub fn on_terminal(mut command: Command, term: &str) -> Shown {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let path = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let end = || Stdio::from(File::options().read(true).write(true).open(&path).unwrap());
    let mut child = command.env("TERM", term).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    drop(command); // it holds the other end too
    let (mut bytes, mut terminal) = (Vec::new(), File::from(terminal));
    // Once nobody holds the other end, reading fails.
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = terminal.read(&mut buffer) {
        bytes.extend(&buffer[..read]);
    }
    let status = child.wait().unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert!(status.success(), "{status}: {text}");
    seen(text)
}

/// The lines that a terminal makes of bytes. It knows the few controls that are used.
fn seen(bytes: String) -> Shown {
    let mut shown = Shown { bytes: String::new(), lines: Vec::new(), erased: Vec::new(), widest: 0 };
    let (mut line, mut characters) = (Vec::new(), bytes.chars());
    let mut column = 0;
    while let Some(character) = characters.next() {
        match character {
            '\n' => {
                shown.lines.push(line.drain(..).collect());
                column = 0;
            }
            '\r' => column = 0,
            '\u{1b}' => {
                assert_eq!(characters.next(), Some('['));
                let end = characters.find(|end| end.is_alphabetic());
                if end == Some('K') {
                    let erased: String = line.drain(column..).collect();
                    shown.erased.extend((!erased.is_empty()).then_some(erased));
                } else {
                    assert_eq!(end, Some('m'));
                }
            }
            character => {
                assert_eq!(character.width(), Some(1), "{character:?}");
                line.truncate(column);
                line.push(character);
                column += 1;
                shown.widest = shown.widest.max(column);
            }
        }
    }
    assert!(line.is_empty(), "{line:?} is left at the end");
    shown.bytes = bytes;
    shown
}

fn trainer(words: &[&str], folder: &Path, flags: &str) -> Command {
    let mut command = Command::new(TRAINER);
    COLOURS.iter().for_each(|name| _ = command.env_remove(name));
    command.args(words).args(arguments(folder, flags)).env("TMPDIR", mpi_folder(folder));
    command
}

/// A path that no line has room for.
fn long(folder: &Folder) -> PathBuf {
    folder.path(&["a-long-name-of-a-folder"; 4].join("/"))
}

/// Flags of a run that has much to say: notices, graphs, evaluations, checkpoints, long paths.
fn talkative(folder: &Folder, steps: usize) -> String {
    let long = long(folder);
    format!(
        "--steps {steps} --enable-cuda-graph --check-graphs --sequence-parallel --log-interval 2 --save {}/saved --log-dir \
         {}/log --trace {}/log/trace.json --log info",
        long.display(),
        long.display(),
        long.display()
    )
}

#[test]
fn nothing_is_wider_than_a_terminal_of_80_columns_and_nothing_is_lost() {
    let folder = Folder::new("terminal-80");
    let shown = on_terminal(trainer(&[], &folder.0, &talkative(&folder, 6)), "xterm");
    assert!(shown.widest <= 80, "{}", shown.text());
    for part in
        ["┌─ plan of a rank ─", "step 1/6  loss ", "  validation ", "done: loss ", "notice: ", "checked on 1 rank: "]
    {
        assert!(shown.text().contains(part), "{part:?} is not in {}", shown.text());
    }
    let again = on_terminal(trainer(&[], &folder.0, &talkative(&folder, 8)), "xterm");
    assert!(again.widest <= 80, "{}", again.text());
    let whole = format!("continues{}atstep6", long(&folder).join("saved/step-00000006").display());
    assert!(again.unwrapped().contains(&whole), "{whole} is not in {}", again.text());
}

#[test]
fn the_line_at_the_bottom_shows_steps_and_time_left_and_goes_at_the_end() {
    let folder = Folder::new("terminal-bar");
    let shown = on_terminal(trainer(&[], &folder.0, "--steps 400 --eval-interval 0 --log-interval 100"), "xterm");
    let bars: Vec<&String> = shown.erased.iter().filter(|line| line.contains("░") && line.contains("/400")).collect();
    assert!(bars.iter().any(|bar| bar.contains(" s left  loss ")), "{:?}", shown.erased);
    assert!(!shown.text().contains('░') && !shown.text().contains(" left"), "{}", shown.text());
    let last = shown.lines.last().unwrap();
    assert!(last.starts_with("done: loss ") && last.contains(", in ") && last.ends_with(" s"), "{last:?}");
    assert!(shown.bytes.contains("\u{1b}[1mloss "), "the loss of a step is bold");
}

#[test]
fn launch_and_its_ranks_use_the_terminal_as_a_single_process_does() {
    let folder = Folder::new("terminal-launch");
    let mut command = Command::new(TRAINER);
    COLOURS.iter().for_each(|name| _ = command.env_remove(name));
    let flags = format!("{} --log warn", talkative(&folder, 300)).replace("--log info", "");
    command.env("TMPDIR", mpi_folder(&folder.0)).args(["launch", "-n", "2", "--"]).args(arguments(&folder.0, &flags));
    let shown = on_terminal(command, "xterm");
    assert!(shown.widest <= 80, "{}", shown.text());
    assert!(shown.erased.iter().any(|line| line.contains("░") && line.contains(" left")), "{:?}", shown.erased);
    assert!(shown.text().contains("step 300/300  loss ") && shown.text().contains("done: loss "), "{}", shown.text());
}

#[test]
fn lines_are_plain_and_whole_where_no_terminal_reads_also_under_mpirun() {
    for ranks in [1, 2] {
        let folder = Folder::new("terminal-pipe");
        let output = run(ranks, &folder.0, &talkative(&folder, 6));
        expect(&output, 0, &["done: loss", "┌─ plan of a rank ─"]);
        let text = printed(&output);
        assert!(!text.contains('\u{1b}') && !text.contains('░'), "{text}");
        let step = text.lines().find(|line| line.starts_with("step 4/6  ")).unwrap();
        for part in ["loss ", "norm ", "lr ", " ms", " tok/s", "FLOP/s", " left"] {
            assert!(step.contains(part), "{part:?} is not in {step}");
        }
    }
}

#[test]
fn colours_are_those_that_the_environment_asks_for_and_never_in_files() {
    let coloured = |name: &str, value: &str, term: &str| {
        let folder = Folder::new("terminal-colours");
        let mut command = trainer(&[], &folder.0, "--steps 2");
        command.env(name, value);
        let shown = on_terminal(command, term);
        let log = std::fs::read_to_string(folder.path("log/run.log")).unwrap();
        assert!(log.contains("done: loss ") && !log.contains('\u{1b}'), "{log}");
        (shown.bytes.contains("\u{1b}[1m"), shown.bytes.contains('\u{1b}'))
    };
    assert_eq!(coloured("LANG", "C", "xterm"), (true, true));
    assert_eq!(coloured("NO_COLOR", "1", "xterm"), (false, true), "the line at the bottom needs no colour");
    assert_eq!(coloured("CLICOLOR", "0", "xterm"), (false, true));
    assert_eq!(coloured("LANG", "C", "dumb"), (false, false));
    let folder = Folder::new("terminal-forced");
    let output = trainer(&[], &folder.0, "--steps 2").env("CLICOLOR_FORCE", "1").output().unwrap();
    expect(&output, 0, &["\u{1b}[1mloss "]);
    let error = trainer(&[], &folder.0, "--steps 0").env("CLICOLOR_FORCE", "1").output().unwrap();
    expect(&error, 2, &["\u{1b}[1m\u{1b}[31merror:\u{1b}[0m "]);
    assert_eq!(saved(&folder.0), [2]);
}

#[test]
fn the_table_of_bench_fits_the_terminal() {
    let folder = Folder::new("terminal-tables");
    let shown = on_terminal(trainer(&["bench"], &folder.0, "--steps 2 --enable-cuda-graph"), "xterm");
    assert!(shown.widest <= 80 && shown.text().contains("\"tokens_per_s\": "), "{}", shown.text());
}
