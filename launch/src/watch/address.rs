//! Where the monitor listens, and how ranks reach it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use common::host_name;

use super::message::{Message, Sender};

/// The watch cannot start.
#[derive(Debug, thiserror::Error)]
#[error("{problem}. Rule: every rank reaches rank 0's monitor over TCP. Fix: {fix}")]
pub struct WatchError {
    problem: String,
    fix: &'static str,
}

const FIX: &str = "set parallel.monitor_address to an address of rank 0's node that the others reach (host, or host:port), \
                   or parallel.heartbeat_seconds = 0 to turn the watch off";

impl WatchError {
    fn new(problem: String) -> WatchError {
        WatchError { problem, fix: FIX }
    }
}

impl From<std::io::Error> for WatchError {
    fn from(error: std::io::Error) -> WatchError {
        WatchError::new(format!("the watch over ranks cannot start: {error}"))
    }
}

/// What rank 0 sends to all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    /// Proves that a connection belongs to this run.
    pub token: u64,
    /// `host:port`, in the order to try.
    addresses: Vec<String>,
}

impl std::fmt::Display for Announced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.token, self.addresses.join(" "))
    }
}

impl Announced {
    /// Parses the text from rank 0.
    ///
    /// # Errors
    /// Rank 0 has no monitor. It reports the reason itself.
    pub fn parse(text: &str) -> Result<Announced, WatchError> {
        let mut words = text.split_whitespace();
        let token = words.next().and_then(|word| word.parse().ok());
        let none = || WatchError::new("rank 0 has no monitor".into());
        Ok(Announced { token: token.ok_or_else(none)?, addresses: words.map(String::from).collect() })
    }
}

/// Listens on rank 0: at `address` if given. Otherwise on the loopback interface if all ranks are on `one_node`, and else on
/// all interfaces.
///
/// # Errors
/// An address of another node, or a port in use.
pub fn listen(address: Option<&str>, one_node: bool) -> Result<(TcpListener, Announced), WatchError> {
    let wanted = match address {
        Some(address) => with_port(address),
        None if one_node => "127.0.0.1:0".into(),
        None => "0.0.0.0:0".into(),
    };
    let listener = TcpListener::bind(&wanted)
        .map_err(|error| WatchError::new(format!("the monitor cannot listen on {wanted}: {error}")))?;
    let port = listener.local_addr()?.port();
    let addresses = match address {
        Some(_) => vec![format!("{}:{port}", wanted.rsplit_once(':').map_or("", |(host, _)| host))],
        None if one_node => vec![format!("127.0.0.1:{port}")],
        None => reachable(&host_name(), outward(), port),
    };
    let token = RandomState::new().build_hasher().finish();
    Ok((listener, Announced { token, addresses }))
}

/// The address with a port. Port 0, any free one, if it has none.
fn with_port(address: &str) -> String {
    let bare_v6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    match address.rsplit_once(':') {
        Some((_, port)) if !bare_v6 && port.parse::<u16>().is_ok() => address.into(),
        _ if bare_v6 => format!("[{address}]:0"),
        _ => format!("{address}:0"),
    }
}

/// The addresses by which other nodes may reach this one: those that its name has here, the `outward` one, and the name
/// itself, which other nodes may resolve to better ones.
fn reachable(host: &str, outward: Option<IpAddr>, port: u16) -> Vec<String> {
    let name = format!("{host}:{port}");
    let here = name.to_socket_addrs().into_iter().flatten().map(|address| address.ip());
    let mut all: Vec<String> = Vec::new();
    for ip in here.chain(outward) {
        // The monitor listens on IPv4 only.
        let outside = ip.is_ipv4() && !ip.is_loopback() && !ip.is_unspecified();
        let address = SocketAddr::new(ip, port).to_string();
        if outside && !all.contains(&address) {
            all.push(address);
        }
    }
    all.push(name);
    all
}

/// This node's address on its default route, for nodes whose name others cannot resolve. Nothing is sent: a connected
/// datagram socket knows its own address.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?; // an address reserved for documentation
    Some(socket.local_addr().ok()?.ip())
}

/// Connects to the monitor and sends the hello.
///
/// # Errors
/// None of the announced addresses can be reached.
pub fn connect(announced: &Announced, rank: usize) -> Result<(TcpStream, Sender), WatchError> {
    let mut tried = Vec::new();
    for address in &announced.addresses {
        let found: Vec<SocketAddr> = match address.to_socket_addrs() {
            Ok(found) => found.collect(),
            Err(error) => {
                tried.push(format!("{address}: {error}"));
                continue;
            }
        };
        for address in found {
            match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                Ok(stream) => {
                    let mut sender = Sender::new(stream.try_clone()?)?;
                    sender.send(&Message::Hello { token: announced.token, rank, host: host_name() })?;
                    return Ok((stream, sender));
                }
                Err(error) => tried.push(format!("{address}: {error}")),
            }
        }
    }
    Err(WatchError::new(format!("rank {rank} cannot reach the monitor on rank 0 ({})", tried.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_gets_a_free_one() {
        assert_eq!(with_port("10.0.0.1"), "10.0.0.1:0");
        assert_eq!(with_port("node7:4000"), "node7:4000");
        assert_eq!(with_port("fe80::1"), "[fe80::1]:0");
        assert_eq!(with_port("[fe80::1]:4000"), "[fe80::1]:4000");
    }

    #[test]
    fn a_node_whose_name_means_nothing_is_reached_by_its_address() {
        let outward = Some(IpAddr::from([10, 1, 2, 3]));
        assert_eq!(reachable("node7.invalid", outward, 40), ["10.1.2.3:40", "node7.invalid:40"]);
        // A name that stands for the loopback, as Debian sets it up, is of no use to others.
        assert_eq!(reachable("127.0.1.1", outward, 40), ["10.1.2.3:40", "127.0.1.1:40"]);
        assert_eq!(reachable("10.9.9.9", outward, 40)[..2], ["10.9.9.9:40", "10.1.2.3:40"]);
    }

    #[test]
    fn ranks_find_the_monitor_by_what_rank_0_tells() {
        for (address, one_node) in [(None, true), (None, false), (Some("127.0.0.1"), false)] {
            let (listener, announced) = listen(address, one_node).unwrap();
            let heard = Announced::parse(&announced.to_string()).unwrap();
            assert_eq!(heard, announced);
            connect(&heard, 3).unwrap_or_else(|error| panic!("{address:?}, one node {one_node}: {error}"));
            drop(listener);
            let error = connect(&heard, 3).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("rank 3 cannot reach the monitor") && error.contains("Fix: set"), "{error}");
        }
        assert!(Announced::parse("").unwrap_err().to_string().starts_with("rank 0 has no monitor"));
    }

    #[test]
    fn an_address_of_another_machine_is_refused_with_a_fix() {
        let error = listen(Some("192.0.2.1"), false).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("the monitor cannot listen on 192.0.2.1:0") && error.contains("Fix: "), "{error}");
    }
}
