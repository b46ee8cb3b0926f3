//! The command line of `trainer doctor`, and the command's start on all ranks.

use std::cell::RefCell;

use common::UserError;
use common::format::counted;
use launch::RankEnv;
use launch::watch::WatchSettings;
use parallel::{Axis, Connections, Mesh, MeshSizes, Placement};

use super::{DoctorRequest, card_table, check};
use crate::commands::report::check_output;
use trainer::config::TensorTransfers;
use trainer::run::accelerator::{Accelerator, Exactness};
use trainer::run::ranks::{Joined, on_all_ranks, refuse};

impl DoctorRequest {
    /// Fails if the file that the request names cannot be written.
    pub(crate) fn check(&self) -> Result<(), UserError> {
        self.card.as_deref().map_or(Ok(()), |file| check_output("--card", "h200.toml", file))
    }
}

/// Checks the machine on all ranks; returns the exit code.
pub(crate) fn run(request: &DoctorRequest, env: &RankEnv) -> i32 {
    let accelerator = Accelerator::choose(request.device, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    // A single process examines the host if the GPU cannot be used, and says why it cannot.
    let refused = RefCell::new(None);
    let open = |threads| match accelerator.open(Exactness::default(), threads, false) {
        Err(error) if env.world_size == 1 && accelerator != Accelerator::Host => {
            *refused.borrow_mut() = Some(error.to_string());
            Accelerator::Host.open(Exactness::default(), threads, false)
        }
        opened => opened,
    };
    let sizes = MeshSizes { tensor: env.world_size, ..MeshSizes::of(env.world_size) };
    let mesh = Mesh::new(sizes).unwrap_or_else(|_| unreachable!("any number of ranks can share layers"));
    let connections = Connections::new(mesh, Placement::new(1, 1));
    let settings = format!("device = {}\n", accelerator.kind());
    let joined = Joined {
        connections: &connections,
        transfers: TensorTransfers::Auto,
        shared: &settings,
        threads: None,
        watch: &WatchSettings::default(),
    };
    on_all_ranks(env, joined, open, |group, device| match &request.card {
        Some(file) if env.world_size == 1 && device.gpu().is_some() => {
            card_table::write(file, group, device)?;
            Ok(0)
        }
        Some(file) => {
            let what = format!(
                "doctor --card {} on {} and the device {}",
                file.display(),
                counted(env.world_size, "rank"),
                accelerator.kind()
            );
            Err(UserError::new(what, "one process measures one GPU", "run it without mpirun on a machine with a GPU")
                .into())
        }
        None => Ok(check(request, device, group.ranks.along(Axis::Tensor), refused.take())),
    })
}
