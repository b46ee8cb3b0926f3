//! The device's promises on the host: capture rules, the checker, every operation against an independent reference. And
//! that the kernels compile for every supported GPU.

mod common;

mod adopted;
mod capture_rules;
mod checker;
mod copies;
mod custom;
mod extremes;
mod graph_drawing;
mod kernels_compile;
mod moves;
mod operations;
mod peer_rounds;
mod peers_on_host;
mod recording;
mod sync_debug;
mod threads;
mod trials;
mod unbound;
mod when;
