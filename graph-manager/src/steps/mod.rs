//! A step's states: recorded, warming up, captured, replayed.

mod lists;
mod run;
mod step;
mod trial;

pub(crate) use run::Run;
pub(crate) use step::Code;
pub(crate) use trial::{Keeps, Trial};
