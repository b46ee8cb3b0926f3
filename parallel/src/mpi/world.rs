//! MPI's world: all ranks that a launcher started together.

use std::rc::Rc;

use device::Result;
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator as _, CommunicatorCollectives, Root};

use super::error::failed;

/// All ranks that a launcher started. MPI is finalized when this and every communicator made from it are dropped.
///
/// The methods exchange control messages. These are rare, and when one fails MPI prints why and ends all ranks.
pub(crate) struct MpiWorld {
    world: SimpleCommunicator,
    universe: Rc<Universe>,
}

impl MpiWorld {
    pub(crate) fn initialize() -> Result<MpiWorld> {
        let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Funneled)
            .ok_or_else(|| failed("MPI_Init", "world", "MPI was initialised already"))?;
        Ok(MpiWorld { world: universe.world(), universe: Rc::new(universe) })
    }

    pub(crate) fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    pub(crate) fn size(&self) -> usize {
        self.world.size() as usize
    }

    pub(crate) fn barrier(&self) {
        self.world.barrier();
    }

    /// Sends the bytes of one rank to all ranks. All pass the same number of bytes.
    fn broadcast(&self, rank: usize, bytes: &mut [u8]) {
        self.world.process_at_rank(rank as i32).broadcast_into(bytes);
    }

    pub(crate) fn broadcast_text(&self, rank: usize, text: String) -> String {
        let mut length = (text.len() as u64).to_le_bytes();
        self.broadcast(rank, &mut length);
        let mut bytes = text.into_bytes();
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        if !bytes.is_empty() {
            self.broadcast(rank, &mut bytes); // MPI refuses the address of an empty slice
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn max(&self, value: u64) -> u64 {
        self.reduce(value, SystemOperation::max())
    }

    pub(crate) fn min(&self, value: u64) -> u64 {
        self.reduce(value, SystemOperation::min())
    }

    pub(crate) fn sum(&self, value: u64) -> u64 {
        self.reduce(value, SystemOperation::sum())
    }

    fn reduce(&self, value: u64, operation: SystemOperation) -> u64 {
        let mut result = 0;
        self.world.all_reduce_into(&value, &mut result, operation);
        result
    }

    pub(crate) fn abort(&self, code: i32) -> ! {
        self.world.abort(code)
    }

    /// The handle that keeps MPI running.
    pub(crate) fn universe(&self) -> Rc<Universe> {
        self.universe.clone()
    }

    /// Divides the world into groups; `group` has the world ranks of this rank's. All ranks call it together.
    ///
    /// # Panics
    /// If this rank is not in its group.
    pub(crate) fn split(&self, group: &[usize]) -> SimpleCommunicator {
        let Some(rank) = group.iter().position(|&rank| rank == self.rank()) else {
            panic!("rank {} is not in its group {group:?}", self.rank());
        };
        let color = Color::with_value(group[0] as i32);
        match self.world.split_by_color_with_key(color, rank as i32) {
            Some(communicator) => communicator,
            None => unreachable!("a rank with a colour gets a communicator"),
        }
    }
}
