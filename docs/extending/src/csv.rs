//! A table of losses, `losses.csv` in the run's folder.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use common::UserError;
use trainer::config::RunConfig;
use trainer::extensions::MetricsSink;
use trainer::report::metrics::StepMetrics;

/// The receiver of a run. A run that goes on adds to its table.
pub fn sink(config: &RunConfig) -> Result<Box<dyn MetricsSink>, UserError> {
    let path = Path::new(&config.logging.dir).join("losses.csv");
    match File::options().create(true).append(true).open(&path) {
        Ok(file) => Ok(Box::new(Csv(file))),
        Err(error) => {
            Err(UserError::new(format!("{}: {error}", path.display()), "csv writes a table there", "check the folder"))
        }
    }
}

struct Csv(File);

impl MetricsSink for Csv {
    fn write(&mut self, step: &StepMetrics) -> io::Result<()> {
        writeln!(self.0, "{},{}", step.step, step.loss)
    }
}
