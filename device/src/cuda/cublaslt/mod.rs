//! Matrix products through cuBLASLt. Each problem is timed once: the library's algorithms, a plain product followed by
//! our own epilogue kernel, and a product with a transposed copy of a factor. The fastest method is stored on disk and
//! can be passed from rank to rank.

mod descriptors;
mod epilogue;
mod problem;
mod table;
mod transposed;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use descriptors::{Algorithm, CublasLtHandle, Descriptors};
use problem::{EpilogueKind, GemmProblem};
use table::{ChoiceEntry, ChoiceTable, ChosenMethod};

use super::driver::RawStream;
use super::timing::{TimingMemory, fastest, medians, settled};
use super::{CudaOptions, Kernels, Queue, stored};
use crate::gpu_types::GpuProperties;
use crate::ops::{Epilogue, Fp8Scales, Gemm, Scale};
use crate::priority::Priority;
use crate::{Error, Result, Tensor};

/// cuBLASLt on one GPU.
pub(crate) struct CublasLt {
    handle: CublasLtHandle,
    tf32: bool,
    deterministic: bool,
    workspace: usize,
    /// Whether transposed copies of factors can gain time here.
    transposes: bool,
    prepared: RefCell<HashMap<GemmProblem, Rc<PreparedGemm>>>,
    table: RefCell<ChoiceTable>,
    /// The file of the table. `None` if it is not stored.
    file: Option<PathBuf>,
}

/// A problem that can be submitted.
struct PreparedGemm {
    descriptors: Descriptors,
    method: GemmMethod,
}

enum GemmMethod {
    Library(Algorithm),
    /// A plain product, and our own kernel for the epilogue.
    Separate(Rc<PreparedGemm>),
    /// A product with a transposed copy of a factor. The copy lies in scratch memory after the workspace.
    Transposed(Rc<PreparedGemm>),
}

impl CublasLt {
    /// Opens the library and reads the choices of earlier runs.
    ///
    /// # Errors
    /// The library is missing, or refuses the GPU.
    pub(crate) fn open(options: &CudaOptions, gpu: &GpuProperties) -> Result<CublasLt> {
        let handle = CublasLtHandle::open(options.ordinal)?;
        let version = handle.version();
        let mut table = ChoiceTable::new(version, &gpu.name);
        let name =
            format!("cublaslt-timed-{version}-{}.txt", gpu.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let file = stored::folder().filter(|_| !options.deterministic).map(|folder| folder.join(name));
        if let Some(text) = file.as_deref().and_then(stored::load).and_then(|bytes| String::from_utf8(bytes).ok())
            && let Err(problem) = table.merge(&text)
        {
            tracing::debug!("the timed choices on disk were not used: {problem}");
        }
        Ok(CublasLt {
            handle,
            tf32: options.tf32,
            deterministic: options.deterministic,
            workspace: workspace_bytes(gpu),
            transposes: gpu.capability.0 == 9,
            prepared: RefCell::default(),
            table: RefCell::new(table),
            file,
        })
    }

    /// Bytes of scratch that a product needs. They do not depend on the method that is chosen.
    pub(crate) fn scratch_bytes(&self, op: &Gemm) -> usize {
        let copies = self.transposes && transposed::may_gain(&GemmProblem::of(op, self.tf32));
        self.workspace + if copies { transposed::copy_bytes(op) } else { 0 }
    }

    /// Chooses how to do a product: by timing, unless the choice is known or the run is deterministic. The tensors need
    /// no memory, since timing allocates its own and frees it.
    ///
    /// # Errors
    /// A product cuBLASLt cannot do; a driver's error.
    pub(crate) fn prepare(&self, op: &Gemm, kernels: &Kernels) -> Result<()> {
        if is_empty(op) {
            return Ok(());
        }
        self.prepared(op, (!self.deterministic).then_some(kernels)).map(|_| ())
    }

    /// Submits a product, or records it while the stream captures. A product that was never prepared takes the first
    /// algorithm that cuBLASLt proposes.
    ///
    /// # Errors
    /// A product cuBLASLt cannot do; a driver's error.
    pub(crate) fn run(&self, op: &Gemm, queue: &Queue<'_>) -> Result<()> {
        if is_empty(op) {
            return run_empty(op, queue);
        }
        let prepared = self.prepared(op, None)?;
        match &prepared.method {
            GemmMethod::Library(algorithm) => self.multiply(&prepared.descriptors, op, algorithm, queue),
            GemmMethod::Separate(plain) => self.multiply_separately(plain, op, queue),
            GemmMethod::Transposed(plain) => self.multiply_transposed(plain, op, queue),
        }
    }

    /// The choices made so far, as text for [`CublasLt::import`].
    pub(crate) fn export(&self) -> String {
        self.table.borrow().to_text()
    }

    /// Replaces this rank's choices by those of another rank.
    ///
    /// # Errors
    /// They are for another version of the library or another GPU, or are damaged.
    pub(crate) fn import(&self, text: &str) -> Result<()> {
        self.table.borrow_mut().merge(text).map_err(|problem| Error::operation("cublaslt", problem))?;
        self.prepared.borrow_mut().clear();
        Ok(())
    }

    fn multiply(&self, descriptors: &Descriptors, op: &Gemm, algorithm: &Algorithm, queue: &Queue<'_>) -> Result<()> {
        descriptors
            .multiply(&self.handle, op, algorithm, queue.stream, (queue.scratch, self.workspace))
            .map_err(|error| refused(op, &error))?;
        epilogue::run_rest(op, queue)
    }

    fn multiply_separately(&self, plain: &PreparedGemm, op: &Gemm, queue: &Queue<'_>) -> Result<()> {
        let GemmMethod::Library(algorithm) = &plain.method else {
            unreachable!("a plain product has no epilogue to do separately")
        };
        self.multiply(&plain.descriptors, &without_epilogue(op), algorithm, queue)?;
        epilogue::run(op, queue)
    }

    fn multiply_transposed(&self, plain: &PreparedGemm, op: &Gemm, queue: &Queue<'_>) -> Result<()> {
        let GemmMethod::Library(algorithm) = &plain.method else {
            unreachable!("the product with the copy is not worth another copy")
        };
        let address = queue.scratch + self.workspace as u64;
        transposed::copy(op, address, queue)?;
        self.multiply(&plain.descriptors, &transposed::with_copy(op, address), algorithm, queue)
    }

    /// How to do a product: as before, else as the table says, else chosen now. With `time_on` it is chosen by timing.
    fn prepared(&self, op: &Gemm, time_on: Option<&Kernels>) -> Result<Rc<PreparedGemm>> {
        let problem = GemmProblem::of(op, self.tf32);
        if let Some(prepared) = self.prepared.borrow().get(&problem) {
            return Ok(prepared.clone());
        }
        let descriptors = Descriptors::new(&problem).map_err(|error| refused(op, &error))?;
        let known = match self.known(&problem, op, &descriptors)? {
            Some(method) => Some(method),
            None => self.choose(&problem, op, &descriptors, time_on)?,
        };
        let method = known.ok_or_else(|| {
            let fix = match op.fp8 {
                None => "another precision, or sizes that are multiples of 8",
                Some(_) => "addresses that are multiples of 16, or bf16",
            };
            Error::operation("gemm", format!("cuBLASLt has no algorithm for {problem}. Fix: {fix}"))
        })?;
        let prepared = Rc::new(PreparedGemm { descriptors, method });
        self.prepared.borrow_mut().insert(problem, prepared.clone());
        Ok(prepared)
    }

    /// The table's method, if it works here.
    fn known(&self, problem: &GemmProblem, op: &Gemm, descriptors: &Descriptors) -> Result<Option<GemmMethod>> {
        let entry = self.table.borrow().entries.get(&problem.to_string()).copied();
        Ok(match entry.map(|entry| entry.method) {
            Some(ChosenMethod::Algorithm(algorithm)) => descriptors
                .accepts(&self.handle, op, &algorithm, self.workspace)
                .then_some(GemmMethod::Library(algorithm)),
            Some(ChosenMethod::Separate) if problem.epilogue != EpilogueKind::None => {
                Some(GemmMethod::Separate(self.prepared(&without_epilogue(op), None)?))
            }
            Some(ChosenMethod::Transposed) if self.transposes && transposed::may_gain(problem) => {
                Some(GemmMethod::Transposed(self.prepared(&transposed::with_copy(op, 0), None)?))
            }
            _ => None,
        })
    }

    /// The fastest method, or the first without timing. It is put into the table if it was timed or the run is
    /// deterministic.
    fn choose(
        &self,
        problem: &GemmProblem,
        op: &Gemm,
        descriptors: &Descriptors,
        time_on: Option<&Kernels>,
    ) -> Result<Option<GemmMethod>> {
        let mut methods: Vec<GemmMethod> = Vec::new();
        if problem.fusible() {
            let found = descriptors
                .heuristics(&self.handle, problem, op, self.workspace, self.deterministic)
                .map_err(|error| refused(op, &error))?;
            methods.extend(found.into_iter().map(GemmMethod::Library));
        }
        if problem.epilogue != EpilogueKind::None && (methods.is_empty() || time_on.is_some()) {
            methods.push(GemmMethod::Separate(self.prepared(&without_epilogue(op), time_on)?));
        }
        if self.transposes && time_on.is_some() && transposed::may_gain(problem) {
            // At address 0: it is as aligned as scratch memory.
            let plain = self.prepared(&transposed::with_copy(op, 0), time_on).ok();
            methods.extend(plain.map(GemmMethod::Transposed));
        }
        let best = match time_on {
            Some(kernels) if methods.len() > 1 => self.time(op, descriptors, &methods, kernels)?,
            None if self.deterministic && !methods.is_empty() => Some((0, 0.0)),
            _ => None,
        };
        if let Some((best, milliseconds)) = best {
            let method = match &methods[best] {
                GemmMethod::Library(algorithm) => ChosenMethod::Algorithm(*algorithm),
                GemmMethod::Separate(_) => ChosenMethod::Separate,
                GemmMethod::Transposed(_) => ChosenMethod::Transposed,
            };
            self.keep(problem, ChoiceEntry { method, microseconds: milliseconds * 1e3 });
        }
        let best = best.map_or(0, |(best, _)| best);
        Ok(methods.into_iter().nth(best))
    }

    /// The index of the fastest of `methods`, and its milliseconds. `None` if there is no memory to time in.
    fn time(
        &self,
        op: &Gemm,
        descriptors: &Descriptors,
        methods: &[GemmMethod],
        kernels: &Kernels,
    ) -> Result<Option<(usize, f32)>> {
        let (mut memory, stream) = (TimingMemory::default(), RawStream::new(Priority::Compute)?);
        let Some(scratch) = memory.scratch(self.scratch_bytes(op))? else { return Ok(None) };
        let Some(trial) = on_timing_memory(op, &mut memory, kernels, &stream)? else {
            tracing::info!("no memory to time {}: taking the first algorithm", GemmProblem::of(op, self.tf32));
            return Ok(None);
        };
        let queue = Queue { kernels, stream: &stream, scratch };
        let mut run = |method: usize| match &methods[method] {
            GemmMethod::Library(algorithm) => self.multiply(descriptors, &trial, algorithm, &queue),
            GemmMethod::Separate(plain) => self.multiply_separately(plain, &trial, &queue),
            GemmMethod::Transposed(plain) => self.multiply_transposed(plain, &trial, &queue),
        };
        let short = medians(&stream, methods.len(), &mut run)?;
        let times = settled(&stream, short.clone(), &mut run)?;
        stream.synchronize()?;
        tracing::debug!("{}: {short:?} ms, at the settled clock {times:?}", GemmProblem::of(op, self.tf32));
        Ok(fastest(&times))
    }

    /// Puts a choice into the table, and the table on disk.
    fn keep(&self, problem: &GemmProblem, entry: ChoiceEntry) {
        let mut table = self.table.borrow_mut();
        table.entries.insert(problem.to_string(), entry);
        if let Some(file) = &self.file
            && let Err(error) = stored::store(file, table.to_text().as_bytes())
        {
            tracing::debug!("the timed choices {} were not written: {error}", file.display());
        }
    }
}

/// The size that NVIDIA recommends for the GPU. Heuristics assume it.
fn workspace_bytes(gpu: &GpuProperties) -> usize {
    if gpu.capability.0 >= 9 { 32 << 20 } else { 8 << 20 }
}

fn without_epilogue(op: &Gemm) -> Gemm {
    Gemm { epilogue: Epilogue::None, ..op.clone() }
}

/// Whether a matrix is empty. cuBLASLt does not support empty ones.
fn is_empty(op: &Gemm) -> bool {
    let (m, n, k) = op.dimensions();
    m == 0 || n == 0 || k == 0
}

/// A product of empty matrices: a sum over nothing is zero.
fn run_empty(op: &Gemm, queue: &Queue<'_>) -> Result<()> {
    let [.., out] = op.places();
    if out.rows * out.columns == 0 || op.accumulate {
        return Ok(());
    }
    if out.columns < out.stride {
        return Err(Error::operation("gemm", "a product over nothing can only fill a whole tensor"));
    }
    queue.stream.set_bytes(op.out.address, 0, op.out.bytes())?;
    epilogue::run(op, queue)
}

/// The same product on memory of its own. `None` if there is not enough.
fn on_timing_memory(
    op: &Gemm,
    memory: &mut TimingMemory,
    kernels: &Kernels,
    stream: &RawStream,
) -> Result<Option<Gemm>> {
    let mut tensor = |like: Tensor| memory.tensor(like.shape, like.dtype, kernels, stream);
    let (Some(a), Some(b), Some(out)) = (tensor(op.a)?, tensor(op.b)?, tensor(op.out)?) else { return Ok(None) };
    let epilogue = match op.epilogue {
        Epilogue::None => Some(Epilogue::None),
        Epilogue::Bias(bias) => tensor(bias)?.map(Epilogue::Bias),
        Epilogue::BiasGelu { bias, pre } => {
            tensor(bias)?.zip(tensor(pre)?).map(|(bias, pre)| Epilogue::BiasGelu { bias, pre })
        }
        Epilogue::GeluBackward { pre, activated: None } => {
            tensor(pre)?.map(|pre| Epilogue::GeluBackward { pre, activated: None })
        }
        Epilogue::GeluBackward { pre, activated: Some(activated) } => tensor(pre)?
            .zip(tensor(activated)?)
            .map(|(pre, activated)| Epilogue::GeluBackward { pre, activated: Some(activated) }),
    };
    let fp8 = match &op.fp8 {
        None => None,
        Some(scales) => {
            let mut ones = |scale: &Scale| scale_of_ones(scale, memory, kernels, stream);
            let (Some(a), Some(b)) = (ones(&scales.a)?, ones(&scales.b)?) else { return Ok(None) };
            Some(Fp8Scales { a, b, ..*scales })
        }
    };
    Ok(epilogue.map(|epilogue| Gemm { a, b, out, epilogue, fp8, ..op.clone() }))
}

/// Scales of 1, as many as `like` has.
fn scale_of_ones(
    like: &Scale,
    memory: &mut TimingMemory,
    kernels: &Kernels,
    stream: &RawStream,
) -> Result<Option<Scale>> {
    let ones = memory.ones(like.tensor().shape, kernels, stream)?;
    Ok(ones.map(|ones| like.of_kind(ones)))
}

fn refused(op: &Gemm, error: &Error) -> Error {
    Error::operation("gemm", format!("{}: {error}", GemmProblem::of(op, false)))
}
