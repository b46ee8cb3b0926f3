//! From a driver's code to an error that names the failed action.

use cudarc::driver::DriverError;

use super::causes::cause_and_fix;
use crate::{Error, Result};

/// Adds the name of the action to a result of the driver.
pub(in crate::cuda) trait Driver<T> {
    /// # Errors
    /// The driver's error, with the code's name and meaning, and a fix.
    fn driver(self, call: &'static str) -> Result<T>;
}

impl<T> Driver<T> for std::result::Result<T, DriverError> {
    fn driver(self, call: &'static str) -> Result<T> {
        self.map_err(|error| {
            let text = |text: std::result::Result<&std::ffi::CStr, DriverError>| {
                text.map_or_else(|_| "unknown".into(), |text| text.to_string_lossy().into_owned())
            };
            let (code, name, meaning) = (error.0 as u32, text(error.error_name()), text(error.error_string()));
            let problem = format!("{name} ({code}): {meaning}{}", cause_and_fix(code));
            Error::Driver { call, problem }
        })
    }
}

/// The error of a library that could not be loaded. `last` is the place that was searched last.
pub(in crate::cuda) fn missing_library(name: &'static str, file: &str, last: &str, fix: &str) -> Error {
    let searched = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let problem = format!("{file} was not found (LD_LIBRARY_PATH={searched:?}, then {last}). Fix: {fix}");
    Error::Driver { call: name, problem }
}
