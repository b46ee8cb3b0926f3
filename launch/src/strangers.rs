//! Connections to a launcher's ports that belong to no process of the run.
//!
//! Open MPI's mpirun listens for its ranks, its daemons and for tools. It waits without a limit for the rest of what a
//! connection begins to say, on threads that all ranks need. So a stranger that connects during the start and sends
//! nothing, or half a message, holds up the run for ever. The ports cannot be closed, and belong to mpirun. All that
//! can be done is to report it.

use std::collections::HashSet;
use std::path::Path;

/// The possible origins of connections to a launcher during the start of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All ranks of the launcher are on this machine, and below the launcher: every other connection is a stranger's.
    ThisMachine,
    /// Daemons on other machines connect too. Only connections to a loopback address are known to be strangers'.
    OtherMachines,
}

/// A line of the system's table of connections. Addresses are hexadecimal, with their ports.
struct Row<'t> {
    local: &'t str,
    remote: &'t str,
    state: &'t str,
    user: &'t str,
    socket: &'t str,
}

const ESTABLISHED: &str = "01";
const LISTENING: &str = "0A";

/// The stranger that is connected to a port of `launchers` and is none of the processes `own`, in words. `None` without
/// one.
pub(crate) fn stranger(launchers: &[i32], own: &[i32], reach: Reach) -> Option<String> {
    let listening: HashSet<String> = launchers.iter().flat_map(|id| sockets(*id)).collect();
    let own: HashSet<String> = own.iter().flat_map(|id| sockets(*id)).collect();
    ["tcp", "tcp6"].iter().find_map(|table| {
        let text = std::fs::read_to_string(format!("/proc/{}/net/{table}", launchers.first()?)).ok()?;
        let rows: Vec<Row<'_>> = text.lines().skip(1).filter_map(row).collect();
        let is_known = |address: &str| reach == Reach::ThisMachine || is_loopback(address);
        let ports: Vec<&str> = rows
            .iter()
            .filter(|row| row.state == LISTENING && listening.contains(row.socket) && is_known(row.local))
            .map(|row| port(row.local))
            .collect();
        let ends = rows.iter().filter(|row| row.state == ESTABLISHED);
        // The launcher's end of each connection. Its other end is a line of its own if it is on this machine.
        let mut taken = ends.clone().filter(|row| ports.contains(&port(row.local)));
        taken.find_map(|taken| {
            let other = ends.clone().find(|row| row.local == taken.remote && row.remote == taken.local);
            let at = u16::from_str_radix(port(taken.local), 16).unwrap_or_default();
            match other {
                Some(other) if own.contains(other.socket) => None,
                Some(other) => Some(format!("{}, which is connected to its port {at}", owner(other))),
                None => Some(format!("a stranger from another machine, who is connected to its port {at}")),
            }
        })
    })
}

fn row(line: &str) -> Option<Row<'_>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, local, remote, state, _, _, _, user, _, socket, ..] => Some(Row { local, remote, state, user, socket }),
        _ => None,
    }
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').map_or("", |(_, port)| port)
}

/// Whether an IPv4 address is of 127.0.0.0/8. The last byte comes first.
fn is_loopback(address: &str) -> bool {
    address.split_once(':').is_some_and(|(host, _)| host.len() == 8 && host.ends_with("7F"))
}

/// The process that has a socket, if this user may see the process.
fn owner(row: &Row<'_>) -> String {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    match ids.find(|id| sockets(*id).iter().any(|socket| socket == row.socket)) {
        Some(id) => {
            let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            format!("process {id} ({})", name.trim_end())
        }
        None => format!("a process of user {}", row.user),
    }
}

/// The numbers of a process's sockets.
fn sockets(process: i32) -> Vec<String> {
    let files = std::fs::read_dir(Path::new("/proc").join(process.to_string()).join("fd")).into_iter().flatten();
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let number = |target: String| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_string());
    targets.filter_map(|target| number(target.to_str()?.into())).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_connection_is_a_strangers_unless_its_other_end_is_of_the_run() {
        let me = std::process::id() as i32;
        for (address, reach) in [("127.0.0.1", Reach::OtherMachines), ("0.0.0.0", Reach::ThisMachine)] {
            let listener = TcpListener::bind((address, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            assert_eq!(stranger(&[me], &[me], reach), None);
            let own = TcpStream::connect(("127.0.0.1", port)).unwrap();
            assert_eq!(stranger(&[me], &[me], reach), None, "{address}");
            let connects = format!(
                "import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); \
                                    print('ready', flush=True); sys.stdin.read()"
            );
            let mut command = Command::new("python3");
            command.args(["-c", &connects]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut other = command.spawn().unwrap();
            let mut ready = String::new();
            let output = other.stdout.take().unwrap();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut ready).unwrap();
            let says = format!("process {} (python3), which is connected to its port {port}", other.id());
            assert_eq!(stranger(&[me], &[me], reach), Some(says), "{address}");
            if address == "0.0.0.0" {
                assert_eq!(stranger(&[me], &[me], Reach::OtherMachines), None, "it may be a daemon");
            }
            drop((other.stdin.take(), own));
            other.wait().unwrap();
        }
    }
}
