//! What a call of a custom operation did to its stream's capture.
//!
//! The driver refuses calls that a capture cannot record, such as a wait or an allocation. It returns an error to the
//! code that made them, and that code may drop it. The state of the capture after the call tells all the same.
//!
//! Work on a stream that a call forked from its own, and did not join, is not seen. The capture then ends with the
//! driver's error for streams that are not joined, without the operation's name.
//!
//! Outside of captures nothing is noticed: the driver does not say whether somebody waited, and memory that a pool hands
//! out does not change what is free.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::hash::Hash;

use cudarc::driver::sys;
use sys::CUgraphNodeType::{CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEM_FREE};
use sys::CUstreamCaptureStatus::{
    CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED, CU_STREAM_CAPTURE_STATUS_NONE,
};

use crate::cuda::driver::{CaptureInfo, RawStream};
use crate::cuda::rewrite::{is_of, neighbours};
use crate::{CaptureRule, Error, Result};

/// The state of a stream's capture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CaptureState {
    /// The stream does not capture.
    None,
    /// The stream captures. The last call may have added nodes that allocate or free memory.
    Active { allocates: bool },
    /// The stream captures, and the driver refused a call.
    Invalidated,
}

/// A stream's capture at one time.
pub(crate) struct CapturePoint {
    pub(crate) state: CaptureState,
    /// The nodes that the next one will depend on.
    last: Vec<sys::CUgraphNode>,
}

impl CapturePoint {
    /// The stream's capture now.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn of(stream: &RawStream) -> Result<CapturePoint> {
        let CaptureInfo { status, before, .. } = stream.capture_info()?;
        let state = match status {
            CU_STREAM_CAPTURE_STATUS_NONE => CaptureState::None,
            CU_STREAM_CAPTURE_STATUS_INVALIDATED => CaptureState::Invalidated,
            CU_STREAM_CAPTURE_STATUS_ACTIVE => CaptureState::Active { allocates: false },
        };
        Ok(CapturePoint { state, last: before })
    }

    /// The state of the stream's capture after a call that was made at this point. Only the nodes that the call added are
    /// looked at.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn after_call(&self, stream: &RawStream) -> Result<CaptureState> {
        let now = CapturePoint::of(stream)?;
        let CaptureState::Active { .. } = now.state else { return Ok(now.state) };
        let mut allocates = false;
        // SAFETY: the nodes are those of the capture's graph, which may be looked at while the stream captures.
        unsafe {
            for node in added(&self.last, &now.last, |node| Ok(neighbours(node, true)?.0))? {
                allocates |= is_of(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC)?;
                allocates |= is_of(node, CU_GRAPH_NODE_TYPE_MEM_FREE)?;
            }
        }
        Ok(CaptureState::Active { allocates })
    }
}

/// The nodes between two points of a stream: those that the later ones depend on, themselves included, back to the
/// earlier ones. If the stream has waited for another one in between, that one's nodes are among them.
fn added<N: Copy + Eq + Hash>(
    earlier: &[N],
    later: &[N],
    mut depends_on: impl FnMut(N) -> Result<Vec<N>>,
) -> Result<Vec<N>> {
    let mut seen: HashSet<N> = earlier.iter().copied().collect();
    let mut next: Vec<N> = later.to_vec();
    let mut added = Vec::new();
    while let Some(node) = next.pop() {
        if seen.insert(node) {
            added.push(node);
            next.extend(depends_on(node)?);
        }
    }
    Ok(added)
}

/// The result of a call, with what it did to its stream's capture. An error of the call that left the capture as it was
/// is the call's own.
///
/// # Errors
/// [`CaptureRule::Call`] with the operation's name; the call's.
pub(crate) fn judge(op: &str, before: CaptureState, called: Result<()>, after: CaptureState) -> Result<()> {
    let problem = match (before, after) {
        (CaptureState::None, CaptureState::None) => return called,
        (CaptureState::Active { allocates: false }, CaptureState::Active { allocates: true }) => {
            "allocated or freed memory with cuMemAllocAsync or cuMemFreeAsync, which would become part of the graph (a \
             library such as cuBLAS does that for its workspace: give it one)"
        }
        (CaptureState::Active { .. }, CaptureState::Active { .. }) => return called,
        (CaptureState::Invalidated, _) => "met a capture that other code had made invalid before",
        (CaptureState::None, _) => "began a capture on its stream and did not end it",
        (CaptureState::Active { .. }, CaptureState::None) => "ended the capture that was under way",
        (CaptureState::Active { .. }, CaptureState::Invalidated) => {
            "made the capture invalid: the driver refused something that it did"
        }
    };
    let said = called.err().map_or_else(String::new, |error| format!(". It failed with: {error}"));
    Err(Error::capture(CaptureRule::Call, format!("the call of `{op}` {problem}{said}")))
}

#[cfg(test)]
mod tests {
    use super::CaptureState::{Active, Invalidated, None};
    use super::*;

    const SOUND: CaptureState = Active { allocates: false };

    #[test]
    fn the_nodes_that_a_call_added_are_found_from_its_end_back_to_its_beginning_alone() {
        // 0 to 999 in a chain; the call forks 1000 and 1001, and joins them in 1002.
        let depends_on = |node: u32| match node {
            0 => vec![],
            1001 => vec![999],
            1002 => vec![1000, 1001],
            node => vec![node - 1],
        };
        let mut asked = 0;
        let mut between = |earlier: &[u32], later: &[u32]| {
            let mut nodes = added(earlier, later, |node| {
                asked += 1;
                Ok(depends_on(node))
            })
            .unwrap();
            nodes.sort_unstable();
            nodes
        };
        assert_eq!(between(&[999], &[1002]), [1000, 1001, 1002]);
        assert_eq!(between(&[1002], &[1002]), [] as [u32; 0]);
        assert_eq!(between(&[], &[1]), [0, 1], "the first call of a capture");
        assert_eq!(asked, 5, "nodes before the call are not looked at");
    }

    #[test]
    fn a_call_that_leaves_the_capture_as_it_was_keeps_its_own_result() {
        let failed = || Err(Error::operation("mine", "no"));
        for state in [None, SOUND] {
            assert_eq!(judge("mine", state, Ok(()), state), Ok(()));
            assert_eq!(judge("mine", state, failed(), state), failed());
        }
    }

    #[test]
    fn a_call_that_spoils_the_capture_is_named_with_the_rule_also_if_it_hides_the_driver_s_error() {
        for (before, after, words) in [
            (SOUND, Invalidated, "made the capture invalid"),
            (SOUND, Active { allocates: true }, "cuMemAllocAsync"),
            (SOUND, None, "ended the capture"),
            (None, SOUND, "began a capture"),
            (None, Invalidated, "began a capture"),
            (Invalidated, Invalidated, "other code had made invalid before"),
        ] {
            for called in [Ok(()), Err(Error::operation("mine", "refused by the driver"))] {
                let hidden = called.is_ok();
                let error = judge("mine", before, called, after).unwrap_err();
                assert!(matches!(error, Error::Capture { rule: CaptureRule::Call, .. }), "{error}");
                let message = error.to_string();
                for words in
                    ["capture error 900: the call of `mine`", words, "Rule: a call in a capture only adds", "Fix:"]
                {
                    assert!(message.contains(words), "`{words}` is missing from: {message}");
                }
                assert_eq!(message.contains("refused by the driver"), !hidden, "{message}");
            }
        }
    }
}
