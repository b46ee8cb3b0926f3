//! The launch of a custom operation on a GPU.

use crate::Tensor;

/// The code that a kernel is loaded from.
///
/// Code is recognised by its address, so that a launch need not compare it. Code that is made at run time has to stay:
/// make it with [`String::leak`] or [`Vec::leak`], once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaCode {
    /// CUDA C++17 for NVRTC. No CUDA header is there to include, but those of `device/kernels` are, such as
    /// `common.cuh` for bf16 and sums over threads. Functions without a specifier are device functions.
    Source(&'static str),
    /// PTX. The driver compiles it for the GPU, which must be at least as new as its `.target`.
    Ptx(&'static str),
    /// Machine code: a cubin for this GPU's architecture, or a fatbin with one.
    Binary(&'static [u8]),
}

impl CudaCode {
    pub(crate) fn bytes(&self) -> &'static [u8] {
        match self {
            CudaCode::Source(text) | CudaCode::Ptx(text) => text.as_bytes(),
            CudaCode::Binary(bytes) => bytes,
        }
    }
}

/// A kernel in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaKernel {
    /// The module's file name, such as `axpy.cu`: for errors, and for the cache on disk.
    pub file: &'static str,
    /// The module.
    pub code: CudaCode,
    /// The kernel. A source declares it `extern "C" __global__`.
    pub function: &'static str,
}

/// The launch of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaLaunch {
    /// The kernel to launch.
    pub kernel: CudaKernel,
    /// Blocks along x, y and z. Nothing is launched if one of them is 0.
    pub blocks: (u32, u32, u32),
    /// Threads of a block along x, y and z.
    pub threads: (u32, u32, u32),
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The arguments that the kernel declares, in order.
    pub arguments: Vec<KernelArgument>,
}

/// An argument of a kernel. Its type must be the one that the kernel declares. A launch checks the sizes of the
/// arguments; nothing can check their types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelArgument {
    /// A pointer to the first element of a tensor that the operation declared, or of a part of one.
    Tensor(Tensor),
    /// A null pointer, for an optional tensor that is absent.
    Null,
    /// `unsigned`.
    U32(u32),
    /// `int`.
    I32(i32),
    /// `unsigned long long`.
    U64(u64),
    /// `long long`.
    I64(i64),
    /// `float`.
    F32(f32),
}

impl From<Tensor> for KernelArgument {
    fn from(tensor: Tensor) -> KernelArgument {
        KernelArgument::Tensor(tensor)
    }
}

impl From<Option<Tensor>> for KernelArgument {
    fn from(tensor: Option<Tensor>) -> KernelArgument {
        tensor.map_or(KernelArgument::Null, KernelArgument::Tensor)
    }
}

macro_rules! from_scalar {
    ($($scalar:ident $variant:ident),*) => {
        $(impl From<$scalar> for KernelArgument {
            fn from(value: $scalar) -> KernelArgument {
                KernelArgument::$variant(value)
            }
        })*
    };
}
from_scalar!(u32 U32, i32 I32, u64 U64, i64 I64, f32 F32);
