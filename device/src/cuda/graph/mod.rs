//! Graphs that the driver captured, and nodes that run under a condition.

mod captured_call;
mod condition;
mod kept_whens;
mod raw;
pub(crate) mod when;

pub(crate) use captured_call::{CapturePoint, CaptureState, judge};
pub(crate) use condition::{SetCondition, WHEN_FILE, not_loaded};
pub(crate) use kept_whens::KeptWhens;
pub(crate) use raw::{RawGraph, add_kernel};
