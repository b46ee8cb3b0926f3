//! The keys that a query sees.

use crate::Result;
use crate::ops::ensure;

/// The keys that a query of an attention sees: those up to its own position, and of these the last `window`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mask {
    /// The number of keys that a query sees at most, its own among them; `None` for all up to its own. Above 0.
    pub window: Option<usize>,
}

impl Mask {
    /// Every query sees all keys up to its own.
    pub const CAUSAL: Mask = Mask { window: None };

    /// The first key that the query at `position` sees. It sees all from there to its own.
    pub fn first_key(self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Twice the number of pairs of a query and a key that it sees, in a sequence of `seq` tokens. A query and its own
    /// key count as half a pair if the window reaches back to the first key. So without a window it is `seq * seq`.
    pub fn doubled_pairs(self, seq: usize) -> usize {
        let window = self.window.map_or(seq, |window| window.min(seq));
        // The first queries see up to `window` keys, half of them on average; the others see `window` each.
        window * window + 2 * (seq - window) * window
    }

    /// The same mask for sequences of `seq` tokens: no window if none of them is longer.
    pub fn within(self, seq: usize) -> Mask {
        Mask { window: self.window.filter(|window| *window < seq) }
    }

    /// The window as kernels take it: larger than any position if there is none.
    pub(crate) fn window_or_all(self) -> u32 {
        self.window.and_then(|window| u32::try_from(window).ok()).unwrap_or(u32::MAX).min(1 << 30)
    }

    /// Fails on a window of no keys.
    pub(crate) fn check(self, op: &'static str) -> Result<()> {
        ensure(op, self.window != Some(0), || "a window has at least one key".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sees_itself_and_as_many_before_it_as_the_window_leaves() {
        let window = Mask { window: Some(3) };
        assert_eq!([0, 1, 2, 3, 9].map(|position| window.first_key(position)), [0, 0, 0, 1, 7]);
        assert_eq!([0, 9].map(|position| Mask::CAUSAL.first_key(position)), [0, 0]);
        for (mask, seq) in [(window, 10), (window, 2), (Mask::CAUSAL, 7), (Mask { window: Some(1) }, 5)] {
            let counted: usize = (0..seq).map(|position| position + 1 - mask.first_key(position)).sum();
            let window = mask.window.unwrap_or(seq).min(seq);
            assert_eq!(mask.doubled_pairs(seq), 2 * counted - window, "{mask:?}");
        }
        assert_eq!((window.within(3), window.within(4)), (Mask::CAUSAL, window));
    }
}
