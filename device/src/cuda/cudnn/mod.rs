//! Attention through cuDNN's fused kernels, one compiled plan for each shape and direction.

mod attention_graph;
mod descriptor;
mod documents;
mod graph;
mod plan;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use attention_graph::{GraphSizes, number};
use descriptor::CudnnHandle;
use plan::Plans;

use super::driver::RawStream;
use super::timing::{TimingMemory, fastest, medians};
use super::{CudaOptions, Kernels, Queue};
use crate::ops::{Attention, AttentionBackward, Documents, Mask, Scores};
use crate::priority::Priority;
use crate::{DType, Result, Shape, Tensor};

/// From this version on the first configuration that cuDNN proposes is the fastest.
const FIRST_IS_BEST: usize = 91900;
/// The widest head that cuDNN is given. If a GPU has no plan for wide heads, our own kernels run.
const WIDEST_HEAD: usize = 256;
/// How many plans are timed against each other before that version.
const CANDIDATES: usize = 3;

/// cuDNN on one GPU.
pub(crate) struct Cudnn {
    /// By problem. `None` if cuDNN has no plan for it.
    plans: RefCell<HashMap<AttentionProblem, Option<Rc<AttentionPlan>>>>,
    /// The reasons against cuDNN that the log has.
    said: RefCell<HashSet<&'static str>>,
    deterministic: bool,
    handle: CudnnHandle,
}

/// The properties of an attention that decide whether cuDNN computes it.
struct Asked {
    qkv: Tensor,
    heads: usize,
    kv_heads: usize,
    scores: Scores,
    mask: Mask,
    documents: Option<Documents>,
    drops: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AttentionProblem {
    sizes: GraphSizes,
    /// The factor of the products of queries and keys, as bits.
    scale: u32,
    backward: bool,
}

impl AttentionProblem {
    fn new(sizes: GraphSizes, scores: Scores, backward: bool) -> AttentionProblem {
        AttentionProblem { sizes, scale: scores.scale(sizes.dim as usize).to_bits(), backward }
    }
}

/// The plans for a problem, and the choice among them.
pub(crate) struct AttentionPlan {
    problem: AttentionProblem,
    plans: Plans,
    /// The index of the plan that is used.
    chosen: usize,
    /// Whether the gradients of queries are added up in scratch.
    sums_queries: bool,
}

/// The addresses of an attention's tensors.
#[derive(Clone, Copy)]
struct TensorAddresses {
    qkv: u64,
    output: u64,
    stats: u64,
    grad_output: u64,
    grad_qkv: u64,
    position_ids: u64,
}

impl TensorAddresses {
    fn forward(op: &Attention) -> TensorAddresses {
        let (qkv, output, stats) = (op.qkv.address, op.output.address, op.stats.address);
        let position_ids = address(op.documents);
        TensorAddresses { qkv, output, stats, grad_output: 0, grad_qkv: 0, position_ids }
    }

    fn backward(op: &AttentionBackward) -> TensorAddresses {
        TensorAddresses {
            qkv: op.qkv.address,
            output: op.output.address,
            stats: op.stats.address,
            grad_output: op.grad_output.address,
            grad_qkv: op.grad_qkv.address,
            position_ids: address(op.documents),
        }
    }

    fn are_aligned(&self) -> bool {
        let TensorAddresses { qkv, output, stats, grad_output, grad_qkv, .. } = *self;
        [qkv, output, stats, grad_output, grad_qkv].iter().all(|address| address.is_multiple_of(graph::ALIGNMENT))
    }
}

/// The address of the positions in documents; 0 without.
fn address(documents: Option<Documents>) -> u64 {
    documents.map_or(0, |documents| documents.position_ids.address)
}

impl Cudnn {
    /// # Errors
    /// The library is missing or too old, or refuses the GPU.
    pub(crate) fn open(options: &CudaOptions) -> Result<Cudnn> {
        Ok(Cudnn {
            plans: RefCell::default(),
            said: RefCell::default(),
            deterministic: options.deterministic,
            handle: CudnnHandle::open()?,
        })
    }

    /// The plan for a forward. The first call for a shape makes the plan and must not be during a capture. `None` if
    /// cuDNN is not used for it.
    pub(crate) fn forward(&self, op: &Attention, kernels: &Kernels) -> Option<Rc<AttentionPlan>> {
        let Attention { qkv, heads, kv_heads, scores, mask, documents, .. } = *op;
        let drops = op.dropout.is_some();
        let asked = Asked { qkv, heads, kv_heads, scores, mask, documents, drops };
        let sizes = self.sizes(&asked).filter(|_| TensorAddresses::forward(op).are_aligned())?;
        self.plan(AttentionProblem::new(sizes, scores, false), kernels)
    }

    /// The plan for a backward, as [`Cudnn::forward`].
    pub(crate) fn backward(&self, op: &AttentionBackward, kernels: &Kernels) -> Option<Rc<AttentionPlan>> {
        let AttentionBackward { qkv, heads, kv_heads, scores, mask, documents, .. } = *op;
        let drops = op.dropout.is_some();
        let asked = Asked { qkv, heads, kv_heads, scores, mask, documents, drops };
        let sizes = self.sizes(&asked).filter(|_| TensorAddresses::backward(op).are_aligned())?;
        self.plan(AttentionProblem::new(sizes, scores, true), kernels)
    }

    /// Submits a forward, or records it while the stream captures.
    ///
    /// # Errors
    /// cuDNN's.
    pub(crate) fn run_forward(&self, plan: &AttentionPlan, op: &Attention, queue: &Queue<'_>) -> Result<()> {
        self.run(plan, plan.chosen, TensorAddresses::forward(op), queue)
    }

    /// Submits a backward, or records it while the stream captures.
    ///
    /// # Errors
    /// cuDNN's.
    pub(crate) fn run_backward(&self, plan: &AttentionPlan, op: &AttentionBackward, queue: &Queue<'_>) -> Result<()> {
        self.run(plan, plan.chosen, TensorAddresses::backward(op), queue)
    }

    fn plan(&self, problem: AttentionProblem, kernels: &Kernels) -> Option<Rc<AttentionPlan>> {
        if let Some(known) = self.plans.borrow().get(&problem) {
            return known.clone();
        }
        let made = self.make(problem, kernels);
        if let Err(error) = &made {
            tracing::warn!("attention {problem:?} runs on our own, slower kernels: {error}");
        }
        let made = made.ok().map(Rc::new);
        self.plans.borrow_mut().insert(problem, made.clone());
        made
    }

    fn make(&self, problem: AttentionProblem, kernels: &Kernels) -> Result<AttentionPlan> {
        let has_documents = problem.sizes.documents.is_some();
        let timed = !self.deterministic && !has_documents && self.handle.version() < FIRST_IS_BEST;
        let graph = match problem.backward {
            false => attention_graph::forward(&problem.sizes)?,
            true => attention_graph::backward(&problem.sizes, self.deterministic)?,
        };
        let plans = Plans::new(graph, &self.handle, if timed { CANDIDATES } else { 1 })?;
        let sums_queries = problem.backward && !self.deterministic;
        let mut plan = AttentionPlan { problem, plans, chosen: 0, sums_queries };
        if plan.plans.plans.len() > 1 {
            plan.chosen = self.time(&plan, kernels)?.unwrap_or(0);
        }
        Ok(plan)
    }

    /// The index of the fastest plan. `None` if there is no memory to time in.
    fn time(&self, plan: &AttentionPlan, kernels: &Kernels) -> Result<Option<usize>> {
        let (mut memory, stream) = (TimingMemory::default(), RawStream::new(Priority::Compute)?);
        let GraphSizes { batch, seq, heads, kv_heads, dim, .. } = plan.problem.sizes;
        let mut tensor = |elements: i64, dtype| {
            let tensor = memory.tensor(Shape::new(&[elements as usize]), dtype, kernels, &stream);
            tensor.map(|tensor| tensor.map(|tensor: Tensor| tensor.address))
        };
        let (packed, dense) = (batch * seq * (heads + 2 * kv_heads) * dim, batch * seq * heads * dim);
        let tensors = (
            tensor(packed, DType::Bf16)?,
            tensor(dense, DType::Bf16)?,
            tensor(batch * heads * seq, DType::F32)?,
            tensor(dense, DType::Bf16)?,
            tensor(packed, DType::Bf16)?,
        );
        let (Some(qkv), Some(output), Some(stats), Some(grad_output), Some(grad_qkv)) = tensors else {
            return Ok(None);
        };
        let most = (0..plan.plans.plans.len()).map(|candidate| plan.layout(candidate).bytes).max();
        let Some(scratch) = memory.scratch(most.unwrap_or(0))? else { return Ok(None) };
        let tensors = TensorAddresses { qkv, output, stats, grad_output, grad_qkv, position_ids: 0 };
        let queue = Queue { kernels, stream: &stream, scratch };
        let times = medians(&stream, plan.plans.plans.len(), |candidate| self.run(plan, candidate, tensors, &queue))?;
        stream.synchronize()?;
        tracing::debug!("attention {:?}: {times:?} ms", plan.problem);
        Ok(fastest(&times).map(|(candidate, _)| candidate))
    }

    fn run(&self, plan: &AttentionPlan, candidate: usize, tensors: TensorAddresses, queue: &Queue<'_>) -> Result<()> {
        let (sizes, scratch) = (&plan.problem.sizes, queue.scratch);
        let packed = |start: u64| sizes.packed_offsets().map(|offset| start + offset * DType::Bf16.size() as u64);
        let [query, key, value] = packed(tensors.qkv);
        let mut pointers = vec![
            (number::QUERY, query),
            (number::KEY, key),
            (number::VALUE, value),
            (number::OUTPUT, tensors.output),
            (number::STATS, tensors.stats),
        ];
        let mut scalars =
            vec![(number::SCALE, f32::from_bits(plan.problem.scale)), (number::MASKED, f32::NEG_INFINITY)];
        scalars.extend(sizes.window.map(|window| (number::WINDOW, window as f32)));
        let layout = plan.layout(candidate);
        if let Some(most) = sizes.documents {
            let lists = scratch + layout.documents as u64;
            pointers.extend(documents::write(sizes, most, tensors.position_ids, lists, queue)?);
        }
        if plan.problem.backward {
            let [grad_query, grad_key, grad_value] = packed(tensors.grad_qkv);
            pointers.extend([
                (number::GRAD_OUTPUT, tensors.grad_output),
                (number::GRAD_QUERY, grad_query),
                (number::GRAD_KEY, grad_key),
                (number::GRAD_VALUE, grad_value),
                (number::DELTA, scratch + layout.delta as u64),
            ]);
            scalars.push((number::ONE, 1.0));
        }
        if plan.sums_queries {
            pointers.push((number::GRAD_QUERY_SUM, scratch + layout.query_sums as u64));
        }
        if plan.keeps_head_grads() {
            pointers.extend(number::HEAD_GRADS.into_iter().zip(layout.head_grads.map(|at| scratch + at as u64)));
        }
        plan.plans.plans[candidate].execute(&self.handle, &pointers, &scalars, scratch, queue.stream)
    }

    /// The sizes of an attention. `None` if cuDNN is not used for it: in 16 bits the log says why, once.
    fn sizes(&self, asked: &Asked) -> Option<GraphSizes> {
        let &Asked { qkv, heads, kv_heads, scores, mask, documents, drops } = asked;
        let packed = qkv.shape.sizes();
        let (batch, seq, dim) = (packed[0], packed[1], packed[2] / (heads + 2 * kv_heads));
        if qkv.dtype != DType::Bf16 || batch == 0 || seq < 2 || dim == 0 {
            return None;
        }
        // Offsets of ragged tensors are 32-bit.
        let offsets = batch * seq * packed[2] * (heads / kv_heads);
        let reasons = [
            (drops, "it has dropout"),
            (scores.soft_cap.is_some(), "its scores have a soft cap"),
            (dim > WIDEST_HEAD, "its heads have more than 256 channels"),
            (!dim.is_multiple_of(8), "8 does not divide the channels of its heads"),
            // cuDNN's deterministic backward of documents would hold all scores.
            (documents.is_some() && self.deterministic, "samples hold documents, and the run is deterministic"),
            // Its backward writes past ragged scratch then, by the notes of NVIDIA's frontend.
            (
                documents.is_some() && !dim.is_multiple_of(16),
                "samples hold documents, and 16 does not divide the channels of heads",
            ),
            (
                documents.is_some() && offsets >= i32::MAX as usize,
                "samples hold documents, and a microbatch is too large",
            ),
        ];
        if let Some((_, reason)) = reasons.into_iter().find(|(applies, _)| *applies) {
            if self.said.borrow_mut().insert(reason) {
                tracing::warn!("attention runs on our own kernels, which are slower than cuDNN's, because {reason}");
            }
            return None;
        }
        let [batch, seq, heads, kv_heads, dim] = [batch, seq, heads, kv_heads, dim].map(|size| size as i64);
        let window = mask.within(packed[1]).window.map(|window| window as i64);
        let documents = documents.map(|documents| documents.most as i64);
        Some(GraphSizes { batch, seq, heads, kv_heads, dim, window, documents })
    }
}

/// The offsets of the parts of scratch, in bytes. The workspace comes first.
struct ScratchLayout {
    delta: usize,
    query_sums: usize,
    /// The gradients of keys and of values for each query head.
    head_grads: [usize; 2],
    /// Lengths and offsets of documents.
    documents: usize,
    bytes: usize,
}

impl AttentionPlan {
    /// Bytes of scratch a run needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.layout(self.chosen).bytes
    }

    /// Whether the gradients of keys and values for each query head are kept in scratch.
    fn keeps_head_grads(&self) -> bool {
        let GraphSizes { heads, kv_heads, documents, .. } = self.problem.sizes;
        self.problem.backward && documents.is_some() && heads > kv_heads
    }

    fn layout(&self, candidate: usize) -> ScratchLayout {
        let sizes = &self.problem.sizes;
        let GraphSizes { batch, seq, heads, dim, .. } = *sizes;
        let tokens = (batch * seq) as usize;
        // For documents the sums lie in rows like those of queries.
        let sums_width = if sizes.documents.is_some() { sizes.packed_width() } else { heads * dim } as usize;
        let part = |used: bool, bytes: usize| if used { bytes.next_multiple_of(256) } else { 0 };
        let delta = self.plans.plans[candidate].workspace.next_multiple_of(256);
        let query_sums = delta + part(self.problem.backward, tokens * heads as usize * size_of::<f32>());
        let key_grads = query_sums + part(self.sums_queries, tokens * sums_width * size_of::<f32>());
        let of_heads = part(self.keeps_head_grads(), tokens * sizes.head_grads_width() as usize * DType::Bf16.size());
        let (value_grads, documents) = (key_grads + of_heads, key_grads + 2 * of_heads);
        let bytes = documents + documents::scratch_bytes(sizes);
        ScratchLayout { delta, query_sums, head_grads: [key_grads, value_grads], documents, bytes }
    }
}
