mod first_values;
mod frozen;
mod muon;
mod optimizer;
mod skip_step;
