//! Runs of several ranks, and what starts and watches them.

mod distributed_run;
pub mod job;
mod launch;
mod mpirun;
mod network;
mod pipeline_run;
mod rank_mistakes;
mod supervise;
mod tensor_run;
mod verify_layout;
mod watch;
