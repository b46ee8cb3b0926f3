//! The parts of an update: state on the device is updated at once, state on the host part by part.

use device::{Home, Tensor};

use super::group::ParamUpdate;
use crate::params::ALIGNMENT;

/// The most elements of a part, and the fewest parts of an update: the next part comes in while one is updated.
const MOST: usize = 32 << 20;
const FEWEST: usize = 8;

/// The parts of an update. All parameters with their state on the device are the first, so that state from the host comes
/// in meanwhile. The others are cut in parts with about as many elements each.
pub(super) fn parts<'u>(all: impl Iterator<Item = &'u ParamUpdate>) -> Vec<Vec<ParamUpdate>> {
    let (away, here): (Vec<&ParamUpdate>, Vec<_>) = all.partition(|each| each.spec.state_home == Home::Host);
    let mut parts = vec![here.into_iter().cloned().collect::<Vec<_>>()];
    parts.retain(|part| !part.is_empty());
    if away.is_empty() {
        return parts;
    }
    let elements: usize = away.iter().map(|each| each.master.elements()).sum();
    let size = elements.div_ceil(FEWEST).next_multiple_of(ALIGNMENT).min(MOST);
    let mut room = 0;
    for each in away {
        let mut first = 0;
        while let left = each.master.elements() - first
            && left > 0
        {
            // A cut lies where a vector of elements may begin.
            let count = if left <= room { left } else { room / ALIGNMENT * ALIGNMENT };
            if count == 0 {
                parts.push(Vec::new());
                room = size;
                continue;
            }
            parts.last_mut().into_iter().for_each(|part| part.push(cut(each, first, count)));
            (first, room) = (first + count, room - count);
        }
    }
    parts
}

/// `count` elements of a parameter's update, from `first` on.
fn cut(each: &ParamUpdate, first: usize, count: usize) -> ParamUpdate {
    let of = |tensor: &Tensor| tensor.view(first, [count]);
    ParamUpdate {
        spec: each.spec.clone(),
        master: of(&each.master),
        weight: each.weight.as_ref().map(of),
        grad: of(&each.grad),
        state: each.state.iter().map(of).collect(),
        ..*each
    }
}
