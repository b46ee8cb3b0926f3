//! Orders of a graph's nodes, independent of the driver.

/// The position of each node in a topological order: every edge `(from, to)` goes forward.
pub(super) fn topological_positions(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut after = vec![Vec::new(); nodes];
    let mut missing = vec![0; nodes];
    for &(from, to) in edges {
        after[from].push(to);
        missing[to] += 1;
    }
    let mut position = vec![0; nodes];
    let mut ready: Vec<usize> = (0..nodes).filter(|&node| missing[node] == 0).collect();
    let mut next = 0;
    while let Some(node) = ready.pop() {
        position[node] = next;
        next += 1;
        for &end in &after[node] {
            missing[end] -= 1;
            if missing[end] == 0 {
                ready.push(end);
            }
        }
    }
    position
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Nodes, up to 12, and edges without cycles, numbered in any order; each edge once, as the driver has it.
    pub(in crate::cuda::rewrite) fn graphs() -> impl Strategy<Value = (usize, Vec<(usize, usize)>)> {
        let names = Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle();
        (2_usize..12, prop::collection::vec((0_usize..144, 0_usize..144), 0..40), names).prop_map(
            |(nodes, picks, names)| {
                let names: Vec<usize> = names.into_iter().filter(|&name| name < nodes).collect();
                let mut edges: Vec<(usize, usize)> =
                    picks.iter().map(|(a, b)| (a % nodes, b % nodes)).filter(|(a, b)| a < b).collect();
                edges.sort_unstable();
                edges.dedup();
                (nodes, edges.into_iter().map(|(a, b)| (names[a], names[b])).collect())
            },
        )
    }

    /// Whether a path goes from one node to another.
    pub(in crate::cuda::rewrite) fn reaches(nodes: usize, edges: &[(usize, usize)]) -> Vec<Vec<bool>> {
        let mut reaches = vec![vec![false; nodes]; nodes];
        edges.iter().for_each(|&(from, to)| reaches[from][to] = true);
        for middle in 0..nodes {
            for from in 0..nodes {
                for to in 0..nodes {
                    reaches[from][to] |= reaches[from][middle] && reaches[middle][to];
                }
            }
        }
        reaches
    }

    proptest! {
        #[test]
        fn every_edge_goes_forward_and_no_two_nodes_share_a_place((nodes, edges) in graphs()) {
            let position = topological_positions(nodes, &edges);
            prop_assert!(edges.iter().all(|&(from, to)| position[from] < position[to]));
            let mut all = position.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..nodes).collect::<Vec<_>>());
        }
    }
}
