//! The ranks that uncut parameters belong to.

use std::cmp::Reverse;
use std::collections::HashMap;

use parallel::{Axes, Ranks};

/// A parameter that belongs to one rank of some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Belonging {
    /// The parameter's elements.
    pub elements: usize,
    /// The ranks.
    pub over: Axes,
}

/// The places of the ranks that parameters belong to, by parameter. The rank with the fewest elements gets the largest
/// parameter that is left. The first rank has the most: a plan is made for it.
pub(crate) fn owners(all: &[Belonging], ranks: &Ranks) -> Vec<usize> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&index| Reverse(all[index].elements));
    let mut loads: HashMap<Axes, Vec<usize>> = HashMap::new();
    let mut owners = vec![0; all.len()];
    for index in order {
        let Belonging { elements, over } = all[index];
        let load = loads.entry(over).or_insert_with(|| vec![0; ranks.place(over).count]);
        let least = (0..load.len()).min_by_key(|&rank| load[rank]).unwrap_or(0);
        load[least] += elements;
        owners[index] = least;
    }
    let by_load = |load: &Vec<usize>| {
        let mut most_first: Vec<usize> = (0..load.len()).collect();
        most_first.sort_by_key(|&rank| Reverse(load[rank]));
        most_first
    };
    let most_first: HashMap<Axes, Vec<usize>> = loads.iter().map(|(over, load)| (*over, by_load(load))).collect();
    let place = |(of, owner): (&Belonging, usize)| most_first[&of.over].iter().position(|&rank| rank == owner);
    all.iter().zip(owners).map(|of| place(of).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use parallel::{Axis, Connections, Mesh, MeshSizes, Placement};

    use super::*;

    #[test]
    fn ranks_get_about_as_much_and_the_first_has_the_most() {
        let mesh = Mesh::new(MeshSizes::of(3)).unwrap();
        let connections = Connections { groups: Vec::new(), ..Connections::new(mesh, Placement::new(1, 1)) };
        let of_rank = |rank| {
            let ranks = Ranks::connect(&connections, rank, &mut |_, _| Ok(None)).unwrap();
            let over = ranks.axes(Axis::Data);
            let all = [3, 5, 2, 9, 4, 4].map(|elements| Belonging { elements, over });
            owners(&all, &ranks)
        };
        // 5, 3 and 2; 9; 4 and 4.
        assert_eq!(of_rank(0), [0, 0, 0, 1, 2, 2]);
        assert_eq!(of_rank(1), of_rank(0));
    }
}
