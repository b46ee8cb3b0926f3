//! The axis that a number differs over.

use parallel::{Axis, Mesh};
use trainer::error::RunError;

use super::difference::Difference;
use super::layouts::{AXES, OfExpert, name, of_sizes, size_of, with_size};

/// The axis that numbers of `mesh` differ over, in words. `differs` tries a layout: `None` if the model cannot be
/// divided so.
///
/// An axis is at fault if the numbers differ with its ranks alone, and with those of no other axis. If they differ with
/// each, the fault may be that an axis has one rank: then they do not differ if it has two.
///
/// # Errors
/// A step that fails.
pub(super) fn cause(
    mesh: Mesh,
    found: &Difference,
    differs: &mut dyn FnMut(Mesh) -> Result<Option<bool>, RunError>,
) -> Result<String, RunError> {
    let (several, single): (Vec<Axis>, Vec<Axis>) = AXES.into_iter().partition(|&axis| size_of(mesh, axis) > 1);
    let mut faulty = Vec::new();
    for &axis in &several {
        let sizes = AXES.map(|of| if of == axis { size_of(mesh, of) } else { 1 });
        let alone = of_sizes(sizes, OfExpert::on(mesh));
        if alone == mesh || differs(alone)? == Some(true) {
            faulty.push(axis);
        }
    }
    if faulty == several {
        for &axis in &single {
            let two = with_size(mesh, axis, 2);
            if let Some(mesh) = two
                && differs(mesh)? == Some(false)
            {
                return Ok(format!(
                    ". It differs if the {} axis has one rank, and not if it has two",
                    name(mesh, axis)
                ));
            }
        }
    }
    let names = faulty.iter().map(|&axis| over(mesh, axis, found)).collect::<Vec<_>>().join(", or ");
    Ok(match faulty.is_empty() {
        true => ". It differs over no axis alone, but where axes meet".into(),
        false => format!(". It differs over {names}"),
    })
}

/// An axis in words, with what the axis's size has to do with the factor.
fn over(mesh: Mesh, axis: Axis, found: &Difference) -> String {
    let size = size_of(mesh, axis);
    let is = |expected: f64| found.factor.is_some_and(|factor| (factor / expected - 1.0).abs() < 1e-2);
    let counted = match () {
        () if is(size as f64) => ": it is counted once a rank",
        () if is(1.0 / size as f64) => ": it is divided by their number",
        () => "",
    };
    format!("the {size} ranks of the {} axis{counted}", name(mesh, axis))
}
