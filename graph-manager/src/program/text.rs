//! The list in words.

use std::fmt::{Debug, Write};
use std::rc::Rc;

use device::ops::When;
use device::{Device, Op, Tensor};

use super::data::Program;
use super::list::ListedEntry;
use crate::words::counted;

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// The list in words: a heading, and a line for each entry. A region that does the same as an earlier one, on other
    /// buffers, has one line that names the earlier one.
    pub(crate) fn write(&self, mode: &impl Debug, device: &Device, text: &mut String) {
        let (entries, microbatches) =
            (counted(self.operations(), "operation"), counted(self.microbatches, "microbatch"));
        let (regions, different) = (self.visits.len(), self.bodies.len());
        let _ =
            writeln!(text, "{mode:?}, {microbatches}: {entries} in {regions} regions, {different} of them different");
        // By body: the first visit that has it.
        let mut first = vec![None; self.bodies.len()];
        let mut region = None;
        self.list(|entry| {
            let visit = entry.visit.map(|visit| &self.visits[visit]);
            let shown = visit.map(|visit| *first[visit.held.body as usize].get_or_insert(entry.visit));
            if region != Some(entry.visit) {
                region = Some(entry.visit);
                let name: Rc<str> = visit.map_or("outside of all regions".into(), |visit| visit.name.clone());
                let same = shown.flatten().filter(|shown| Some(*shown) != entry.visit);
                let _ = match same {
                    None => writeln!(text, "{name}"),
                    Some(same) => writeln!(text, "{name}, from {}: as {}", entry.number, self.visits[same].name),
                };
            }
            if shown.is_none_or(|shown| shown == entry.visit) {
                line(device, &entry, text);
            }
        });
    }
}

/// The operations in a body.
fn inside(when: &When) -> String {
    let name = |op: &Op| match op {
        Op::When(inner) => format!("{} ({})", op.name(), inside(inner)),
        op => op.name().into(),
    };
    when.body.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn line(device: &Device, entry: &ListedEntry, text: &mut String) {
    let ListedEntry { number, queue, name, op, accesses, waits, region, .. } = entry;
    let named = |tensors: &[Tensor]| {
        let each = |tensor: &Tensor| {
            let name = device.buffer_name(tensor.buffer);
            // The region's own buffers need no region.
            let own = name.strip_prefix(&**region).and_then(|name| name.strip_prefix('/'));
            format!("{} {:?} {}", own.unwrap_or(&name), tensor.shape, tensor.dtype)
        };
        tensors.iter().map(each).collect::<Vec<_>>().join(", ")
    };
    let _ = write!(text, "  {number} {} {name}", device.stream_name(*queue));
    match op {
        None => text.push_str(", on the host"),
        Some(Op::When(when)) => {
            let _ = write!(text, " ({})", inside(when));
        }
        Some(_) => {}
    }
    if !waits.is_empty() {
        let waits: Vec<String> = waits.iter().map(usize::to_string).collect();
        let _ = write!(text, ", after {}", waits.join(", "));
    }
    for (what, tensors) in [("reads", &accesses.reads), ("writes", &accesses.writes)] {
        if !tensors.is_empty() {
            let _ = write!(text, "; {what} {}", named(tensors));
        }
    }
    text.push('\n');
}
