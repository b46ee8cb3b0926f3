//! The parameters whose masters and optimizer state lie on the host.

use device::Home;
use parallel::{Axes, Ranks};

use super::flat_layout::FlatLayout;
use super::spec::ParamSpec;

/// The same parameters, with the state of the last parameters on the host: whole buckets, with at least that share of all
/// trained elements. So the ranks that divide a bucket divide it as they would without. The updates of the last
/// parameters come last, so the first of them comes in while others are updated.
pub(crate) fn with_state_on_host(
    mut specs: Vec<ParamSpec>,
    share: f64,
    bucket_bytes: usize,
    ranks: &Ranks,
    rest: Axes,
) -> Vec<ParamSpec> {
    if share == 0.0 {
        return specs;
    }
    let resting: Vec<ParamSpec> = specs.iter().map(|spec| spec.clone().resting(ranks, rest)).collect();
    let layout = FlatLayout::new(&resting, bucket_bytes, ranks);
    let mut left = share * layout.buckets.iter().map(|bucket| bucket.elements).sum::<usize>() as f64;
    for bucket in &layout.buckets {
        if left <= 0.0 {
            break;
        }
        left -= bucket.elements as f64;
        for (spec, _) in specs.iter_mut().zip(&layout.params).filter(|(_, place)| bucket.has(place)) {
            spec.state_home = Home::Host;
        }
    }
    specs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Init;

    #[test]
    fn the_last_buckets_leave_as_far_as_the_share_says() {
        let spec = |(layer, elements): (usize, usize)| ParamSpec::new("p", [elements], Init::Constant(0.0), layer);
        // Each layer is a bucket: 128, 128 and 64 elements with padding.
        let mut specs: Vec<ParamSpec> = [(0, 100), (1, 30), (1, 50), (2, 20)].into_iter().map(spec).collect();
        let away = |specs: &[ParamSpec], share| {
            let specs = with_state_on_host(specs.to_vec(), share, 0, &Ranks::alone(), Axes::NONE);
            specs.iter().map(|spec| u8::from(spec.state_home == Home::Host)).collect::<Vec<_>>()
        };
        let cases = [(0.0, [0, 0, 0, 0]), (0.01, [0, 0, 0, 1]), (0.2, [0, 0, 0, 1]), (0.21, [0, 1, 1, 1])];
        cases.into_iter().for_each(|(share, expected)| assert_eq!(away(&specs, share), expected, "{share}"));
        assert_eq!(away(&specs, 1.0), [1; 4]);
        specs[2].frozen = true;
        assert_eq!(away(&specs, 0.3), [0, 1, 0, 1], "of 256 trained elements");
    }
}
