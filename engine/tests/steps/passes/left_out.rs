//! A step without one of its passes, or without all, computes the same bits: passes decide on time alone.

use engine::passes::PassName;

use crate::digests::cases::cases;
use crate::digests::recorded::{recorded, trained};
use crate::models::Run;

#[test]
fn every_layout_without_a_pass_has_the_same_bits() {
    for case in cases() {
        let bits = |setting: &str, left_out: &[PassName]| {
            let make = || Run { steps: 3, left_out: left_out.to_vec(), ..case.run(setting) };
            case.layout.on_ranks(make, |run| trained(&run))
        };
        let with_all = bits("per layer", &[]);
        let passes = case.passes();
        let each = passes.iter().map(|pass| vec![*pass]);
        let ways = each.chain((passes.len() > 1).then(|| passes.clone()));
        for left_out in ways {
            for setting in ["per layer", "whole iteration"] {
                assert_eq!(bits(setting, &left_out), with_all, "{}, {setting}, without {left_out:?}", case.name);
            }
        }
    }
}

#[test]
fn each_pass_changes_when_something_is_done() {
    let all = cases();
    let order = |name: &str, left_out: &[PassName]| {
        let case = all.iter().find(|case| case.name == name).unwrap();
        // What these passes move does not lie on the host by itself.
        let (layers_on_host, state_on_host) = (9, 0.6);
        let make = || Run { left_out: left_out.to_vec(), layers_on_host, state_on_host, ..case.run("per layer") };
        case.layout.on_ranks(make, |run| recorded(&run)[1].clone())
    };
    for pass in PassName::ALL {
        let name = match pass {
            PassName::Overlap => "overlap, stages 2",
            PassName::StageTransfers => "stages 2",
            PassName::ExpertRows => "divided experts and a shared one, data 2, distributed optimizer",
            _ => "tensor 2, data 2",
        };
        assert_ne!(order(name, &[]), order(name, &[pass]), "{pass}");
    }
}
