//! The trainer.

fn main() {}
