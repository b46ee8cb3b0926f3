//! Environment variables for NCCL, CUDA and MPI, which have no other way to set these options.
#![allow(unsafe_code)]

/// Set unless the user has set them.
///
/// - `NCCL_GRAPH_REGISTER`: registering user buffers of graphs keeps state per captured address, and has cost users memory
///   and hangs at teardown.
/// - `CUDA_DEVICE_MAX_CONNECTIONS`: with a connection queue per stream, side streams run beside the compute stream.
/// - `NCCL_MAX_P2P_NCHANNELS`: transfers between stages overlap with work. Each should take a few of a GPU's
///   multiprocessors, not up to 32.
/// - `OMPI_MCA_ess_singleton_isolated`: if a launcher's variables are there but its MPI is not (srun without PMIx), Open MPI
///   would start a daemon, which takes time and refuses to run as root. Without the daemon the rank sees a world of one, and
///   the caller can report that.
const DEFAULTS: [(&str, &str); 4] = [
    ("NCCL_GRAPH_REGISTER", "0"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("NCCL_MAX_P2P_NCHANNELS", "8"),
    ("OMPI_MCA_ess_singleton_isolated", "1"),
];

/// Sets the defaults. Call it first in `main`, before any thread is started.
pub fn set_library_defaults() {
    for (name, value) in DEFAULTS {
        if std::env::var_os(name).is_none() {
            // SAFETY: the caller has not started a thread yet that could read the environment at the same time.
            unsafe { std::env::set_var(name, value) };
        }
    }
}
