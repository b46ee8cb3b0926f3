//! What buffers are called.

use std::fmt::{Display, Formatter};
use std::rc::Rc;

/// A buffer's name in messages and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferName {
    /// A name of its own.
    Own(Rc<str>),
    /// Its name in the region that takes it. A long step has a million of them, so the region's name is shared.
    Within(Rc<str>, &'static str),
}

impl From<&str> for BufferName {
    fn from(name: &str) -> BufferName {
        BufferName::Own(name.into())
    }
}

impl Display for BufferName {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            BufferName::Own(name) => f.write_str(name),
            BufferName::Within(region, name) => write!(f, "{region}/{name}"),
        }
    }
}
