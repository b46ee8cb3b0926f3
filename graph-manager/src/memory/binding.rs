//! The addresses of a list's buffers. A list is bound to the areas of its plan, and again when they move. For a
//! verification it is bound to separate memory.

use std::fmt::Display;
use std::hash::Hash;

use device::{ALIGNMENT, Area, BufferId, Device, Home, Tensor};

use crate::error::Result;
use crate::program::{Program, Taken};

/// The addresses of a list's buffers.
pub(crate) struct Binding {
    /// By index of the buffer.
    places: Vec<BoundBuffer>,
}

/// A buffer with an address in memory.
#[derive(Clone, Copy)]
pub(crate) struct BoundBuffer {
    pub(crate) address: u64,
    /// The buffer that names the place: in a plan, one buffer stands for those of all microbatches of a slot.
    pub(crate) buffer: BufferId,
}

impl Binding {
    /// The binding of buffers that lie at `places`, in the order in which the list takes buffers.
    pub(crate) fn new(places: Vec<BoundBuffer>) -> Binding {
        Binding { places }
    }

    /// Allocates an area on the device and one on the host, in which no two buffers share bytes. No mistake of a plan
    /// shows there.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn apart<R>(device: &Device, program: &Program<R>) -> Result<([Area; 2], Binding)> {
        let allocate = |home| {
            let bytes = Binding::bytes_apart(program, home);
            device.allocate_in(home, "memory of a step that is verified", bytes)
        };
        let areas = [allocate(Home::Device)?, allocate(Home::Host)?];
        let mut ends = areas.each_ref().map(Area::address);
        let place = |taken: &Taken| {
            let end = &mut ends[usize::from(taken.home == Home::Host)];
            let place = BoundBuffer { address: *end, buffer: taken.buffer };
            *end += taken.bytes.next_multiple_of(ALIGNMENT) as u64;
            place
        };
        let places = program.buffers.iter().map(place).collect();
        Ok((areas, Binding { places }))
    }

    /// The bytes of memory apart on the device or the host.
    pub(crate) fn bytes_apart<R>(program: &Program<R>, home: Home) -> usize {
        let there = program.buffers.iter().filter(|buffer| buffer.home == home);
        there.map(|buffer| buffer.bytes.next_multiple_of(ALIGNMENT)).sum()
    }

    /// The tensor of a list's body at the address in the visit with that table. Tensors in buffers that no region takes
    /// are unchanged.
    pub(crate) fn bound_in_visit<R: Copy + Eq + Hash + Display>(
        &self,
        program: &Program<R>,
        table: u32,
        tensor: Tensor,
    ) -> Tensor {
        match program.meant(table, &tensor) {
            Some(index) => {
                let BoundBuffer { address, buffer } = self.places[index];
                Tensor { address: address + tensor.address, buffer, ..tensor }
            }
            None => tensor,
        }
    }

    /// The tensor of the recording at the tensor's address in memory.
    pub(crate) fn bound<R: Copy + Eq + Hash + Display>(&self, program: &Program<R>, tensor: Tensor) -> Tensor {
        match program.taken(tensor.buffer) {
            Some(index) => {
                let BoundBuffer { address, buffer } = self.places[index];
                Tensor { address: address + (tensor.address - program.buffers[index].address), buffer, ..tensor }
            }
            None => tensor,
        }
    }
}
