//! Connects the memory of a group's GPUs, so that kernels of one can read that of the others.

use std::ops::Range;
use std::rc::Rc;

use device::SharedArea;
use device::cuda::{GpuProperties, PeerHandle, PeerWindow, Peers};

use crate::mpi::MpiGroup;

/// Bytes of a reason that ranks tell each other.
const WHY_BYTES: usize = 400;

/// A group's memory, connected. All ranks of the group make and drop it together.
pub(crate) struct PeerLink {
    /// The peers' memory; `None` while the link is dropped.
    peers: Option<Peers>,
    /// The rank's own window, freed after all ranks have unmapped the window.
    _window: Rc<PeerWindow>,
    group: MpiGroup,
}

/// Why a group is not connected.
#[derive(Debug)]
pub(crate) enum NoLink {
    /// Unsupported topology: a link cannot join ranks that are placed so.
    Placement(&'static str),
    /// The GPUs do not reach each other, or the system forbids the access.
    Refused(String),
}

impl std::fmt::Display for NoLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoLink::Placement(why) => f.write_str(why),
            NoLink::Refused(why) => f.write_str(why),
        }
    }
}

impl PeerLink {
    /// Connects the group, or says why not: on all ranks, or on none. All ranks call it together.
    ///
    /// # Errors
    /// The reason that this rank knows.
    pub(crate) fn new(group: MpiGroup, gpu: &GpuProperties) -> Result<PeerLink, NoLink> {
        let (rank, ranks) = (group.rank(), group.size());
        // Every step has an end that all ranks reach, whatever they found before it.
        let own = on_one_node(&group, gpu).and_then(|()| exported(ranks));
        let (window, handle) = agreed(&group, own)?;
        let handles: Vec<_> = group.all_gather(&handle).as_chunks().0.to_vec();
        let connected = window.clone().connect(rank, &handles).map_err(refused);
        let mapped = agreed(&group, connected);
        group.barrier();
        Ok(PeerLink { peers: Some(mapped?), _window: window, group })
    }

    pub(crate) fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// Lets the group's other GPUs write rows into the area, or says why the GPUs cannot: on all ranks, or on none. All
    /// ranks of the group call it together.
    ///
    /// # Errors
    /// The reason that this rank knows.
    pub(crate) fn share(self: &Rc<Self>, area: Range<u64>) -> Result<SharedArea, String> {
        let told = |why: NoLink| why.to_string();
        let peers = self.peers().ok_or("the link is gone")?;
        let handle = agreed(&self.group, Peers::handle_of(area.start).map_err(refused)).map_err(told)?;
        let handles: Vec<_> = self.group.all_gather(&handle).as_chunks().0.to_vec();
        let shared = Reached { link: self.clone(), start: area.start };
        agreed(&self.group, peers.reach(area, &handles).map_err(refused)).map_err(told)?;
        Ok(Box::new(shared))
    }
}

/// Memory that the group's other GPUs reach.
struct Reached {
    link: Rc<PeerLink>,
    /// Where this rank's memory begins.
    start: u64,
}

impl Drop for Reached {
    /// Leaves the other ranks' areas, and waits until all ranks have done so: then this rank's may be freed.
    fn drop(&mut self) {
        // A failed kernel is told where its results are waited for.
        let _ = self.link.peers().map(|peers| peers.leave(self.start));
        if !std::thread::panicking() {
            self.link.group.barrier();
        }
    }
}

impl Drop for PeerLink {
    /// Unmaps the other ranks' memory. They free theirs once all ranks have done so.
    fn drop(&mut self) {
        self.peers = None;
        if !std::thread::panicking() {
            self.group.barrier();
        }
    }
}

/// Fails if the group's ranks are not all in this node, or if two ranks have the same GPU.
fn on_one_node(group: &MpiGroup, gpu: &GpuProperties) -> Result<(), NoLink> {
    let on_node = group.node_size();
    let mut own = [0; 64];
    gpu.uuid.bytes().zip(&mut own).for_each(|(from, to)| *to = from);
    let all = group.all_gather(&own);
    if on_node < group.size() {
        return Err(NoLink::Placement("its ranks are in several nodes"));
    }
    // A user forbids NCCL this if the GPUs reach each other wrongly or slowly.
    if std::env::var("NCCL_P2P_DISABLE").is_ok_and(|value| value != "0") {
        return Err(NoLink::Placement("NCCL_P2P_DISABLE is set"));
    }
    let same = all.as_chunks::<64>().0.iter().filter(|&other| *other == own).count();
    if same == 1 { Ok(()) } else { Err(NoLink::Placement("its ranks share GPUs")) }
}

fn exported(ranks: usize) -> Result<(Rc<PeerWindow>, PeerHandle), NoLink> {
    let made = PeerWindow::new(ranks).and_then(|window| Ok((window.handle()?, window)));
    made.map(|(handle, window)| (Rc::new(window), handle)).map_err(refused)
}

fn refused(error: device::Error) -> NoLink {
    NoLink::Refused(error.to_string())
}

/// This rank's value, if all ranks have one. Otherwise the reason of the first rank without one.
fn agreed<T>(group: &MpiGroup, here: Result<T, NoLink>) -> Result<T, NoLink> {
    let failed = group.min(if here.is_ok() { u64::MAX } else { group.rank() as u64 });
    if failed == u64::MAX {
        return here;
    }
    let mut why = [0; WHY_BYTES];
    if let Err(reason) = &here {
        reason.to_string().bytes().zip(&mut why).for_each(|(from, to)| *to = from);
    }
    group.broadcast(failed as usize, &mut why);
    match here {
        Err(NoLink::Placement(placement)) => Err(NoLink::Placement(placement)),
        _ => {
            let length = why.iter().position(|&byte| byte == 0).unwrap_or(why.len());
            let why = String::from_utf8_lossy(&why[..length]);
            Err(NoLink::Refused(format!("rank {failed} of the group: {why}")))
        }
    }
}
