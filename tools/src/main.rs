//! The trainer: one process per rank.

use trainer::extensions::Extensions;

fn main() -> ! {
    tools::main(Extensions::NONE)
}
