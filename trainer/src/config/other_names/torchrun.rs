//! The flags of torchrun, the launcher of PyTorch. They stand before a script, not in a configuration.

use super::settings::{OtherName, without};

const LAUNCH: &str = "ranks are started by a command before the flags";
const RANKS: &str = "trainer launch -n RANKS -- FLAGS";
const HOSTS: &str = "trainer job hosts --hosts NAMES, or trainer job slurm --nodes N";

pub(super) const NAMES: &[OtherName] = &[
    without("nproc_per_node", LAUNCH, RANKS),
    without("nnodes", LAUNCH, HOSTS),
    without("node_rank", LAUNCH, HOSTS),
    without("master_addr", LAUNCH, HOSTS),
    without("master_port", LAUNCH, HOSTS),
    without("rdzv_*", LAUNCH, HOSTS),
    without("standalone", LAUNCH, RANKS),
    without("local_rank", LAUNCH, RANKS),
];
