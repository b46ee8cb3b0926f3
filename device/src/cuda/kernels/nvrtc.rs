//! Kernels from source to machine code: NVRTC, and a cache on disk.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::hash::fnv1a;
use cudarc::nvrtc::{result, sys};

use super::KernelFile;
use crate::cuda::libraries::Library;
use crate::cuda::stored;
use crate::{Error, Result};

/// A header by its name.
macro_rules! header {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../kernels/headers/", $name)))
    };
}

/// The headers that the sources include, by file name.
const HEADERS: &[(&str, &str)] = &[
    header!("attention.cuh"),
    header!("cache.cuh"),
    header!("cluster.cuh"),
    header!("common.cuh"),
    header!("fp8.cuh"),
    header!("gates.cuh"),
    header!("gelu.cuh"),
    header!("hopper.cuh"),
    header!("mma.cuh"),
    header!("offsets.cuh"),
    header!("peers.cuh"),
    header!("philox.cuh"),
    header!("places.cuh"),
    header!("quantize.cuh"),
    header!("rows.cuh"),
    header!("scan.cuh"),
    header!("soft_cap.cuh"),
    header!("system.cuh"),
    header!("table.cuh"),
    header!("transpose.cuh"),
    header!("transpose_tile.cuh"),
    header!("turn.cuh"),
];

/// Options of every compilation. `--use_fast_math` is not one of them: it flushes subnormals and loosens division
/// everywhere, while kernels call single fast functions if they want them. `-v` puts the registers and spills of every
/// kernel into the log.
const OPTIONS: &[&str] = &["--std=c++17", "-default-device", "--extra-device-vectorization", "--ptxas-options=-v"];

/// NVRTC's version, such as `13.0`.
///
/// # Errors
/// NVRTC missing.
pub(crate) fn version() -> Result<String> {
    Library::Nvrtc.load()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library can be loaded; writes two integers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .map_err(|error| Error::Driver { call: "nvrtcVersion", problem: error.to_string() })?;
    Ok(format!("{major}.{minor}"))
}

/// Compiles a source to a cubin for `architecture`, such as `sm_90a`; also returns the compiler's log.
///
/// # Errors
/// NVRTC missing, an architecture it does not know, or an error in the source, with the log.
pub fn compile(name: &str, source: &str, architecture: &str) -> Result<(Vec<u8>, String)> {
    let version = version()?;
    let text =
        |text: &str| CString::new(text).map_err(|_| Error::operation("nvrtc", format!("{name} holds a zero byte")));
    let (source, file) = (text(source)?, text(name)?);
    let names: Vec<CString> = HEADERS.iter().map(|(name, _)| text(name)).collect::<Result<_>>()?;
    let bodies: Vec<CString> = HEADERS.iter().map(|(_, body)| text(body)).collect::<Result<_>>()?;
    let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let bodies: Vec<*const c_char> = bodies.iter().map(|body| body.as_ptr()).collect();
    let failed = |call: &'static str| {
        move |error: result::NvrtcError| Error::Driver { call, problem: format!("{name}: {error}") }
    };
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: all strings live until the program is dropped; buffers have the sizes NVRTC asked for.
    unsafe {
        sys::nvrtcCreateProgram(
            &mut program.0,
            source.as_ptr(),
            file.as_ptr(),
            HEADERS.len() as i32,
            bodies.as_ptr(),
            names.as_ptr(),
        )
        .result()
        .map_err(failed("nvrtcCreateProgram"))?;
        let target = format!("--gpu-architecture={architecture}");
        let options: Vec<&str> = OPTIONS.iter().copied().chain([target.as_str()]).collect();
        let compiled = result::compile_program(program.0, &options);
        let log = result::get_program_log(program.0).map_err(failed("nvrtcGetProgramLog"))?;
        let log = CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned();
        if let Err(error) = compiled {
            let problem = if log.contains("invalid value for --gpu-architecture") {
                let install = Library::Nvrtc.install();
                format!("NVRTC {version} does not know {architecture}. Fix: a newer one: {install}")
            } else {
                format!("{name}: {error}\n{log}")
            };
            return Err(Error::Driver { call: "nvrtcCompileProgram", problem });
        }
        let mut size = 0;
        sys::nvrtcGetCUBINSize(program.0, &mut size).result().map_err(failed("nvrtcGetCUBINSize"))?;
        let mut cubin = vec![0u8; size];
        sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()).result().map_err(failed("nvrtcGetCUBIN"))?;
        Ok((cubin, log))
    }
}

/// Compiles the sources that the cache on disk lacks, on all cores, and stores them there.
///
/// Where there is no cache, or a source does not compile, nothing happens: [`load_or_compile`] compiles what is missing,
/// and has the errors.
pub(super) fn fill_cache(files: &[KernelFile], architecture: &str) {
    let (Some(folder), Ok(version)) = (stored::folder(), version()) else { return };
    let fill = |KernelFile { name, source, .. }: &KernelFile| {
        let file = folder.join(file_name(name, source, architecture, &version));
        if !file.exists()
            && let Ok((cubin, _)) = compile(name, source, architecture)
            && let Err(error) = stored::store(&file, &cubin)
        {
            tracing::debug!("the kernel cache {} was not written: {error}", file.display());
        }
    };
    let next = AtomicUsize::new(0);
    let fill_some = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            fill(file);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 1..cores.min(files.len()) {
            // A thread that cannot be started costs time alone.
            let _ = std::thread::Builder::new().spawn_scoped(scope, fill_some);
        }
        fill_some();
    });
}

/// Loads the machine code of a source with `load`. It comes from the cache on disk, or is compiled now and then stored
/// there.
///
/// # Errors
/// As [`compile`]; `load` refuses freshly compiled code. A file that cannot be read or written only costs time.
pub(super) fn load_or_compile<T>(
    name: &str,
    source: &str,
    architecture: &str,
    load: impl Fn(&[u8]) -> Result<T>,
) -> Result<T> {
    let version = version()?;
    let file = stored::folder().map(|folder| folder.join(file_name(name, source, architecture, &version)));
    let load = |cubin: &[u8]| {
        load(cubin).map_err(|error| {
            let place = file.as_ref().map_or_else(String::new, |file| format!(" for {}", file.display()));
            Error::operation("cuda", format!("{name}, compiled by NVRTC {version}{place}: {error}"))
        })
    };
    load_or_make(file.as_deref(), || Ok(compile(name, source, architecture)?.0), load)
}

/// Loads a file. If there is none, or `load` refuses it, loads the result of `make` and stores that in the file.
///
/// A refused file is removed, or every start would try it again. For example, a newer compiler wrote it on a node with
/// a newer driver.
fn load_or_make<T>(
    file: Option<&Path>,
    make: impl FnOnce() -> Result<Vec<u8>>,
    load: impl Fn(&[u8]) -> Result<T>,
) -> Result<T> {
    if let Some(file) = file
        && let Some(bytes) = stored::load(file)
    {
        match load(&bytes) {
            Ok(loaded) => return Ok(loaded),
            Err(error) => tracing::debug!("{} is removed and compiled again: {error}", file.display()),
        }
        if let Err(error) = std::fs::remove_file(file) {
            tracing::debug!("{} was not removed: {error}", file.display());
        }
    }
    let bytes = make()?;
    let loaded = load(&bytes)?;
    if let Some(file) = file
        && let Err(error) = stored::store(file, &bytes)
    {
        tracing::debug!("the kernel cache {} was not written: {error}", file.display());
    }
    Ok(loaded)
}

/// The name of a source's machine code in the cache on disk. It differs with everything that decides the code.
///
/// # Errors
/// NVRTC missing.
pub fn cubin_name(name: &str, source: &str, architecture: &str) -> Result<String> {
    Ok(file_name(name, source, architecture, &version()?))
}

/// As [`cubin_name`], of a version of NVRTC.
fn file_name(name: &str, source: &str, architecture: &str, version: &str) -> String {
    let headers = HEADERS.iter().flat_map(|(name, body)| [*name, *body]);
    let parts = headers.chain(OPTIONS.iter().copied()).chain([source]);
    // A zero byte after each part, so that the borders between parts count too.
    let hash = fnv1a(parts.flat_map(|part| part.bytes().chain([0])));
    // The name of a custom operation's source may hold anything.
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    format!("{name}-{hash:016x}-nvrtc-{version}-{architecture}.cubin")
}

/// An NVRTC program, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: created in `compile`. A failure has no cure here.
            let _ = unsafe { result::destroy_program(self.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tempfile::tempdir;

    use super::*;

    /// A driver that accepts only this machine code.
    fn takes(kind: &'static [u8]) -> impl Fn(&[u8]) -> Result<Vec<u8>> {
        move |bytes| {
            if bytes == kind { Ok(bytes.to_vec()) } else { Err(Error::operation("cuModuleLoadData", "refused")) }
        }
    }

    #[test]
    fn a_source_is_compiled_once_and_from_then_on_its_file_is_loaded() {
        let folder = tempdir().unwrap();
        let (file, compiled) = (folder.path().join("a.cubin"), Cell::new(0));
        let make = || {
            compiled.set(compiled.get() + 1);
            Ok(b"new".to_vec())
        };
        for _ in 0..3 {
            assert_eq!(load_or_make(Some(&file), make, takes(b"new")).unwrap(), b"new");
        }
        assert_eq!(compiled.get(), 1);
        assert_eq!(load_or_make(None, make, takes(b"new")).unwrap(), b"new");
        assert_eq!(compiled.get(), 2);
    }

    #[test]
    fn a_file_that_the_driver_refuses_is_compiled_anew_and_replaced() {
        let folder = tempdir().unwrap();
        let file = folder.path().join("a.cubin");
        stored::store(&file, b"of a newer compiler").unwrap();
        assert_eq!(load_or_make(Some(&file), || Ok(b"new".to_vec()), takes(b"new")).unwrap(), b"new");
        assert_eq!(stored::load(&file).as_deref(), Some(b"new".as_slice()));
    }

    #[test]
    fn machine_code_that_the_driver_refuses_is_not_kept() {
        let folder = tempdir().unwrap();
        let file = folder.path().join("a.cubin");
        stored::store(&file, b"of a newer compiler").unwrap();
        let error = load_or_make(Some(&file), || Ok(b"of the same compiler".to_vec()), takes(b"new")).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_s_name_differs_with_source_architecture_and_compiler() {
        let names = [
            file_name("a.cu", "source", "sm_90a", "13.0"),
            file_name("b.cu", "source", "sm_90a", "13.0"),
            file_name("a.cu", "another source", "sm_90a", "13.0"),
            file_name("a.cu", "source", "sm_100", "13.0"),
            file_name("a.cu", "source", "sm_90a", "12.8"),
        ];
        assert!(file_name("../a b/c.cu", "source", "sm_90a", "13.0").starts_with("..-a-b-c.cu-"));
        let distinct: std::collections::HashSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
    }
}
