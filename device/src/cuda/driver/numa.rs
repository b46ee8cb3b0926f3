//! The node of the machine's memory that is nearest to a GPU. A machine with several processors has several nodes, and
//! copies through another processor are slower.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::fs::read_to_string;
use std::io;
use std::path::Path;

use cudarc::driver::sys;

/// Bits of a mask of nodes: more than a machine has.
const MASK: usize = 1024;

/// `MPOL_PREFERRED`: pages come from this node while it has some, else from others.
const PREFERRED: i32 = 1;

/// The node nearest to the GPU of this thread's context; `None` if the machine has one node, or does not say.
pub(super) fn nearest() -> Option<usize> {
    let mut device = 0;
    let mut id = [0 as c_char; 32];
    // SAFETY: both are written within their sizes.
    let named = unsafe {
        sys::cuCtxGetDevice(&mut device).result().is_ok()
            && sys::cuDeviceGetPCIBusId(id.as_mut_ptr(), id.len() as i32, device).result().is_ok()
    };
    // SAFETY: the driver ends the text with a zero.
    let id = named.then(|| unsafe { CStr::from_ptr(id.as_ptr()) }.to_string_lossy().to_lowercase())?;
    node_of(Path::new("/sys"), &id)
}

/// The node of a PCI device, by the files of the system in `root`.
fn node_of(root: &Path, pci: &str) -> Option<usize> {
    let online = read_to_string(root.join("devices/system/node/online")).ok()?;
    // A list of ranges, such as 0-1.
    let has_several = online.contains(['-', ',']);
    let node = read_to_string(root.join(format!("bus/pci/devices/{pci}/numa_node"))).ok()?;
    // -1: the system does not know.
    node.trim().parse().ok().filter(|node| has_several && *node < MASK)
}

/// Asks the system to take the pages of a mapping from a node. They must not have been made yet.
///
/// # Errors
/// The system refuses it, as containers do.
pub(super) fn prefer(start: *mut c_void, bytes: usize, node: usize) -> io::Result<()> {
    let mut mask = [0u64; MASK / 64];
    mask[node / 64] |= 1 << (node % 64);
    // SAFETY: a policy changes no memory. The mask has as many bits as is said.
    let result = unsafe { libc::syscall(libc::SYS_mbind, start, bytes, PREFERRED, mask.as_ptr(), MASK, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    #[test]
    fn a_gpu_has_a_node_only_if_the_machine_has_several() {
        let root = tempfile::tempdir().unwrap();
        let gpu = root.path().join("bus/pci/devices/0000:1b:00.0");
        create_dir_all(&gpu).unwrap();
        create_dir_all(root.path().join("devices/system/node")).unwrap();
        let node = |online: &str, node: &str| {
            write(root.path().join("devices/system/node/online"), online).unwrap();
            write(gpu.join("numa_node"), node).unwrap();
            node_of(root.path(), "0000:1b:00.0")
        };
        assert_eq!(node("0-1\n", "1\n"), Some(1));
        assert_eq!(node("0,2\n", "2\n"), Some(2));
        assert_eq!(node("0\n", "0\n"), None);
        assert_eq!(node("0-1\n", "-1\n"), None);
        assert_eq!(node_of(root.path(), "0000:00:00.0"), None);
    }
}
