//! Where the buffers of a list lie. A list is bound to its plan, to memory apart from it for a verification, and anew where areas
//! move.

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

    /// Each buffer has bytes of its own in an area, whose size comes with it. Nothing is planned, so no mistake of a plan shows.
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
