//! The addresses of the monitor, and how ranks reach the monitor.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use common::host_name;

use super::message::{Message, Sender, Token};

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

/// The message of rank 0 to all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    /// Proves that a connection belongs to this run.
    pub token: Token,
    /// `host:port`, in the order to try.
    addresses: Vec<String>,
}

impl Announced {
    /// The text to send to the ranks. It has the token, so it is not printed.
    pub fn to_text(&self) -> String {
        format!("{} {}", self.token.to_text(), self.addresses.join(" "))
    }

    /// Parses the text from rank 0.
    ///
    /// # Errors
    /// Rank 0 has no monitor. It reports the reason itself.
    pub fn parse(text: &str) -> Result<Announced, WatchError> {
        let mut words = text.split_whitespace();
        let token = words.next().and_then(Token::parse);
        let none = || WatchError::new("rank 0 has no monitor".into());
        Ok(Announced { token: token.ok_or_else(none)?, addresses: words.map(String::from).collect() })
    }
}

/// Listens on rank 0: at `address` if given. Otherwise on the loopback interface if all ranks are on `one_node`, and else at
/// the addresses by which other nodes may reach this one. Ranks are told those addresses, and no others.
///
/// # Errors
/// An address of another node, or a port in use.
pub fn listen(address: Option<&str>, one_node: bool) -> Result<(Vec<TcpListener>, Announced), WatchError> {
    let (listeners, addresses) = match address {
        Some(address) => {
            let wanted = with_port(address);
            let (listener, port) = bind(&wanted)?;
            (vec![listener], vec![format!("{}:{port}", wanted.rsplit_once(':').map_or("", |(host, _)| host))])
        }
        None if one_node => {
            let (listener, port) = bind("127.0.0.1:0")?;
            (vec![listener], vec![format!("127.0.0.1:{port}")])
        }
        None => listen_outside(&host_name(), outward())?,
    };
    Ok((listeners, Announced { token: Token::random(), addresses }))
}

/// Binds, and returns the port too.
fn bind(wanted: &str) -> Result<(TcpListener, u16), WatchError> {
    let listener = TcpListener::bind(wanted)
        .map_err(|error| WatchError::new(format!("the monitor cannot listen on {wanted}: {error}")))?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Listens at the addresses by which other nodes may reach this node: those that its name has here, and the `outward`
/// one. A node without any is known to others by its name alone. Its address for others cannot be known here, so then the
/// monitor listens on all.
fn listen_outside(host: &str, outward: Option<IpAddr>) -> Result<(Vec<TcpListener>, Vec<String>), WatchError> {
    // An address of the name may be one of a gateway, and not of this node.
    let bound: Vec<_> = reachable(host, outward).iter().filter_map(|ip| bind(&format!("{ip}:0")).ok()).collect();
    if bound.is_empty() {
        let (listener, port) = bind("0.0.0.0:0")?;
        return Ok((vec![listener], vec![format!("{host}:{port}")]));
    }
    let mut addresses = Vec::new();
    for (listener, _) in &bound {
        addresses.push(listener.local_addr()?.to_string());
    }
    Ok((bound.into_iter().map(|(listener, _)| listener).collect(), addresses))
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

/// The IPv4 addresses that this node's name has here, and the `outward` address, without addresses that other nodes
/// cannot use.
fn reachable(host: &str, outward: Option<IpAddr>) -> Vec<IpAddr> {
    let here = (host, 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip());
    let mut all = Vec::new();
    for ip in here.chain(outward) {
        let outside = ip.is_ipv4() && !ip.is_loopback() && !ip.is_unspecified();
        if outside && !all.contains(&ip) {
            all.push(ip);
        }
    }
    all
}

/// This node's address on the default route, for nodes with a name that others cannot resolve. Nothing is sent: a
/// connected datagram socket knows its own address.
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
                    let (token, process) = (announced.token, std::process::id());
                    sender.send(&Message::Hello { token, rank, host: host_name(), process })?;
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
        let ip = |last| IpAddr::from([10, 1, 2, last]);
        assert_eq!(reachable("node7.invalid", Some(ip(3))), [ip(3)]);
        // A name that stands for the loopback, as Debian sets it up, is of no use to others.
        assert_eq!(reachable("127.0.1.1", Some(ip(3))), [ip(3)]);
        assert_eq!(reachable("10.1.2.9", Some(ip(3))), [ip(9), ip(3)]);
    }

    #[test]
    fn on_several_nodes_the_monitor_listens_where_ranks_are_told_and_nowhere_else() {
        // A machine for tests may have no address but the loopback's.
        if let Some(outward) = outward().filter(|ip| !ip.is_loopback()) {
            let (listeners, told) = listen_outside("127.0.1.1", Some(outward)).unwrap();
            let bound: Vec<String> = listeners.iter().map(|at| at.local_addr().unwrap().to_string()).collect();
            assert_eq!(bound, told);
            assert!(told.iter().all(|address| address.starts_with(&format!("{outward}:"))), "{told:?}");
        }
        // An address of another machine cannot be listened on, so ranks are told the name.
        let (listeners, told) = listen_outside("node7.invalid", Some(IpAddr::from([192, 0, 2, 1]))).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        assert_eq!((listeners.len(), told), (1, vec![format!("node7.invalid:{port}")]));
    }

    #[test]
    fn ranks_find_the_monitor_by_what_rank_0_tells() {
        for (address, one_node) in [(None, true), (None, false), (Some("127.0.0.1"), false)] {
            let (listeners, announced) = listen(address, one_node).unwrap();
            let heard = Announced::parse(&announced.to_text()).unwrap();
            assert_eq!(heard, announced);
            connect(&heard, 3).unwrap_or_else(|error| panic!("{address:?}, one node {one_node}: {error}"));
            drop(listeners);
            let error = connect(&heard, 3).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("rank 3 cannot reach the monitor") && error.contains("Fix: set"), "{error}");
            assert!(!error.contains(&announced.token.to_text()), "{error}");
        }
        assert!(Announced::parse("").unwrap_err().to_string().starts_with("rank 0 has no monitor"));
    }

    #[test]
    fn an_address_of_another_machine_is_refused_with_a_fix() {
        let error = listen(Some("192.0.2.1"), false).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("the monitor cannot listen on 192.0.2.1:0") && error.contains("Fix: "), "{error}");
    }
}
