//! Every operation against a reference in f64 that is written independently.

mod attention;
mod experts;
mod functions;
mod losses;
mod low_precision;
mod norms;
mod parallel;
mod products;
mod select;
mod updates;
mod values;
