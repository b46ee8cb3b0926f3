//! Kernels from source to machine code: NVRTC, and a cache on disk.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};

use super::error::missing_library;
use crate::{Error, Result};

/// A kernel file by its name.
macro_rules! kernel_file {
    ($name:literal) => {
        ($name, include_str!(concat!("../../kernels/", $name)))
    };
}

/// The kernel sources, by file name. Each is a program of its own.
pub const SOURCES: &[(&str, &str)] = &[
    kernel_file!("activation.cu"),
    kernel_file!("attention.cu"),
    kernel_file!("cache.cu"),
    kernel_file!("columns.cu"),
    kernel_file!("control.cu"),
    kernel_file!("dropout.cu"),
    kernel_file!("elementwise.cu"),
    kernel_file!("embedding.cu"),
    kernel_file!("embedding_backward.cu"),
    kernel_file!("gemm_epilogue.cu"),
    kernel_file!("loss.cu"),
    kernel_file!("mark.cu"),
    kernel_file!("norm.cu"),
    kernel_file!("norm_backward.cu"),
    kernel_file!("optimizer.cu"),
    kernel_file!("random.cu"),
    kernel_file!("reduce.cu"),
    kernel_file!("rotary.cu"),
    kernel_file!("sort.cu"),
];

/// What the sources include, by file name.
const HEADERS: &[(&str, &str)] = &[
    kernel_file!("common.cuh"),
    kernel_file!("gelu.cuh"),
    kernel_file!("philox.cuh"),
    kernel_file!("rows.cuh"),
    kernel_file!("table.cuh"),
];

/// Options of every compilation. Not `--use_fast_math`: it flushes subnormals and loosens division everywhere;
/// kernels ask for fast functions where they want them.
/// `-v` puts registers and spills of every kernel into the log.
const OPTIONS: &[&str] = &["--std=c++17", "-default-device", "--extra-device-vectorization", "--ptxas-options=-v"];

/// Compiles one of [`SOURCES`] to a cubin for `architecture`, such as `sm_90a`; also returns the compiler's log.
///
/// # Errors
/// NVRTC missing, an architecture it does not know, or an error in the source, with the log.
pub fn compile(name: &str, source: &str, architecture: &str) -> Result<(Vec<u8>, String)> {
    // SAFETY: only looks whether the library can be loaded.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing_library(
            "nvrtc",
            "libnvrtc.so.13",
            "install CUDA 13's NVRTC (Debian: libnvrtc13, PyPI: nvidia-cuda-nvrtc)",
        ));
    }
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
        let architecture = format!("--gpu-architecture={architecture}");
        let options: Vec<&str> = OPTIONS.iter().copied().chain([architecture.as_str()]).collect();
        let compiled = result::compile_program(program.0, &options);
        let log = result::get_program_log(program.0).map_err(failed("nvrtcGetProgramLog"))?;
        let log = CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned();
        if let Err(error) = compiled {
            return Err(Error::Driver { call: "nvrtcCompileProgram", problem: format!("{name}: {error}\n{log}") });
        }
        let mut size = 0;
        sys::nvrtcGetCUBINSize(program.0, &mut size).result().map_err(failed("nvrtcGetCUBINSize"))?;
        let mut cubin = vec![0u8; size];
        sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()).result().map_err(failed("nvrtcGetCUBIN"))?;
        Ok((cubin, log))
    }
}

/// The cubin of a source, from the cache on disk if it was compiled before.
///
/// # Errors
/// As [`compile`]. A cache that cannot be read or written costs time, nothing else.
pub(super) fn cached(name: &str, source: &str, architecture: &str) -> Result<Vec<u8>> {
    let path = cache_folder().map(|folder| folder.join(format!("{name}-{:016x}-{architecture}.cubin", key(source))));
    if let Some(cubin) = path.as_deref().and_then(|path| std::fs::read(path).ok()) {
        return Ok(cubin);
    }
    let (cubin, _) = compile(name, source, architecture)?;
    if let Some(path) = path
        && let Err(error) = store(&path, &cubin)
    {
        tracing::debug!("the kernel cache {} was not written: {error}", path.display());
    }
    Ok(cubin)
}

/// Several ranks may write the same file at once: each writes its own and renames it.
pub(super) fn store(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&temporary, bytes)?;
    std::fs::rename(&temporary, path)
}

/// Where compiled kernels and timed choices are kept between runs: `$XDG_CACHE_HOME` or `~/.cache`.
pub(super) fn cache_folder() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home)?;
    Some(base.join("cuda-graph-trainer"))
}

/// FNV-1a over everything that decides the machine code.
fn key(source: &str) -> u64 {
    let parts = HEADERS.iter().map(|(_, body)| *body).chain(OPTIONS.iter().copied()).chain([source]);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in parts.flat_map(str::bytes) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
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
