//! Digests of visits. Visits that do the same share a body, and in the same places also a graph.

use std::fmt::{Display, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use device::Op;

use super::body::{Item, Own, Use, Work};
use super::data::Program;
use super::frozen::text;

/// A stream of words that a hasher takes one by one.
struct Words<'h>(&'h mut DefaultHasher);

impl Write for Words<'_> {
    fn write_str(&mut self, words: &str) -> std::fmt::Result {
        self.0.write(words.as_bytes());
        Ok(())
    }
}

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
                        Work::Op(op) => match &**op {
                            op @ (Op::When(_) | Op::Custom(_)) => text(op).hash(&mut hasher),
                            op => _ = write!(Words(&mut hasher), "{op:?};"),
                        },
                        Work::Host(call) => call.name.hash(&mut hasher),
                    }
                }
            }
        }
        hasher.finish()
    }

    /// Whether a visit with that table does the same as a body.
    pub(super) fn is_same(&self, body: u32, items: &[Item], uses: &[Use], own: &[Own], table: u32) -> bool {
        let body = &self.bodies[body as usize];
        let mentions = self.tables.len() - table as usize;
        let same_shape = body.items.len() == items.len()
            && body.mentions as usize == mentions
            && body.uses == uses
            && body.own == own;
        if !same_shape {
            return false;
        }
        let ours = &self.tables[table as usize..];
        let theirs = &self.tables[body.table as usize..][..mentions];
        let alike = |(a, b): (&u32, &u32)| a == b || Self::is_taken(*a) && Self::is_taken(*b);
        if !ours.iter().zip(theirs).all(alike) {
            return false;
        }
        body.items.iter().zip(items).all(|pair| match pair {
            (Item::Inner, Item::Inner) => true,
            (Item::Join { by, of }, Item::Join { by: now_by, of: now_of }) => (by, of) == (now_by, now_of),
            (Item::Entry(was), Item::Entry(is)) => {
                let same = (was.queue, was.placed, was.early, &was.uses, &was.label)
                    == (is.queue, is.placed, is.early, &is.uses, &is.label);
                same && match (&was.work, &is.work) {
                    (Work::Op(was), Work::Op(is)) => was == is,
                    (Work::Host(was), Work::Host(is)) => Rc::ptr_eq(was, is),
                    _ => false,
                }
            }
            _ => false,
        })
    }
}

/// A number that equal sequences of numbers have.
#[derive(Default)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    pub(super) fn add_hash(&mut self, value: &impl Hash) {
        value.hash(self);
    }

    pub(super) fn value(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add(u64::from(*byte)));
    }

    fn write_u8(&mut self, word: u8) {
        self.add(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.add(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.add(word as u64);
    }

    fn finish(&self) -> u64 {
        self.value()
    }
}
