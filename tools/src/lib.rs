#![doc = include_str!("../README.md")]

use std::process::exit;
use std::time::Instant;

use launch::RankEnv;
use parallel::set_library_defaults;
use trainer::extensions::Extensions;
use trainer::run::ranks::{fail, refuse};

pub mod commands;
pub mod page;
pub mod predict;
pub mod profile;
mod verify;

/// The program `trainer` with the code that another one adds: reads the command line, carries it out, and ends the process.
pub fn main(extensions: Extensions) -> ! {
    let started = Instant::now();
    extensions.install();
    let ranks = RankEnv::detect().unwrap_or_else(|error| fail(true, 2, &error.to_string()));
    set_library_defaults(ranks.is_one_node());
    let request =
        commands::request(std::env::args_os(), &ranks).unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    exit(commands::execute(request, &ranks, started))
}
