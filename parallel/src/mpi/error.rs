//! MPI's return codes as errors.
#![allow(unsafe_code)]

use device::{Error, Result};
use mpi::ffi;

/// The error of a collective on a communicator.
pub(super) fn failed(collective: &'static str, communicator: &str, problem: impl Into<String>) -> Error {
    Error::Communication { collective, communicator: communicator.into(), problem: problem.into() }
}

/// Turns a return code into a result, with MPI's own text.
pub(super) fn check(code: i32, collective: &'static str, communicator: &str) -> Result<()> {
    if code == ffi::MPI_SUCCESS as i32 {
        return Ok(());
    }
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the buffer is as long as MPI may write, and outlives the call.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    text.truncate(length.max(0) as usize);
    Err(failed(collective, communicator, String::from_utf8_lossy(&text).into_owned()))
}
