//! cuDNN's handle and the descriptors of its backend interface, each owned by one value that destroys it.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Attribute, cudnnBackendAttributeType_t as AttributeType,
    cudnnBackendDescriptorType_t as DescriptorType,
};

use crate::cuda::driver::RawStream;
use crate::cuda::libraries::Library;
use crate::{Error, Result};

/// The oldest version with a correct backward: those of 9.10.0 and 9.10.1 are wrong.
const OLDEST: usize = 91002;

fn check(call: &'static str, status: sys::cudnnStatus_t) -> Result<()> {
    if status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut text = [0 as c_char; 1024];
    // SAFETY: writes at most that many bytes, and ends them with a zero.
    unsafe { sys::cudnnGetLastErrorString(text.as_mut_ptr(), text.len()) };
    // SAFETY: zero-terminated above, or zeroes throughout.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().trim().to_string();
    Err(Error::Driver { call, problem: format!("{status:?}: {text}") })
}

/// The library's handle.
pub(super) struct CudnnHandle(sys::cudnnHandle_t);

impl CudnnHandle {
    /// # Errors
    /// The library is missing or too old, or refuses the GPU.
    pub(super) fn open() -> Result<CudnnHandle> {
        Library::Cudnn.load()?;
        // SAFETY: the library can be loaded.
        let version = unsafe { sys::cudnnGetVersion() };
        if version < OLDEST {
            let fix = Library::Cudnn.install();
            let problem = format!("the cuDNN found is version {version}, needed is {OLDEST} or newer. Fix: {fix}");
            return Err(Error::Driver { call: "cudnn", problem });
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one pointer, destroyed when dropped; the context is current.
        check("cudnnCreate", unsafe { sys::cudnnCreate(&mut handle) })?;
        Ok(CudnnHandle(handle))
    }

    /// The library's version, such as 91900.
    pub(super) fn version(&self) -> usize {
        // SAFETY: the library is loaded.
        unsafe { sys::cudnnGetVersion() }
    }

    /// Submits a plan with the pointers of a variant pack, or records it while the stream captures.
    pub(super) fn execute(&self, plan: &Descriptor, pack: &Descriptor, stream: &RawStream) -> Result<()> {
        // SAFETY: handle and stream live.
        check("cudnnSetStream", unsafe { sys::cudnnSetStream(self.0, stream.handle().cast()) })?;
        // SAFETY: the plan and the pack are finalized; the memory in the pack was checked to be alive when the
        // operation was submitted, and host scalars in it are read during the call.
        check("cudnnBackendExecute", unsafe { sys::cudnnBackendExecute(self.0, plan.0, pack.0) })
    }
}

impl Drop for CudnnHandle {
    fn drop(&mut self) {
        // SAFETY: created in `open`. A failure has no cure here.
        let _ = unsafe { sys::cudnnDestroy(self.0) };
    }
}

/// A backend descriptor: created, given attributes, then [`Descriptor::finalize`]d.
pub(super) struct Descriptor(sys::cudnnBackendDescriptor_t);

impl Descriptor {
    pub(super) fn new(kind: DescriptorType) -> Result<Descriptor> {
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: writes one pointer, destroyed when dropped.
        let status = unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut descriptor) };
        check("cudnnBackendCreateDescriptor", status)?;
        Ok(Descriptor(descriptor))
    }

    /// Sets an attribute. `values` are of the type that `kind` names.
    fn set<T: Copy>(self, attribute: Attribute, kind: AttributeType, values: &[T]) -> Result<Descriptor> {
        let (count, start) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: `count` values of the named type; they are copied.
        let status = unsafe { sys::cudnnBackendSetAttribute(self.0, attribute, kind, count, start) };
        check("cudnnBackendSetAttribute", status).map_err(|error| match error {
            Error::Driver { call, problem } => Error::Driver { call, problem: format!("{attribute:?}: {problem}") },
            other => other,
        })?;
        Ok(self)
    }

    pub(super) fn integers(self, attribute: Attribute, values: &[i64]) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_INT64, values)
    }

    pub(super) fn double(self, attribute: Attribute, value: f64) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_DOUBLE, &[value])
    }

    pub(super) fn yes(self, attribute: Attribute) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_BOOLEAN, &[true])
    }

    pub(super) fn data_type(self, attribute: Attribute, value: sys::cudnnDataType_t) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_DATA_TYPE, &[value])
    }

    pub(super) fn pointwise_mode(self, attribute: Attribute, value: sys::cudnnPointwiseMode_t) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_POINTWISE_MODE, &[value])
    }

    pub(super) fn reduction(self, attribute: Attribute, value: sys::cudnnReduceTensorOp_t) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &[value])
    }

    pub(super) fn heuristic_mode(self, attribute: Attribute, value: sys::cudnnBackendHeurMode_t) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_HEUR_MODE, &[value])
    }

    pub(super) fn handle(self, attribute: Attribute, handle: &CudnnHandle) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_HANDLE, &[handle.0])
    }

    pub(super) fn pointers(self, attribute: Attribute, addresses: &[u64]) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_VOID_PTR, addresses)
    }

    pub(super) fn descriptor(self, attribute: Attribute, value: &Descriptor) -> Result<Descriptor> {
        self.set(attribute, AttributeType::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[value.0])
    }

    pub(super) fn descriptors(self, attribute: Attribute, values: &[Descriptor]) -> Result<Descriptor> {
        let raw: Vec<sys::cudnnBackendDescriptor_t> = values.iter().map(|value| value.0).collect();
        self.set(attribute, AttributeType::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    pub(super) fn finalize(self) -> Result<Descriptor> {
        // SAFETY: the descriptor lives.
        check("cudnnBackendFinalize", unsafe { sys::cudnnBackendFinalize(self.0) })?;
        Ok(self)
    }

    /// One integer attribute.
    pub(super) fn integer(&self, attribute: Attribute) -> Result<i64> {
        let (mut value, mut count) = (0i64, 0i64);
        // SAFETY: room for one integer, and one is asked for.
        let status = unsafe {
            let to = (&raw mut value).cast::<c_void>();
            sys::cudnnBackendGetAttribute(self.0, attribute, AttributeType::CUDNN_TYPE_INT64, 1, &mut count, to)
        };
        check("cudnnBackendGetAttribute", status)?;
        Ok(value)
    }

    /// An attribute that is a list of descriptors of one kind.
    pub(super) fn list(&self, attribute: Attribute, kind: DescriptorType) -> Result<Vec<Descriptor>> {
        let mut count = 0i64;
        // SAFETY: only the number of descriptors is asked for.
        let status = unsafe {
            let (of, none) = (AttributeType::CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ptr::null_mut());
            sys::cudnnBackendGetAttribute(self.0, attribute, of, 0, &mut count, none)
        };
        check("cudnnBackendGetAttribute", status)?;
        let mut list: Vec<Descriptor> = (0..count).map(|_| Descriptor::new(kind)).collect::<Result<_>>()?;
        let mut raw: Vec<sys::cudnnBackendDescriptor_t> = list.iter().map(|descriptor| descriptor.0).collect();
        let mut filled = 0i64;
        // SAFETY: cuDNN fills the descriptors that the array points to, at most `count`.
        let status = unsafe {
            let (of, to) = (AttributeType::CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.as_mut_ptr().cast::<c_void>());
            sys::cudnnBackendGetAttribute(self.0, attribute, of, count, &mut filled, to)
        };
        check("cudnnBackendGetAttribute", status)?;
        list.truncate(filled.max(0) as usize);
        Ok(list)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created in `new`. A failure has no cure here.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}
