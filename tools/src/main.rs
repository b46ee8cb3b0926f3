//! The trainer: one process per rank.

use std::process::exit;
use std::time::Instant;

use launch::RankEnv;
use parallel::set_library_defaults;
use tools::commands::{execute, request};
use trainer::run::ranks::{fail, refuse};

fn main() {
    let started = Instant::now();
    let ranks = RankEnv::detect().unwrap_or_else(|error| fail(true, 2, &error.to_string()));
    set_library_defaults(ranks.is_one_node());
    let request = request(std::env::args_os(), &ranks).unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    exit(execute(request, &ranks, started))
}
