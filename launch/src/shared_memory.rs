//! Room in shared memory, where ranks of one machine exchange messages.

use common::UserError;
use common::format::bytes;
use rustix::fs::statvfs;

/// The folder of POSIX shared memory.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";

/// A segment of Open MPI. Each rank makes one, and fails if so much is not free.
const SEGMENT: u64 = (4 << 20) + 4096;

/// What ranks use of shared segments (measured with 2 to 32 ranks: 78 to 98 KiB).
const IN_USE: u64 = 128 << 10;

/// Variables with which a user has Open MPI exchange messages elsewhere.
const ELSEWHERE: [&str; 3] =
    ["OMPI_MCA_btl", "OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"];

/// Fails if shared memory has no room for `ranks` ranks: MPI would end them with a report about its plugins.
///
/// # Errors
/// Too little room.
pub(crate) fn check_room(ranks: usize) -> Result<(), UserError> {
    let is_elsewhere = ELSEWHERE.iter().any(|name| std::env::var_os(name).is_some());
    match statvfs(SHARED_MEMORY) {
        Ok(found) if ranks > 1 && !is_elsewhere => fits(ranks, found.f_bavail * found.f_frsize),
        _ => Ok(()),
    }
}

fn fits(ranks: usize, free: u64) -> Result<(), UserError> {
    let needed = SEGMENT + ranks as u64 * IN_USE;
    if free >= needed {
        return Ok(());
    }
    Err(UserError::new(
        format!("{SHARED_MEMORY} has {} free, for {ranks} ranks", bytes(free as usize)),
        format!("ranks of one machine exchange messages there, and need {}", bytes(needed as usize)),
        format!(
            "remove old files in {SHARED_MEMORY}, or make it larger: docker run --shm-size 1g, or mount -o \
             remount,size=1g {SHARED_MEMORY}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_free_beside_those_in_use() {
        // Docker's default: 64 MiB.
        assert_eq!(fits(64, 64 << 20), Ok(()));
        let error = fits(16, 4 << 20).unwrap_err().to_string();
        let says = ["/dev/shm has 4.00 MiB free, for 16 ranks", "need 6.00 MiB", "--shm-size 1g"];
        assert!(says.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(check_room(1), Ok(()));
    }
}
