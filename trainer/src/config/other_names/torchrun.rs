//! The flags of torchrun, the launcher of PyTorch. They stand before a script, not in a configuration.

use super::settings::Here::Without;
use super::settings::OtherName;

const LAUNCH: &str = "ranks are started by a command before the flags";
const RANKS: &str = "trainer launch -n RANKS -- FLAGS";
const HOSTS: &str = "trainer job hosts --hosts NAMES, or trainer job slurm --nodes N";

const fn name(name: &'static str, fix: &'static str) -> OtherName {
    OtherName { name, default: "", here: Without(LAUNCH, fix) }
}

pub(super) const NAMES: &[OtherName] = &[
    name("nproc_per_node", RANKS),
    name("nnodes", HOSTS),
    name("node_rank", HOSTS),
    name("master_addr", HOSTS),
    name("master_port", HOSTS),
    name("rdzv_*", HOSTS),
    name("standalone", RANKS),
    name("local_rank", RANKS),
];
