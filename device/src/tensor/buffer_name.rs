//! Names of buffers.

use std::collections::HashMap;
use std::fmt::{Display, Formatter};
use std::rc::Rc;

use crate::BufferId;

/// A buffer's name in messages and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferName {
    /// The buffer's own name.
    Own(Rc<str>),
    /// The buffer's name in the region that takes it.
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

/// The names of a device's buffers. A long step has a million buffers, so each text is there once: a region's name, and a
/// name within regions.
#[derive(Default)]
pub(crate) struct BufferNames {
    /// By the number of the buffer: the numbers of two texts. The second is `NONE` for a name of its own.
    buffers: Vec<(u32, u32)>,
    texts: Vec<Rc<str>>,
    within: HashMap<&'static str, u32>,
    /// The region of the last name within a region, and its number.
    last: Option<(Rc<str>, u32)>,
}

/// Stands for no text.
const NONE: u32 = u32::MAX;

impl BufferNames {
    /// Adds a name; returns its number.
    pub(crate) fn add(&mut self, name: BufferName) -> usize {
        let entry = match name {
            BufferName::Own(name) => (self.text(name), NONE),
            BufferName::Within(region, name) => {
                let known = self.last.as_ref().filter(|(last, _)| Rc::ptr_eq(last, &region)).map(|(_, number)| *number);
                let number = known.unwrap_or_else(|| self.text(region.clone()));
                self.last = Some((region, number));
                let known = self.within.get(name).copied();
                let own = known.unwrap_or_else(|| {
                    let own = self.text(name.into());
                    self.within.insert(name, own);
                    own
                });
                (number, own)
            }
        };
        self.buffers.push(entry);
        self.buffers.len() - 1
    }

    /// The name of a buffer of this device.
    pub(crate) fn of(&self, buffer: BufferId) -> String {
        match self.buffers[buffer.number()] {
            (own, NONE) => self.texts[own as usize].to_string(),
            (region, own) => format!("{}/{}", self.texts[region as usize], self.texts[own as usize]),
        }
    }

    /// The number of names so far.
    pub(crate) fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Forgets all names but the first `len`, so that their numbers are given again.
    pub(crate) fn truncate(&mut self, len: usize) {
        let used = |&(own, within): &(u32, u32)| own.max(if within == NONE { 0 } else { within }) as usize + 1;
        self.buffers.truncate(len);
        let texts = self.buffers.iter().map(used).max().unwrap_or(0);
        self.texts.truncate(texts);
        self.within.retain(|_, number| (*number as usize) < texts);
        self.last = None;
    }

    fn text(&mut self, text: Rc<str>) -> u32 {
        self.texts.push(text);
        self.texts.len() as u32 - 1
    }
}
