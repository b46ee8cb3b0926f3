//! A step as a list.
//!
//! The list is the submissions of the step's code, called once: operations and calls of the host, each on a queue, and
//! **joins**. At a join a queue waits for all earlier entries of another queue. Entries and joins are counted together:
//! the count before one of them is its **position** in the list.
//!
//! The list is divided into the visits of regions. Visits nest. Visits that submit the same on other buffers share one
//! [`Body`]; each has a **table** with its own buffers. So a step of many microbatches takes little memory.

mod body;
mod body_buffers;
mod data;
mod digests;
mod expand;
mod frozen;
mod in_use;
mod lifetime;
mod list;
mod order;
mod recorder;
mod refused;
mod results;
mod schedule;
mod streams;
mod text;
mod writers;

pub(crate) use body::{HostCall, Work};
pub(crate) use data::{Program, Taken, Visit};
pub(crate) use frozen::refuse_change;
pub(crate) use lifetime::Lifetime;
pub use list::ListedEntry;
pub(crate) use recorder::Recorder;
pub(crate) use results::Write;
pub(crate) use schedule::{Action, Extent, Schedule};
pub(crate) use writers::Writers;
