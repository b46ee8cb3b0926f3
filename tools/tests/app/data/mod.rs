//! Data of runs.

mod bad_data;
mod batch_ramp;
mod batches;
mod buckets;
mod document_ends;
mod inspect;
mod splits;
mod text_training;
mod tokenizers;
