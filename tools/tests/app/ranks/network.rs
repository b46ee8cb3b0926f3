//! Strangers on the network do not disturb a run.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::harness::{
    Folder, command, expect, output_of, printed, rank_ids, signal, start, start_of, steps_done, wait_for,
};

/// The TCP ports that a process listens on, at any address.
pub(crate) fn listening_ports(process: u32) -> BTreeSet<u16> {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let targets = descriptors.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let own: BTreeSet<String> = targets.map(|target| target.display().to_string()).collect();
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (address, state, inode) = (words[1], words[3], words[9]);
            // State 0A is LISTEN. A socket that is not bound yet has port 0.
            let port = u16::from_str_radix(address.rsplit_once(':').unwrap().1, 16).unwrap();
            if state == "0A" && port > 0 && own.contains(&format!("socket:[{inode}]")) {
                ports.insert(port);
            }
        }
    }
    ports
}

/// Waits for some more steps of a run: for more printed lines than any buffer between a rank and mpirun holds.
fn goes_on(folder: &Path) {
    let before = steps_done(folder);
    wait_for("the run stands still", || (steps_done(folder) >= before + 500).then_some(()));
}

#[test]
fn a_strangers_connection_does_not_stop_a_run() {
    let folder = Folder::new("network-stranger");
    let run = start(2, &folder.0, "--eval-interval 0 --log-interval 1");
    let ranks = rank_ids(&run);
    // The monitor listens until all ranks have connected.
    wait_for("a rank listens", || ranks.iter().all(|rank| listening_ports(*rank).is_empty()).then_some(()));
    let ports = listening_ports(run.id());
    assert!(!ports.is_empty(), "mpirun listens for daemons and for tools");
    let mut strangers = Vec::new();
    for port in ports {
        for begun in [&b"OPA"[..], &[0; 64], b""] {
            // A port may be of IPv6 alone.
            if let Ok(mut stranger) = TcpStream::connect(("127.0.0.1", port)) {
                stranger.write_all(begun).unwrap();
                strangers.push(stranger);
            }
        }
    }
    assert!(!strangers.is_empty());
    goes_on(&folder.0);
    drop(strangers);
    signal(ranks[1], "TERM");
    expect(&output_of(run), 0, &["asked to end: stops after step"]);
}

#[test]
fn a_user_may_choose_another_transport() {
    let folder = Folder::new("network-transport");
    let mut command = command(2, &folder.0, "--steps 1000000 --eval-interval 0 --log-interval 1000");
    command.env("OMPI_MCA_btl", "self,tcp").env("OMPI_MCA_btl_tcp_if_include", "lo");
    let run = start_of(command, &folder.0);
    let ranks = rank_ids(&run);
    assert!(ranks.iter().all(|rank| !listening_ports(*rank).is_empty()), "TCP was asked for");
    signal(ranks[0], "TERM");
    expect(&output_of(run), 0, &["asked to end: stops after step"]);
}

#[test]
fn the_fault_script_passes_in_its_short_form() {
    let folder = Folder::new("network-script");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/faults/faults.py");
    let mut command = Command::new("python3");
    crate::harness::set_mpi(&mut command, &folder.0);
    command.arg(script).args(["--short", env!("CARGO_BIN_EXE_trainer")]).current_dir(&folder.0);
    let output = command.output().unwrap();
    expect(&output, 0, &["| half a message |", "| last rank | KILL | 1 |", "Disk faults: "]);
    assert!(!printed(&output).contains("Disk faults: 0"), "no fault was met: {}", printed(&output));
}
