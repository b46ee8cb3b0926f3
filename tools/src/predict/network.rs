//! The cost of a transfer between ranks: by NCCL's rings, inside a node and between nodes, and by the trainer's own
//! kernels inside a node.

use std::rc::Rc;

use device::cuda::PeerWindow;
use device::ops::CollectiveKind;
use parallel::suits_peer_memory;

use crate::predict::card::{Card, at};
use trainer::config::TensorTransfers;
use trainer::config::plan::RunPlan;

/// The ranks of a cluster, and the links between ranks.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) card: Rc<Card>,
    /// GPUs of a node. Ranks fill the nodes in order.
    pub(super) node: usize,
}

impl Network {
    /// Whether sums and gathers over a communicator of a plan are made by kernels that read the other GPUs' memory.
    pub(super) fn has_kernels(&self, plan: &RunPlan, communicator: &str, members: &[usize]) -> bool {
        plan.config.parallel.tensor_transfers == TensorTransfers::Auto
            && suits_peer_memory(communicator)
            && members.len() <= PeerWindow::MAX_RANKS
            && self.nodes(members) == 1
    }

    /// Seconds of a transfer of `bytes` in all between the given world ranks of one node, by kernels that read the other
    /// GPUs' memory. They are priced as a ring. Between more than two ranks they were not measured.
    pub(super) fn by_kernels(&self, kind: CollectiveKind, bytes: f64, members: &[usize]) -> f64 {
        let (rate, _) = self.link(members);
        self.card.node.kernels_latency_us * 1e-6 + crossings(kind, members) * bytes / rate
    }

    /// Seconds of a transfer of `bytes` in all between the given world ranks, by NCCL.
    pub(super) fn by_nccl(&self, kind: CollectiveKind, bytes: f64, members: &[usize]) -> f64 {
        let (rate, latency) = self.link(members);
        latency + crossings(kind, members) * bytes / rate
    }

    /// The number of nodes that the given ranks are on.
    fn nodes(&self, members: &[usize]) -> usize {
        let mut nodes: Vec<usize> = members.iter().map(|rank| rank / self.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }

    /// Bytes a second of a ring over the given ranks, and the ring's latency in seconds.
    fn link(&self, members: &[usize]) -> (f64, f64) {
        let (node, network) = (&self.card.node, &self.card.network);
        let nodes = self.nodes(members);
        let together = members.len() as f64 / nodes as f64;
        let inside = at(&node.ranks, &node.bus_gb_per_s, together) * 1e9;
        let inside_latency = at(&node.ranks, &node.latency_us, together) * 1e-6;
        if nodes == 1 {
            return (inside, inside_latency);
        }
        // Each rank of a node has a port of its own, and NCCL a ring for each.
        let ports = network.gb_per_s * 1e9 * together;
        let between = (network.latency_us + network.hop_us * (nodes - 1) as f64) * 1e-6;
        match together > 1.0 {
            true => (ports.min(inside), between + inside_latency),
            false => (ports, between),
        }
    }
}

/// How often the bytes of a transfer cross each link. A ring of n ranks moves (n - 1)/n of them over each, and a sum that
/// all ranks get twice that.
fn crossings(kind: CollectiveKind, members: &[usize]) -> f64 {
    let ranks = members.len() as f64;
    match kind {
        CollectiveKind::AllReduceSum | CollectiveKind::AllReduceMax => 2.0 * (ranks - 1.0) / ranks,
        // Of an all-to-all each rank keeps its own part.
        CollectiveKind::AllGather
        | CollectiveKind::ReduceScatterSum
        | CollectiveKind::AllToAll
        | CollectiveKind::Rows(_) => (ranks - 1.0) / ranks,
        // All bytes go along a line of ranks.
        CollectiveKind::Broadcast { .. }
        | CollectiveKind::ReduceSum { .. }
        | CollectiveKind::ToNext
        | CollectiveKind::Send { .. }
        | CollectiveKind::Receive { .. } => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: CollectiveKind = CollectiveKind::AllReduceSum;

    #[test]
    fn measured_transfers_are_met_within_a_fifth() {
        let network = Network { card: Rc::new(Card::named("h200").unwrap()), node: 8 };
        let mib = f64::from(1 << 20);
        let members = |ranks| (0..ranks).collect::<Vec<_>>();
        // bench/results/2026-11-21-tensor-parallel.md, two cards.
        for (kind, size, us) in [
            (CollectiveKind::AllGather, 8.0, 34.7),
            (CollectiveKind::AllGather, 64.0, 155.9),
            (CollectiveKind::ReduceScatterSum, 8.0, 30.4),
            (CollectiveKind::ReduceScatterSum, 64.0, 164.4),
            (SUM, 8.0, 45.3),
            (SUM, 64.0, 245.0),
        ] {
            let predicted = network.by_nccl(kind, size * mib, &members(2)) * 1e6;
            assert!((predicted / us - 1.0).abs() < 0.2, "{kind:?} of {size} MiB: {predicted} us, measured {us}");
        }
    }

    #[test]
    fn transfers_by_kernels_are_met_within_a_third() {
        let network = Network { card: Rc::new(Card::named("h100-80").unwrap()), node: 8 };
        // bench/results/2026-11-25-peer-memory.md, two cards.
        for (kind, mib, us) in [
            (SUM, 1, 13.4),
            (SUM, 8, 48.0),
            (SUM, 32, 138.4),
            (CollectiveKind::ReduceScatterSum, 8, 32.9),
            (CollectiveKind::AllGather, 8, 36.7),
        ] {
            let predicted = network.by_kernels(kind, f64::from(mib << 20), &[0, 1]) * 1e6;
            assert!((predicted / us - 1.0).abs() < 0.33, "{kind:?} of {mib} MiB: {predicted} us, measured {us}");
        }
    }

    #[test]
    fn a_group_that_spans_nodes_is_slower_and_more_of_its_ranks_on_a_node_make_it_faster() {
        let network = Network { card: Rc::new(Card::named("h200").unwrap()), node: 8 };
        let inside: Vec<usize> = (0..8).collect();
        let across: Vec<usize> = (4..12).collect();
        let apart: Vec<usize> = (0..8).map(|rank| rank * 8).collect();
        let seconds = [inside, across, apart].map(|members| network.by_nccl(SUM, 1e9, &members));
        assert!(seconds[0] < seconds[1] && seconds[1] < seconds[2], "{seconds:?}");
    }

    #[test]
    fn more_bandwidth_is_never_slower() {
        let card = Card::named("h200").unwrap();
        let mut faster = card.clone();
        faster.network.gb_per_s *= 2.0;
        faster.node.bus_gb_per_s.iter_mut().for_each(|rate| *rate *= 2.0);
        for members in [vec![0, 1], vec![0, 8], (0..16).collect(), (0..64).collect()] {
            let [slow, fast] = [&card, &faster]
                .map(|card| Network { card: Rc::new(card.clone()), node: 8 }.by_nccl(SUM, 1e8, &members));
            assert!(fast < slow, "{members:?}: {fast} and {slow}");
        }
    }
}
