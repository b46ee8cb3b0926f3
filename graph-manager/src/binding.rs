//! Where the buffers of a list lie. A list is bound to the areas of its plan, and anew when they move. For a verification it
//! is bound to memory apart from them.

use device::{ALIGNMENT, Area, Device};

use crate::error::Result;
use crate::program::{Program, Taken};

/// The addresses of a list's buffers.
pub(crate) struct Binding {
    /// By index of the buffer; `UNBOUND` for one that has no place of its own.
    addresses: Vec<u64>,
}

const UNBOUND: u64 = 0;

impl Binding {
    /// Buffers lie at these addresses; `None` for one that has no place of its own.
    pub(crate) fn new(addresses: impl Iterator<Item = Option<u64>>) -> Binding {
        Binding { addresses: addresses.map(|address| address.unwrap_or(UNBOUND)).collect() }
    }

    /// Allocates an area in which each buffer has bytes of its own. No mistake of a plan shows there.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn apart<R>(device: &Device, program: &Program<R>) -> Result<(Area, Binding)> {
        let area = device.allocate("memory of a step that is verified", Binding::bytes_apart(program))?;
        let mut end = area.address();
        let address = |buffer: &Taken| {
            end += buffer.bytes.next_multiple_of(ALIGNMENT) as u64;
            end - buffer.bytes.next_multiple_of(ALIGNMENT) as u64
        };
        let addresses = program.buffers.iter().map(address).collect();
        Ok((area, Binding { addresses }))
    }

    /// The bytes of memory apart.
    pub(crate) fn bytes_apart<R>(program: &Program<R>) -> usize {
        program.buffers.iter().map(|buffer| buffer.bytes.next_multiple_of(ALIGNMENT)).sum()
    }

    /// Where a buffer lies.
    pub(crate) fn address(&self, index: usize) -> Option<u64> {
        self.addresses.get(index).copied().filter(|address| *address != UNBOUND)
    }
}
