//! The doctor's findings.

use serde::Serialize;

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The finding's subject: `machine`, `operation`, `rate` or `ranks`.
    pub about: &'static str,
    /// The thing that was checked.
    pub name: String,
    /// The result.
    pub value: String,
    /// The finding's meaning for training.
    pub verdict: Verdict,
}

/// The meaning of a finding for training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// Training works, but slower or on one GPU only.
    Lacks,
    /// A wrong result, or training is impossible.
    Fail,
}

impl Verdict {
    pub(super) fn of(ok: bool) -> Verdict {
        if ok { Verdict::Ok } else { Verdict::Fail }
    }
}
