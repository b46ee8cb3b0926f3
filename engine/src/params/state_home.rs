//! The parameters whose masters and optimizer state lie on the host.

use device::Home;

use super::spec::ParamSpec;

/// The same parameters, of which the last ones have their state on the host: whole parameters, with at least that share of
/// all trained elements. Their updates come last, so the first of them comes in while others are updated.
pub(crate) fn with_state_on_host(mut specs: Vec<ParamSpec>, share: f64) -> Vec<ParamSpec> {
    let elements = |spec: &ParamSpec| if spec.frozen { 0 } else { spec.shape.elements() };
    let all: usize = specs.iter().map(elements).sum();
    let mut left = share * all as f64;
    for spec in specs.iter_mut().rev().filter(|spec| !spec.frozen) {
        if left <= 0.0 {
            break;
        }
        left -= elements(spec) as f64;
        spec.state_home = Home::Host;
    }
    specs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Init;

    #[test]
    fn the_last_parameters_leave_as_far_as_the_share_says() {
        let spec = |(layer, elements): (usize, usize)| ParamSpec::new("p", [elements], Init::Constant(0.0), layer);
        let mut specs: Vec<ParamSpec> = [(0, 100), (1, 30), (1, 50), (2, 20)].into_iter().map(spec).collect();
        let away = |specs: &[ParamSpec], share| {
            let specs = with_state_on_host(specs.to_vec(), share);
            specs.iter().map(|spec| u8::from(spec.state_home == Home::Host)).collect::<Vec<_>>()
        };
        let cases = [(0.0, [0, 0, 0, 0]), (0.01, [0, 0, 0, 1]), (0.1, [0, 0, 0, 1]), (0.11, [0, 0, 1, 1])];
        cases.into_iter().for_each(|(share, expected)| assert_eq!(away(&specs, share), expected, "{share}"));
        assert_eq!(away(&specs, 1.0), [1; 4]);
        specs[2].frozen = true;
        assert_eq!(away(&specs, 0.2), [0, 1, 0, 1], "of 150 trained elements");
    }
}
