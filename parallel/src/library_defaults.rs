//! What libraries are told through the environment, which is the only way to tell them.
#![allow(unsafe_code)]

/// What is set unless the user has set it.
///
/// Graph registration of user buffers (`NCCL_GRAPH_REGISTER`) keeps state per captured address and has cost users
/// memory and hangs at teardown; one connection queue per stream lets side streams run beside the compute stream; and what
/// goes from stage to stage beside the work takes a few of a GPU's multiprocessors, not up to 32 for each transfer.
///
/// A process that no launcher started, Open MPI would give a daemon, which refuses to run as root and takes a while.
const DEFAULTS: [(&str, &str); 4] = [
    ("NCCL_GRAPH_REGISTER", "0"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("NCCL_MAX_P2P_NCHANNELS", "8"),
    ("OMPI_MCA_ess_singleton_isolated", "1"),
];

/// Sets the environment's defaults. Call first thing in `main`, before any thread is started.
pub fn set_library_defaults() {
    for (name, value) in DEFAULTS {
        if std::env::var_os(name).is_none() {
            // SAFETY: the caller has not started a thread that could read the environment meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
    }
}
