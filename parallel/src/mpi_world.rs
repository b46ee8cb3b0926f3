//! MPI: the control plane of every run. The data plane of the host device is in `mpi_communicator.rs`.
#![allow(unsafe_code)]

use std::rc::Rc;

use device::{Communicator, Error, Result};
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator as _, CommunicatorCollectives, Root};

use crate::mpi_communicator::MpiCommunicator;

/// All ranks of the run. Made once, on the main thread, which then makes all MPI calls. MPI is finalized when this and
/// every communicator made from it are gone.
///
/// Its own calls serve control: they are rare, and when one fails MPI prints why and ends all ranks.
pub struct MpiWorld {
    world: SimpleCommunicator,
    universe: Rc<Universe>,
}

pub(crate) fn failed(collective: &'static str, communicator: &str, problem: impl Into<String>) -> Error {
    Error::Communication { collective, communicator: communicator.into(), problem: problem.into() }
}

impl MpiWorld {
    /// Starts MPI; without mpirun the world is this process alone.
    ///
    /// # Errors
    /// When MPI was started before, or cannot be.
    pub fn initialize() -> Result<MpiWorld> {
        let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Funneled)
            .ok_or_else(|| failed("MPI_Init", "world", "MPI was initialised already"))?;
        Ok(MpiWorld { world: universe.world(), universe: Rc::new(universe) })
    }

    /// This process.
    pub fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    /// Processes of the run.
    pub fn size(&self) -> usize {
        self.world.size() as usize
    }

    /// Waits for all ranks.
    pub fn barrier(&self) {
        self.world.barrier();
    }

    /// Gives all ranks the bytes of one; they must have as many.
    pub fn broadcast(&self, rank: usize, bytes: &mut [u8]) {
        self.world.process_at_rank(rank as i32).broadcast_into(bytes);
    }

    /// The text of one rank, on all ranks.
    pub fn text_of(&self, rank: usize, text: String) -> String {
        let mut length = (text.len() as u64).to_le_bytes();
        self.broadcast(rank, &mut length);
        let mut bytes = text.into_bytes();
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        if !bytes.is_empty() {
            self.broadcast(rank, &mut bytes); // MPI refuses the address of nothing
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The largest value of all ranks.
    pub fn max(&self, value: u64) -> u64 {
        let mut result = 0;
        self.world.all_reduce_into(&value, &mut result, SystemOperation::max());
        result
    }

    /// The smallest value of all ranks. Equal to [`MpiWorld::max`] only if all ranks agree.
    pub fn min(&self, value: u64) -> u64 {
        let mut result = 0;
        self.world.all_reduce_into(&value, &mut result, SystemOperation::min());
        result
    }

    /// The sum over all ranks.
    pub fn sum(&self, value: u64) -> u64 {
        let mut result = 0;
        self.world.all_reduce_into(&value, &mut result, SystemOperation::sum());
        result
    }

    /// Ends all ranks at once with this exit code; nothing is torn down.
    pub fn abort(&self, code: i32) -> ! {
        self.world.abort(code)
    }

    /// A communicator over all ranks, apart from all others. All ranks make theirs in the same order.
    pub fn communicator(&self, name: &str) -> Rc<dyn Communicator> {
        let members = (0..self.size()).collect();
        Rc::new(MpiCommunicator::new(name, self.world.duplicate(), members, self.universe.clone()))
    }

    /// Cuts the world into groups with a communicator each, apart from all others; `group` is this rank's, as numbers in
    /// the world. All ranks do so in the same order.
    pub fn split(&self, name: &str, group: &[usize]) -> Rc<dyn Communicator> {
        Rc::new(MpiCommunicator::new(name, self.group(group), group.to_vec(), self.universe.clone()))
    }

    /// The same on MPI's own level, for other libraries to be set up through.
    ///
    /// # Panics
    /// If this rank is not in its group.
    pub(crate) fn group(&self, group: &[usize]) -> SimpleCommunicator {
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

/// What an MPI return code means, as a result.
pub(crate) fn check(code: i32, collective: &'static str, communicator: &str) -> Result<()> {
    if code == ffi::MPI_SUCCESS as i32 {
        return Ok(());
    }
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the buffer is as long as MPI may write, and outlives the call.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    text.truncate(length.max(0) as usize);
    Err(failed(collective, communicator, String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_alone_is_a_world_of_one_and_codes_become_errors_in_words() {
        let world = MpiWorld::initialize().unwrap();
        let again = MpiWorld::initialize().map(|_| ()).unwrap_err().to_string();
        assert_eq!((world.rank(), world.size(), world.max(7), world.min(7)), (0, 1, 7, 7));
        assert_eq!(again, "MPI_Init on world: MPI was initialised already");
        assert_eq!(check(ffi::MPI_SUCCESS as i32, "all_reduce", "data"), Ok(()));
        let error = check(ffi::MPI_ERR_TRUNCATE as i32, "all_reduce", "data").unwrap_err().to_string();
        assert!(error.starts_with("all_reduce on data: ") && error.contains("truncate"), "{error}");
        // The communicator keeps MPI running until it is freed.
        let communicator = world.communicator("data");
        drop(world);
        assert_eq!((communicator.name(), communicator.rank(), communicator.size()), ("data", 0, 1));
    }
}
