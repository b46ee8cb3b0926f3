//! cuBLASLt's descriptors of a product, and the calls that take them.
//!
//! cuBLASLt is column-major. A row-major matrix is its transpose in column-major order, and
//! `out^T = op(b)^T op(a)^T`: so its A is our `b`, its B our `a`, its m our n, and nothing is ever copied.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulPreferenceAttributes_t};
use cudarc::cublaslt::sys::{cublasComputeType_t as Compute, cublasLtEpilogue_t as LtEpilogue, cudaDataType_t};

use super::problem::{EpilogueKind, Fp8Problem, GemmProblem, ScaleKind};
use crate::cuda::driver::RawStream;
use crate::cuda::libraries::Library;
use crate::ops::{Epilogue, Gemm};
use crate::{DType, Error, Result};

/// The number of algorithms that heuristics are asked for.
const CANDIDATES: usize = 8;

/// The library's handle for a GPU. All devices of the GPU share it, on whatever threads they are: the library's calls may use
/// it at once. To destroy it waits for all work of the GPU, which spoils the captures of other threads (901). So the last
/// device does that, beside which there is no capture.
pub(super) struct CublasLtHandle {
    ordinal: usize,
    raw: sys::cublasLtHandle_t,
}

/// By the GPU's number.
static SHARED: Mutex<BTreeMap<usize, SharedHandle>> = Mutex::new(BTreeMap::new());

struct SharedHandle {
    raw: sys::cublasLtHandle_t,
    devices: usize,
}

// SAFETY: the library's calls take a handle on any thread.
unsafe impl Send for SharedHandle {}

/// How to multiply: cuBLASLt's own bytes, and the workspace it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Algorithm {
    pub(super) bytes: [u64; 8],
    pub(super) workspace: usize,
}

fn check(call: &'static str, status: sys::cublasStatus_t) -> Result<()> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(Error::Driver { call, problem: format!("{other:?}") }),
    }
}

impl CublasLtHandle {
    /// # Errors
    /// The library is missing, or refuses the GPU.
    pub(super) fn open(ordinal: usize) -> Result<CublasLtHandle> {
        Library::CublasLt.load()?;
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = all.get_mut(&ordinal) {
            shared.devices += 1;
            return Ok(CublasLtHandle { ordinal, raw: shared.raw });
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer, destroyed by the last device; the context is current.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut raw) })?;
        all.insert(ordinal, SharedHandle { raw, devices: 1 });
        Ok(CublasLtHandle { ordinal, raw })
    }

    /// Such as 130100.
    pub(super) fn version(&self) -> usize {
        // SAFETY: the library is loaded.
        unsafe { sys::cublasLtGetVersion() }
    }
}

impl Drop for CublasLtHandle {
    fn drop(&mut self) {
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shared) = all.get_mut(&self.ordinal) else { return };
        shared.devices -= 1;
        if shared.devices == 0 {
            all.remove(&self.ordinal);
            // SAFETY: created in `open`, and no device has it any more. A failure has no cure here.
            let _ = unsafe { sys::cublasLtDestroy(self.raw) };
        }
    }
}

/// A product as cuBLASLt sees it; cuBLASLt's own `a` is our `b`.
pub(super) struct Descriptors {
    matmul: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    beta: f32,
}

impl Descriptors {
    /// # Errors
    /// cuBLASLt's.
    pub(super) fn new(problem: &GemmProblem) -> Result<Descriptors> {
        let GemmProblem { m, n, k, .. } = *problem;
        let null = std::ptr::null_mut();
        let beta = if problem.accumulate { 1.0 } else { 0.0 };
        let mut new = Descriptors { matmul: null, a: null.cast(), b: null.cast(), out: null.cast(), beta };
        let compute = if problem.tf32 { Compute::CUBLAS_COMPUTE_32F_FAST_TF32 } else { Compute::CUBLAS_COMPUTE_32F };
        let scale = cudaDataType_t::CUDA_R_32F;
        // SAFETY: writes one pointer, destroyed when dropped.
        check("cublasLtMatmulDescCreate", unsafe { sys::cublasLtMatmulDescCreate(&mut new.matmul, compute, scale) })?;
        new.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(problem.transpose_b))?;
        new.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(problem.transpose_a))?;
        let epilogue = match problem.epilogue {
            EpilogueKind::None => LtEpilogue::CUBLASLT_EPILOGUE_DEFAULT,
            EpilogueKind::Bias => LtEpilogue::CUBLASLT_EPILOGUE_BIAS,
            EpilogueKind::BiasGelu => LtEpilogue::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            EpilogueKind::GeluBackward | EpilogueKind::GeluBackwardActivated => LtEpilogue::CUBLASLT_EPILOGUE_DGELU,
        };
        new.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue as u32)?;
        if matches!(problem.epilogue, EpilogueKind::Bias | EpilogueKind::BiasGelu) {
            new.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(problem.bias_type())? as i32)?;
        }
        if problem.epilogue.has_auxiliary() {
            new.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, n as i64)?;
        }
        if let Some(fp8) = &problem.fp8 {
            new.set_fp8(fp8)?;
        }
        let [a, b] = problem.inputs;
        let (a, b, output) = (data_type(a)?, data_type(b)?, data_type(problem.output)?);
        let of_b = if problem.transpose_b { (k, n) } else { (n, k) };
        let of_a = if problem.transpose_a { (m, k) } else { (k, m) };
        let [stride_a, stride_b, stride_out] = problem.strides.unwrap_or([of_a.0, of_b.0, n]);
        new.a = layout(b, of_b, stride_b)?;
        new.b = layout(a, of_a, stride_a)?;
        new.out = layout(output, (n, m), stride_out)?;
        Ok(new)
    }

    /// Sets the attributes of products of 8-bit factors. The scales' addresses are set by [`Descriptors::point`].
    fn set_fp8(&self, fp8: &Fp8Problem) -> Result<()> {
        let [a, b] = fp8.scales.map(scale_mode);
        self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, b as i32)?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, a as i32)?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, i8::from(fp8.fast_accumulation))
    }

    fn set<T>(&self, attribute: Attribute, value: T) -> Result<()> {
        let value: *const T = &value;
        // SAFETY: the attribute is of type `T`, by the callers here; the value is copied.
        let status = unsafe {
            sys::cublasLtMatmulDescSetAttribute(self.matmul, attribute, value.cast::<c_void>(), size_of::<T>())
        };
        check("cublasLtMatmulDescSetAttribute", status)
    }

    /// Sets the addresses of bias, saved input and scales. Heuristics take their alignment from them.
    fn point(&self, op: &Gemm) -> Result<()> {
        if let Some(scales) = &op.fp8 {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.b.tensor().address)?;
            self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.a.tensor().address)?;
        }
        let (bias, pre) = match op.epilogue {
            Epilogue::None => (None, None),
            Epilogue::Bias(bias) => (Some(bias), None),
            Epilogue::BiasGelu { bias, pre } => (Some(bias), Some(pre)),
            Epilogue::GeluBackward { pre, .. } => (None, Some(pre)),
        };
        if let Some(bias) = bias {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.address)?;
        }
        if let Some(pre) = pre {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pre.address)?;
        }
        Ok(())
    }

    /// Algorithms that fit into `workspace` bytes, the most promising first. Empty if cuBLASLt cannot do the epilogue.
    ///
    /// # Errors
    /// cuBLASLt's, except that it does not support the problem.
    pub(super) fn heuristics(
        &self,
        handle: &CublasLtHandle,
        problem: &GemmProblem,
        op: &Gemm,
        workspace: usize,
        deterministic: bool,
    ) -> Result<Vec<Algorithm>> {
        self.point(op)?;
        let preference = Preference::new()?;
        let [a, b, out, ..] = problem.alignment.map(u32::from);
        let reduction = reduction_schemes(problem.output, deterministic);
        use cublasLtMatmulPreferenceAttributes_t::*;
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace as u64)?;
        preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out)?;
        let mut results = [no_result(); CANDIDATES];
        let mut count = 0;
        // SAFETY: descriptors, preference and handle live; at most CANDIDATES results are written.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle.raw,
                self.matmul,
                self.a,
                self.b,
                self.out,
                self.out,
                preference.0,
                CANDIDATES as i32,
                results.as_mut_ptr(),
                &mut count,
            )
        };
        use sys::cublasStatus_t::{CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED};
        if matches!(status, CUBLAS_STATUS_NOT_SUPPORTED | CUBLAS_STATUS_INVALID_VALUE) {
            return Ok(Vec::new());
        }
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let found = results[..count.clamp(0, CANDIDATES as i32) as usize].iter();
        let usable = found.filter(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        let algorithms = usable.map(|result| Algorithm { bytes: result.algo.data, workspace: result.workspaceSize });
        Ok(algorithms
            .filter(|algorithm| algorithm.workspace <= workspace)
            .filter(|algorithm| {
                !deterministic || reduction_scheme(algorithm).is_some_and(|scheme| scheme & !reduction == 0)
            })
            .collect())
    }

    /// Whether an algorithm of another run or rank can do this problem within `workspace` bytes.
    pub(super) fn accepts(&self, handle: &CublasLtHandle, op: &Gemm, algorithm: &Algorithm, workspace: usize) -> bool {
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.bytes };
        let mut result = no_result();
        // SAFETY: descriptors and handle live; one result is written.
        let status = self.point(op).map(|()| unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle.raw,
                self.matmul,
                self.a,
                self.b,
                self.out,
                self.out,
                &algorithm,
                &mut result,
            )
        });
        status == Ok(sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS) && result.workspaceSize <= workspace
    }

    /// Submits the product. It neither allocates nor waits, so it can be captured.
    ///
    /// # Errors
    /// cuBLASLt's.
    pub(super) fn multiply(
        &self,
        handle: &CublasLtHandle,
        op: &Gemm,
        algorithm: &Algorithm,
        stream: &RawStream,
        workspace: (u64, usize),
    ) -> Result<()> {
        self.point(op)?;
        let [a, b, out] = op.places();
        let [a, b, out] = [a.address(&op.a), b.address(&op.b), out.address(&op.out)];
        let scalar = |value: &f32| std::ptr::from_ref(value).cast::<c_void>();
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.bytes };
        // SAFETY: descriptors and handle live; the scalars and the algorithm are copied during the call; the tensors'
        // memory was checked to be alive when the operation was submitted, and the workspace is the stream's own.
        let status = unsafe {
            sys::cublasLtMatmul(
                handle.raw,
                self.matmul,
                scalar(&op.alpha),
                b as *const c_void,
                self.a,
                a as *const c_void,
                self.b,
                scalar(&self.beta),
                out as *const c_void,
                self.out,
                out as *mut c_void,
                self.out,
                &algorithm,
                workspace.0 as *mut c_void,
                workspace.1,
                stream.handle().cast(),
            )
        };
        check("cublasLtMatmul", status)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: created in `new` or null. A failure has no cure here.
        unsafe {
            if !self.matmul.is_null() {
                let _ = sys::cublasLtMatmulDescDestroy(self.matmul);
            }
            for layout in [self.a, self.b, self.out] {
                if !layout.is_null() {
                    let _ = sys::cublasLtMatrixLayoutDestroy(layout);
                }
            }
        }
    }
}

/// A column-major matrix. Its columns are `stride` elements apart.
fn layout(
    dtype: cudaDataType_t,
    (rows, columns): (usize, usize),
    stride: usize,
) -> Result<sys::cublasLtMatrixLayout_t> {
    let mut layout = std::ptr::null_mut();
    // SAFETY: writes one pointer.
    let status =
        unsafe { sys::cublasLtMatrixLayoutCreate(&mut layout, dtype, rows as u64, columns as u64, stride as i64) };
    check("cublasLtMatrixLayoutCreate", status)?;
    Ok(layout)
}

/// The number in `cublasLtMatmulMatrixScale_t` for a factor's scales: CUDA 12.8 has no names for the last three. One for
/// each row of a factor is one for each row of cuBLASLt's op(A) and each column of its op(B). The neighbours that share a
/// scale lie along the inner size.
fn scale_mode(kind: ScaleKind) -> u32 {
    match kind {
        ScaleKind::Tensor => 0, // SCALAR_32F
        ScaleKind::Rows => 3,   // OUTER_VEC_32F
        ScaleKind::Groups => 4, // VEC128_32F
        ScaleKind::Blocks => 5, // BLK128x128_32F
    }
}

fn data_type(dtype: DType) -> Result<cudaDataType_t> {
    match dtype {
        DType::F32 => Ok(cudaDataType_t::CUDA_R_32F),
        DType::Bf16 => Ok(cudaDataType_t::CUDA_R_16BF),
        DType::F8E4M3 => Ok(cudaDataType_t::CUDA_R_8F_E4M3),
        DType::F8E5M2 => Ok(cudaDataType_t::CUDA_R_8F_E5M2),
        other => Err(Error::operation("gemm", format!("cannot multiply {other}"))),
    }
}

/// How partial products may be added up. Sums are in f32, never in bf16. Adding up in place, in an f32 output, goes one
/// block after the other and so gives the same bits each time, but it needs counters. A deterministic run leaves it
/// out.
fn reduction_schemes(output: DType, deterministic: bool) -> u32 {
    use sys::cublasLtReductionScheme_t::*;
    let in_place = output == DType::F32 && !deterministic;
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32 | if in_place { CUBLASLT_REDUCTION_SCHEME_INPLACE as u32 } else { 0 }
}

/// The scheme an algorithm uses.
fn reduction_scheme(algorithm: &Algorithm) -> Option<u32> {
    let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.bytes };
    let (mut scheme, mut written) = (0u32, 0);
    // SAFETY: the attribute is a u32.
    let status = unsafe {
        sys::cublasLtMatmulAlgoConfigGetAttribute(
            &algorithm,
            sys::cublasLtMatmulAlgoConfigAttributes_t::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
            (&raw mut scheme).cast(),
            size_of::<u32>(),
            &mut written,
        )
    };
    check("cublasLtMatmulAlgoConfigGetAttribute", status).ok().map(|()| scheme)
}

fn no_result() -> sys::cublasLtMatmulHeuristicResult_t {
    sys::cublasLtMatmulHeuristicResult_t {
        algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspaceSize: 0,
        state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
        wavesCount: 0.0,
        reserved: [0; 4],
    }
}

/// The limits that heuristics keep to.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Preference> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: writes one pointer, destroyed when dropped.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut preference) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        Ok(Preference(preference))
    }

    fn set<T>(&self, attribute: cublasLtMatmulPreferenceAttributes_t, value: T) -> Result<()> {
        let value: *const T = &value;
        // SAFETY: the attribute is of type `T`, by the caller above; the value is copied.
        let status = unsafe {
            sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value.cast::<c_void>(), size_of::<T>())
        };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created in `new`. A failure has no cure here.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}
