//! Digests of visits. Visits that do the same in the same places have the same digest, and share a graph.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::body::{Item, Work};
use super::data::Program;
use super::frozen::text;

impl<R: Copy + Eq + Hash + Display> Program<R> {
    /// By visit: a digest of all operations of the visit and the visits inside it, with all fields, and of the places
    /// of their buffers. Two visits of a program, or of programs of one plan, do the same if their digests are equal.
    pub(crate) fn digests(&self, place: impl Fn(usize, &mut DefaultHasher)) -> impl Fn(usize) -> u64 {
        let bodies: Vec<u64> = (0..self.bodies.len()).map(|body| self.body_digest(body)).collect();
        move |visit| {
            let mut hasher = DefaultHasher::new();
            for inner in visit..self.visits[visit].next() {
                let held = self.visits[inner].held;
                let body = &self.bodies[held.body as usize];
                bodies[held.body as usize].hash(&mut hasher);
                // The visit directly around it, counted from the digested one.
                (inner > visit).then(|| self.visits[inner].outer - visit as u32).hash(&mut hasher);
                let table = &self.tables[held.table as usize..(held.table + body.mentions) as usize];
                for index in table.iter().filter(|index| Self::is_taken(**index)) {
                    place(*index as usize, &mut hasher);
                }
            }
            hasher.finish()
        }
    }

    fn body_digest(&self, body: usize) -> u64 {
        let (mut hasher, body) = (DefaultHasher::new(), &self.bodies[body]);
        body.inputs.hash(&mut hasher);
        for item in &body.items {
            match item {
                Item::Inner => 0_u8.hash(&mut hasher),
                Item::Join { by, of } => (1_u8, by, of).hash(&mut hasher),
                Item::Entry(entry) => {
                    (2_u8, entry.queue, entry.placed, entry.early).hash(&mut hasher);
                    match &entry.work {
                        Work::Op(op) => text(op).hash(&mut hasher),
                        Work::Host(call) => call.name.hash(&mut hasher),
                    }
                }
            }
        }
        hasher.finish()
    }
}
