//! NCCL's functions, loaded when ranks need them.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use cudarc::nccl::sys::{
    cudaStream_t as Stream, ncclComm_t as Handle, ncclDataType_t as Type, ncclRedOp_t as Reduction,
    ncclResult_t as Code, ncclUniqueId as Id,
};
use libloading::Library;

/// NCCL's files, as packages name the library, and as a link of a developer's package does.
const FILES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// NCCL's functions, in the words of NCCL's guide.
pub(crate) struct NcclLibrary {
    pub(crate) version: unsafe extern "C" fn(*mut c_int) -> Code,
    pub(crate) unique_id: unsafe extern "C" fn(*mut Id) -> Code,
    pub(crate) init_rank: unsafe extern "C" fn(*mut Handle, c_int, Id, c_int) -> Code,
    pub(crate) destroy: unsafe extern "C" fn(Handle) -> Code,
    pub(crate) async_error: unsafe extern "C" fn(Handle, *mut Code) -> Code,
    pub(crate) group_start: unsafe extern "C" fn() -> Code,
    pub(crate) group_end: unsafe extern "C" fn() -> Code,
    pub(crate) send: unsafe extern "C" fn(*const c_void, usize, Type, c_int, Handle, Stream) -> Code,
    pub(crate) receive: unsafe extern "C" fn(*mut c_void, usize, Type, c_int, Handle, Stream) -> Code,
    pub(crate) all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, Type, Reduction, Handle, Stream) -> Code,
    pub(crate) reduce_scatter:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, Type, Reduction, Handle, Stream) -> Code,
    pub(crate) broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, Type, c_int, Handle, Stream) -> Code,
    pub(crate) reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, Type, Reduction, c_int, Handle, Stream) -> Code,
    pub(crate) all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, Type, Handle, Stream) -> Code,
}

impl NcclLibrary {
    /// The library. `None` if there is none.
    pub(crate) fn get() -> Option<&'static NcclLibrary> {
        static LOADED: OnceLock<Option<NcclLibrary>> = OnceLock::new();
        LOADED.get_or_init(|| FILES.into_iter().find_map(NcclLibrary::load)).as_ref()
    }

    fn load(file: &str) -> Option<NcclLibrary> {
        if !device::cuda::load_library(file) {
            return None;
        }
        // SAFETY: NVIDIA's library. Its initializers do nothing of note.
        let library: &'static Library = Box::leak(Box::new(unsafe { Library::new(file) }.ok()?));
        // SAFETY: the names are those of NCCL's header, with these types.
        unsafe {
            Some(NcclLibrary {
                version: *library.get("ncclGetVersion").ok()?,
                unique_id: *library.get("ncclGetUniqueId").ok()?,
                init_rank: *library.get("ncclCommInitRank").ok()?,
                destroy: *library.get("ncclCommDestroy").ok()?,
                async_error: *library.get("ncclCommGetAsyncError").ok()?,
                group_start: *library.get("ncclGroupStart").ok()?,
                group_end: *library.get("ncclGroupEnd").ok()?,
                send: *library.get("ncclSend").ok()?,
                receive: *library.get("ncclRecv").ok()?,
                all_reduce: *library.get("ncclAllReduce").ok()?,
                reduce_scatter: *library.get("ncclReduceScatter").ok()?,
                broadcast: *library.get("ncclBroadcast").ok()?,
                reduce: *library.get("ncclReduce").ok()?,
                all_gather: *library.get("ncclAllGather").ok()?,
            })
        }
    }

    /// The library's version, as NCCL numbers versions.
    pub(crate) fn version(&self) -> Result<i32, Code> {
        let mut version = 0;
        // SAFETY: NCCL writes one number.
        unsafe { (self.version)(&mut version) }.done()?;
        Ok(version)
    }
}

/// A return code as a result.
pub(crate) trait Done {
    /// # Errors
    /// Any code but success.
    fn done(self) -> Result<(), Code>;
}

impl Done for Code {
    fn done(self) -> Result<(), Code> {
        if self == Code::ncclSuccess { Ok(()) } else { Err(self) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use crate::nccl_version;

    #[test]
    #[ignore = "a program for the next test, which copies it into a Python environment"]
    fn print_version() {
        println!("NCCL {}", nccl_version().expect("a library"));
    }

    #[test]
    fn nccl_is_found_in_the_python_packages_beside_the_program() {
        let python = PathBuf::from(std::env::var_os("PARITY_PYTHON").expect("PARITY_PYTHON: `./x test` sets it"));
        let environment = python.parent().and_then(Path::parent).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("bin/program");
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        std::os::unix::fs::symlink(environment.join("lib"), folder.path().join("lib")).unwrap();
        let mut command = Command::new(program);
        command.args(["--exact", "nccl_library::tests::print_version", "--ignored", "--nocapture"]);
        let output = command.env_remove("LD_LIBRARY_PATH").output().unwrap();
        let requirements = include_str!("../../tests/requirements.txt");
        let pinned = requirements.lines().find_map(|line| line.strip_prefix("nvidia-nccl-cu13==")).unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains(&format!("NCCL {}\n", pinned.trim())),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
