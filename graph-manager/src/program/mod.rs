//! A step as a list.
//!
//! The list is the submissions of one pass over the step's code: operations, and calls of the host, each on a queue, and
//! **joins**, where a queue waits for all that another has been given so far. Entries and joins are counted together: a
//! **position** is a place in the list.
//!
//! The list is divided into the visits of regions, which nest. Visits that submit the same on other buffers share one
//! [`Body`]; each has a **table** of the buffers that it means. So a step of many microbatches takes little memory.

mod body;
mod data;
mod digest;
mod does;
mod expand;
mod frozen;
mod host_call;
mod in_use;
mod joined;
mod lifetime;
mod list;
mod order;
mod recorder;
mod refused;
mod results;
mod schedule;
mod streams;
mod text;

pub(crate) use body::Work;
pub(crate) use data::{Program, Taken, Visit};
pub(crate) use frozen::{Difference, difference};
pub(crate) use host_call::HostCall;
pub(crate) use lifetime::Lifetime;
pub use list::ListedEntry;
pub(crate) use recorder::Recorder;
pub(crate) use results::Write;
pub(crate) use schedule::{Action, Part, Schedule};
