//! All ranks of a run, and the control messages between them.

use std::process::exit;
use std::rc::Rc;

use common::UserError;
use device::cuda::GpuProperties;
use device::{Communicator, Result};

use crate::mpi::{MpiCommunicator, MpiGroup};
use crate::nccl;
use crate::peer_link::{NoLink, PeerLink};

/// All ranks of a run. A run makes one on its main thread, and this thread then makes all MPI calls.
///
/// A process that no launcher started is the whole world. It never starts MPI: that would take time, and need a session
/// folder that other processes share.
///
/// Every method that does not return this rank's own number is collective: all ranks call it together, in the same order.
pub struct World {
    /// `None` for a single process.
    mpi: Option<MpiGroup>,
}

impl World {
    /// The world of this process alone. MPI is not started.
    pub fn single() -> World {
        World { mpi: None }
    }

    /// The world of all ranks that a launcher started. Starts MPI. MPI ends when this and all communicators made from
    /// it are dropped.
    ///
    /// # Errors
    /// MPI is missing: see [`mpi_version`](crate::mpi_version).
    ///
    /// # Panics
    /// If MPI was started before.
    pub fn mpi() -> std::result::Result<World, UserError> {
        Ok(World { mpi: Some(MpiGroup::world()?) })
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.mpi.as_ref().map_or(0, MpiGroup::rank)
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.mpi.as_ref().map_or(1, MpiGroup::size)
    }

    /// Waits for all ranks.
    pub fn barrier(&self) {
        if let Some(mpi) = &self.mpi {
            mpi.barrier();
        }
    }

    /// The text that rank `rank` passed, on all ranks.
    pub fn broadcast_text(&self, rank: usize, text: String) -> String {
        match &self.mpi {
            Some(mpi) => mpi.broadcast_text(rank, text),
            None => text,
        }
    }

    /// The largest value of all ranks.
    pub fn max(&self, value: u64) -> u64 {
        self.mpi.as_ref().map_or(value, |mpi| mpi.max(value))
    }

    /// The smallest value of all ranks.
    pub fn min(&self, value: u64) -> u64 {
        self.mpi.as_ref().map_or(value, |mpi| mpi.min(value))
    }

    /// The sum over all ranks.
    pub fn sum(&self, value: u64) -> u64 {
        self.mpi.as_ref().map_or(value, |mpi| mpi.sum(value))
    }

    /// Ends all ranks at once with this exit code. Nothing is torn down.
    pub fn abort(&self, code: i32) -> ! {
        match &self.mpi {
            Some(mpi) if mpi.size() > 1 => mpi.abort(code),
            _ => exit(code),
        }
    }

    /// Divides the world into groups, each with a communicator for tensors in host memory; `group` has the world ranks of
    /// this rank's. `None` if the group is this rank alone.
    ///
    /// # Panics
    /// If this rank is not in its group.
    pub fn host_communicator(&self, name: &str, group: &[usize]) -> Option<Rc<dyn Communicator>> {
        let mpi = self.mpi.as_ref()?;
        let split = mpi.split(group);
        let members = group.to_vec();
        (members.len() > 1).then(|| Rc::new(MpiCommunicator::new(name, split, members)) as Rc<_>)
    }

    /// As [`World::host_communicator`], for tensors in the memory of GPUs, by NCCL. Each rank has its own GPU open on this
    /// thread.
    ///
    /// Dropping the communicator waits for the group's other ranks to drop theirs. So all ranks drop several communicators
    /// in the same order. On a fault the process exits without dropping them.
    ///
    /// # Errors
    /// A missing NCCL library, or NCCL's own errors.
    ///
    /// # Panics
    /// If this rank is not in its group.
    pub fn nccl_communicator(&self, name: &str, group: &[usize]) -> Result<Option<Rc<dyn Communicator>>> {
        let Some(mpi) = &self.mpi else { return Ok(None) };
        let split = mpi.split(group);
        if group.len() == 1 {
            return Ok(None);
        }
        Ok(Some(Rc::new(nccl::communicator(&split, name, group.to_vec())?)))
    }

    /// As [`World::nccl_communicator`], but sums and gathers are made by kernels that read the memory of the other GPUs, if
    /// all of the group are in one node and reach each other. Otherwise, and for all else, NCCL makes the transfers. `gpu`
    /// is this rank's.
    ///
    /// # Errors
    /// As [`World::nccl_communicator`].
    ///
    /// # Panics
    /// If this rank is not in its group.
    pub fn peer_communicator(
        &self,
        name: &str,
        group: &[usize],
        gpu: &GpuProperties,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let Some(mpi) = &self.mpi else { return Ok(None) };
        let split = mpi.split(group);
        if group.len() == 1 {
            return Ok(None);
        }
        let nccl = nccl::communicator(&split, name, group.to_vec())?;
        // NCCL comes first: if it fails on a rank, the rank must end its run, and a link waits for all ranks when it is
        // dropped.
        let link = PeerLink::new(split, gpu);
        match &link {
            Err(NoLink::Refused(why)) if mpi.rank() == group[0] => {
                tracing::warn!(
                    "NCCL makes the transfers of communicator `{name}`, because GPUs cannot be connected: {why}"
                );
            }
            Err(why) => tracing::info!("NCCL makes the transfers of communicator `{name}`: {why}"),
            Ok(_) => {}
        }
        Ok(Some(Rc::new(nccl.over(link.ok()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_process_is_a_world_of_one_without_communicators() {
        let world = World::single();
        assert_eq!((world.rank(), world.size()), (0, 1));
        assert_eq!((world.max(7), world.min(7), world.sum(7)), (7, 7, 7));
        world.barrier();
        assert_eq!(world.broadcast_text(0, "text".into()), "text");
        assert!(world.host_communicator("data", &[0]).is_none());
        assert!(world.nccl_communicator("data", &[0]).unwrap().is_none());
    }
}
