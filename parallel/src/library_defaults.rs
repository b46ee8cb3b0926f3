//! Environment variables for NCCL, CUDA and MPI: the only way to set these options.
#![allow(unsafe_code)]

use crate::mpi::mpi_version;

/// The variables of NCCL and MPI that are set unless the user has set some value.
///
/// - `NCCL_GRAPH_REGISTER`: registering user buffers of graphs keeps state per captured address, and has cost users memory
///   and hangs at teardown.
/// - `CUDA_DEVICE_MAX_CONNECTIONS`: with a connection queue per stream, side streams run beside the compute stream.
/// - `NCCL_MAX_P2P_NCHANNELS`: transfers between stages overlap with work. Each should take a few of a GPU's
///   multiprocessors, not up to 32.
/// - `OMPI_MCA_ess_singleton_isolated`: if a launcher's variables are there but its MPI is not (srun without PMIx),
///   Open MPI would start a daemon. That takes time, and the daemon refuses to run as root. Without the daemon the rank
///   sees a world of one, and the caller can report that.
const DEFAULTS: [(&str, &str); 4] = [
    ("NCCL_GRAPH_REGISTER", "0"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("NCCL_MAX_P2P_NCHANNELS", "8"),
    ("OMPI_MCA_ess_singleton_isolated", "1"),
];

/// Sets the defaults. Call it first in `main`, before any thread is started. `one_node`: a launcher started this process,
/// and all ranks are on this node.
///
/// Ranks of one node exchange MPI messages through shared memory (`OMPI_MCA_pml`, `OMPI_MCA_btl`). Otherwise each rank
/// would also listen for TCP on all addresses, and wait there for the rest of any message that a stranger begins.
pub fn set_library_defaults(one_node: bool) {
    // Without MPI, starting it says so.
    let version = if one_node { mpi_version().ok() } else { None };
    let shared_memory = version.map(|version| [("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", shared_memory(&version))]);
    for (name, value) in DEFAULTS.into_iter().chain(shared_memory.into_iter().flatten()) {
        if std::env::var_os(name).is_none() {
            // SAFETY: the caller has not started a thread yet that could read the environment at the same time.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Open MPI's transports for ranks of one node: to the rank itself, and to others through shared memory. The latter got
/// another name in version 5.
fn shared_memory(version: &str) -> &'static str {
    let major = version.split_once("Open MPI v").and_then(|(_, number)| number.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major >= 5) { "self,sm" } else { "self,vader" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_has_the_name_that_the_version_knows() {
        assert_eq!(shared_memory("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"), "self,vader");
        assert_eq!(shared_memory("Open MPI v5.0.8, package: Open MPI"), "self,sm");
        assert_eq!(shared_memory("Open MPI v10.1.0rc1, package"), "self,sm");
        assert_eq!(shared_memory("MPICH Version: 4.0.2"), "self,vader");
    }
}
