//! The version of the NCCL library, and what that version can do.

use std::fmt;

use device::ops::CollectiveKind;
use device::{Error, Result};

/// A version of NCCL, in the library's number: `22809` for 2.28.9, and `2803` for 2.8.3, which is older than 2.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub i32);

impl NcclVersion {
    /// The oldest version whose transfers CUDA graphs can hold, by NVIDIA's guide.
    pub const OLDEST_IN_GRAPHS: NcclVersion = NcclVersion(20900);

    /// Whether CUDA graphs can hold NCCL's transfers.
    pub fn works_in_graphs(self) -> bool {
        self >= NcclVersion::OLDEST_IN_GRAPHS
    }

    /// Fails if NCCL's transfers cannot be part of graphs, and one is to be captured.
    pub(crate) fn refuse_capture(self, kind: CollectiveKind, communicator: &str) -> Result<()> {
        if self.works_in_graphs() {
            return Ok(());
        }
        let oldest = NcclVersion::OLDEST_IN_GRAPHS;
        let problem = format!(
            "it was to be captured, and this is NCCL {self}. Rule: graphs hold transfers of NCCL {oldest} and newer. \
             Fix: a newer NCCL first on LD_LIBRARY_PATH, or no graphs"
        );
        Err(Error::Communication { collective: kind.name(), communicator: communicator.into(), problem })
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, major) = if self.0 < 10_000 { (self.0, 1000) } else { (self.0, 10_000) };
        write!(f, "{}.{}.{}", version / major, version % major / 100, version % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_number_versions_are_read_and_ordered() {
        let versions = [(2408, "2.4.8"), (2803, "2.8.3"), (20900, "2.9.0"), (21005, "2.10.5"), (22809, "2.28.9")];
        for (number, text) in versions {
            assert_eq!(NcclVersion(number).to_string(), text);
            assert_eq!(NcclVersion(number).works_in_graphs(), number >= 20900, "{text}");
        }
    }

    #[test]
    fn a_transfer_that_an_old_library_cannot_capture_is_refused_with_both_versions_and_the_fix() {
        let kind = CollectiveKind::AllReduceSum;
        assert_eq!(NcclVersion(20900).refuse_capture(kind, "data"), Ok(()));
        let text = NcclVersion(2803).refuse_capture(kind, "data").unwrap_err().to_string();
        for words in ["all_reduce", "data", "NCCL 2.8.3", "NCCL 2.9.0 and newer", "Fix:"] {
            assert!(text.contains(words), "`{words}` is missing from: {text}");
        }
    }
}
