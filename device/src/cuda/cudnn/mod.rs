//! Attention through cuDNN's fused kernels, one compiled plan for each shape and direction.

mod attention_graph;
mod descriptor;
mod documents;
mod graph;
mod plan;

use attention_graph::{GraphSizes, PartSizes, Sees, number};
use descriptor::CudnnHandle;
use plan::Plans;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::driver::RawStream;
use super::timing::{TimingMemory, fastest, medians};
use super::{CudaOptions, Kernels, Queue};
use crate::cuda::{Arg, Grid};
use crate::ops::{Attention, AttentionBackward, Documents, KeysOfRank, Mask, RankKeys, Scores};
use crate::priority::Priority;
use crate::{DType, Result, Shape, Tensor};

/// From this version on the first configuration that cuDNN proposes is the fastest.
const FIRST_IS_BEST: usize = 91900;
/// From this version on lengths of queries and keys that differ may be any.
const ANY_LENGTHS: usize = 90700;
/// Threads of a block that adds gradients of keys.
const JOIN_THREADS: usize = 256;
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
    /// The keys, if ranks divide sequences.
    keys: Option<RankKeys>,
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

/// The plans for the queries of an attention: for all together, or for each of two parts that follow each other.
pub(crate) struct PlannedParts(Vec<(QueryPart, Rc<AttentionPlan>)>);

/// Queries of a sample that follow each other.
#[derive(Clone, Copy)]
struct QueryPart {
    /// Queries of a sample before the part.
    first: usize,
    sizes: GraphSizes,
}

impl PlannedParts {
    /// Bytes of scratch that the operation needs: of the part that needs most, and for the gradients of keys from the first
    /// of two parts.
    pub(crate) fn scratch_bytes(&self) -> usize {
        let most = self.0.iter().map(|(_, plan)| plan.scratch_bytes()).max().unwrap_or(0);
        let [(first, plan), _] = &self.0[..] else { return most };
        most.next_multiple_of(256) + if plan.problem.backward { first.key_bytes() } else { 0 }
    }
}

impl QueryPart {
    /// Bytes from the first to the last gradient of keys.
    fn key_bytes(&self) -> usize {
        let GraphSizes { batch, kv_heads, dim, part, .. } = self.sizes;
        let rows = part.map_or(0, |part| (batch - 1) * part.whole + part.keys);
        (rows * 2 * kv_heads * dim) as usize * DType::Bf16.size()
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
    /// Of the rows that have keys and values.
    keys: u64,
    output: u64,
    stats: u64,
    grad_output: u64,
    grad_qkv: u64,
    grad_keys: u64,
    position_ids: u64,
}

impl TensorAddresses {
    fn forward(op: &Attention) -> TensorAddresses {
        let (qkv, output, stats) = (op.qkv.address, op.output.address, op.stats.address);
        let (keys, position_ids) = (op.keys.map_or(qkv, |keys| keys.rows.address), address(op.documents));
        TensorAddresses { qkv, keys, output, stats, grad_output: 0, grad_qkv: 0, grad_keys: 0, position_ids }
    }

    fn backward(op: &AttentionBackward) -> TensorAddresses {
        let (qkv, grad_qkv) = (op.qkv.address, op.grad_qkv.address);
        TensorAddresses {
            qkv,
            keys: op.keys.map_or(qkv, |keys| keys.keys.rows.address),
            output: op.output.address,
            stats: op.stats.address,
            grad_output: op.grad_output.address,
            grad_qkv,
            grad_keys: op.keys.map_or(grad_qkv, |keys| keys.grad.address),
            position_ids: address(op.documents),
        }
    }

    /// The addresses of a part of the queries.
    fn of_part(self, part: &QueryPart) -> TensorAddresses {
        let GraphSizes { heads, dim, .. } = part.sizes;
        let row = |width: i64, dtype: DType| (part.first * width as usize * dtype.size()) as u64;
        let packed = row(part.sizes.packed_width(), DType::Bf16);
        let output = row(heads * dim, DType::Bf16);
        let moved = |address: u64, by: u64| if address == 0 { 0 } else { address + by };
        TensorAddresses {
            qkv: self.qkv + packed,
            output: self.output + output,
            stats: self.stats + row(1, DType::F32),
            grad_output: moved(self.grad_output, output),
            grad_qkv: moved(self.grad_qkv, packed),
            ..self
        }
    }

    fn are_aligned(&self) -> bool {
        let TensorAddresses { qkv, keys, output, stats, grad_output, grad_qkv, grad_keys, .. } = *self;
        let all = [qkv, keys, output, stats, grad_output, grad_qkv, grad_keys];
        all.iter().all(|address| address.is_multiple_of(graph::ALIGNMENT))
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

    /// The plans for a forward. The first call for a shape makes them and must not be during a capture. `None` if cuDNN is
    /// not used for it.
    pub(crate) fn forward(&self, op: &Attention, kernels: &Kernels) -> Option<PlannedParts> {
        let Attention { qkv, heads, kv_heads, scores, mask, documents, .. } = *op;
        let (drops, keys) = (op.dropout.is_some(), op.keys);
        let asked = Asked { qkv, heads, kv_heads, scores, mask, documents, drops, keys };
        self.planned(&asked, TensorAddresses::forward(op), false, kernels)
    }

    /// The plans for a backward, as [`Cudnn::forward`].
    pub(crate) fn backward(&self, op: &AttentionBackward, kernels: &Kernels) -> Option<PlannedParts> {
        let AttentionBackward { qkv, heads, kv_heads, scores, mask, documents, .. } = *op;
        let (drops, keys) = (op.dropout.is_some(), op.keys.map(|keys| keys.keys));
        let asked = Asked { qkv, heads, kv_heads, scores, mask, documents, drops, keys };
        self.planned(&asked, TensorAddresses::backward(op), true, kernels)
    }

    fn planned(
        &self,
        asked: &Asked,
        addresses: TensorAddresses,
        backward: bool,
        kernels: &Kernels,
    ) -> Option<PlannedParts> {
        let parts = self.parts(asked)?;
        let plan = |part: QueryPart| {
            let aligned = addresses.of_part(&part).are_aligned();
            let problem = AttentionProblem::new(part.sizes, asked.scores, backward);
            Some((part, self.plan(problem, kernels).filter(|_| aligned)?))
        };
        parts.into_iter().map(plan).collect::<Option<_>>().map(PlannedParts)
    }

    /// Submits a forward, or records it while the stream captures.
    ///
    /// # Errors
    /// cuDNN's.
    pub(crate) fn run_forward(&self, parts: &PlannedParts, op: &Attention, queue: &Queue<'_>) -> Result<()> {
        let addresses = TensorAddresses::forward(op);
        parts.0.iter().try_for_each(|(part, plan)| self.run(plan, plan.chosen, addresses.of_part(part), queue))
    }

    /// Submits a backward, or records it while the stream captures. Of two parts the second sees the first one's keys too.
    /// The second part writes gradients of keys in place, and then those from the first part are added.
    ///
    /// # Errors
    /// cuDNN's.
    pub(crate) fn run_backward(&self, parts: &PlannedParts, op: &AttentionBackward, queue: &Queue<'_>) -> Result<()> {
        let addresses = TensorAddresses::backward(op);
        let [(first, of_first), (second, of_second)] = &parts.0[..] else {
            let run = |(part, plan): &(QueryPart, Rc<AttentionPlan>)| {
                self.run(plan, plan.chosen, addresses.of_part(part), queue)
            };
            return parts.0.iter().try_for_each(run);
        };
        let grad_keys = queue.scratch + (parts.scratch_bytes() - first.key_bytes()) as u64;
        let to_scratch = TensorAddresses { grad_keys, ..addresses.of_part(first) };
        self.run(of_first, of_first.chosen, to_scratch, queue)?;
        self.run(of_second, of_second.chosen, addresses.of_part(second), queue)?;
        let GraphSizes { batch, kv_heads, dim, .. } = first.sizes;
        let [seen_first, seen_second] = [first, second].map(|part| part.sizes.seen_keys() as u32);
        let (width, whole) = (2 * kv_heads * dim, first.sizes.part.map_or(0, |part| part.whole));
        let count = (batch * whole * width) as usize;
        let arguments = [
            Arg::U64(addresses.grad_keys),
            Arg::U64(grad_keys),
            Arg::U64(count as u64),
            Arg::U32(width as u32),
            Arg::U32(whole as u32),
            Arg::U32(seen_first),
            Arg::U32(seen_second),
        ];
        let blocks = count.div_ceil(JOIN_THREADS).min(queue.multiprocessors() * 8);
        queue.launch("join_key_gradients", Grid::line(blocks, JOIN_THREADS), &arguments)
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
        let is_packed = !has_documents && problem.sizes.part.is_none();
        let timed = !self.deterministic && is_packed && self.handle.version() < FIRST_IS_BEST;
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
        let (keys, grad_keys, position_ids) = (qkv, grad_qkv, 0);
        let tensors = TensorAddresses { qkv, keys, output, stats, grad_output, grad_qkv, grad_keys, position_ids };
        let queue = Queue { kernels, stream: &stream, scratch };
        let times = medians(&stream, plan.plans.plans.len(), |candidate| self.run(plan, candidate, tensors, &queue))?;
        stream.synchronize()?;
        tracing::debug!("attention {:?}: {times:?} ms", plan.problem);
        Ok(fastest(&times).map(|(candidate, _)| candidate))
    }

    fn run(&self, plan: &AttentionPlan, candidate: usize, tensors: TensorAddresses, queue: &Queue<'_>) -> Result<()> {
        let (sizes, scratch) = (&plan.problem.sizes, queue.scratch);
        let keys = |start: u64| sizes.key_offsets().map(|offset| start + offset * DType::Bf16.size() as u64);
        let (query, [key, value]) = (tensors.qkv, keys(tensors.keys));
        let mut pointers = vec![
            (number::QUERY, query),
            (number::KEY, key),
            (number::VALUE, value),
            (number::OUTPUT, tensors.output),
            (number::STATS, tensors.stats),
        ];
        let mut scalars = vec![(number::SCALE, plan.problem.scale)];
        // A number that the graph does not have is refused.
        if !sizes.sees_all() {
            scalars.push((number::MASKED, f32::NEG_INFINITY.to_bits()));
        }
        scalars.extend(sizes.shifted_window().map(|window| (number::WINDOW, (window as f32).to_bits())));
        if sizes.begins_later() {
            let lengths = [sizes.seen_keys(), sizes.seq].map(|length| length as u32);
            scalars.extend(number::KEYS_AND_QUERIES.into_iter().zip(lengths));
        }
        let layout = plan.layout(candidate);
        if let Some(most) = sizes.documents {
            let lists = scratch + layout.documents as u64;
            pointers.extend(documents::write(sizes, most, tensors.position_ids, lists, queue)?);
        }
        if plan.problem.backward {
            let (grad_query, [grad_key, grad_value]) = (tensors.grad_qkv, keys(tensors.grad_keys));
            pointers.extend([
                (number::GRAD_OUTPUT, tensors.grad_output),
                (number::GRAD_QUERY, grad_query),
                (number::GRAD_KEY, grad_key),
                (number::GRAD_VALUE, grad_value),
                (number::DELTA, scratch + layout.delta as u64),
            ]);
            scalars.push((number::ONE, 1.0_f32.to_bits()));
        }
        if plan.sums_queries {
            pointers.push((number::GRAD_QUERY_SUM, scratch + layout.query_sums as u64));
        }
        if plan.keeps_head_grads() {
            pointers.extend(number::HEAD_GRADS.into_iter().zip(layout.head_grads.map(|at| scratch + at as u64)));
        }
        plan.plans.plans[candidate].execute(&self.handle, &pointers, &scalars, scratch, queue.stream)
    }

    /// The parts of an attention's queries. `None` if cuDNN is not used for it: in 16 bits the log says why, once.
    fn parts(&self, asked: &Asked) -> Option<Vec<QueryPart>> {
        let &Asked { qkv, heads, kv_heads, scores, mask, documents, drops, keys } = asked;
        let share = keys.map(|keys| keys.share);
        let packed = qkv.shape.sizes();
        let (batch, seq, dim) = (packed[0], packed[1], packed[2] / (heads + 2 * kv_heads));
        if qkv.dtype != DType::Bf16 || batch == 0 || seq < 2 || !(1..=Attention::WIDEST_ON_GPUS).contains(&dim) {
            return None;
        }
        let reasons = [
            (drops, "it has dropout"),
            (share.is_some() && documents.is_some(), "samples hold documents, and ranks divide them"),
            (
                share.is_some() && self.handle.version() < ANY_LENGTHS && !(seq / 2).is_multiple_of(64),
                "64 does not divide the parts of sequences that ranks have, and cuDNN is older than 9.7",
            ),
            (scores.soft_cap.is_some(), "its scores have a soft cap"),
            (!dim.is_multiple_of(8), "8 does not divide the channels of its heads"),
            // cuDNN's deterministic backward of documents would hold all scores.
            (documents.is_some() && self.deterministic, "samples hold documents, and the run is deterministic"),
            // Its backward writes past ragged scratch then, by the notes of NVIDIA's frontend.
            (
                documents.is_some() && !dim.is_multiple_of(16),
                "samples hold documents, and 16 does not divide the channels of heads",
            ),
        ];
        if let Some((_, reason)) = reasons.into_iter().find(|(applies, _)| *applies) {
            if self.said.borrow_mut().insert(reason) {
                tracing::warn!("attention runs on our own kernels, which are slower than cuDNN's, because {reason}");
            }
            return None;
        }
        let ranks = share.map_or(1, |share| share.ranks);
        let window = mask.within(seq * ranks).window.map(|window| window as i64);
        let documents = documents.map(|documents| documents.most as i64);
        let [batch, tokens, heads, kv_heads, dim] = [batch, seq, heads, kv_heads, dim].map(|size| size as i64);
        let whole = GraphSizes { batch, seq: tokens, heads, kv_heads, dim, window, documents, part: None };
        let Some(RankKeys { share, .. }) = keys else { return Some(vec![QueryPart { first: 0, sizes: whole }]) };
        if let Some(KeysOfRank { first_query, keys }) = keys.and_then(|keys| keys.of_rank(seq)) {
            let part = PartSizes { tokens, whole: tokens, keys: keys as i64, sees: Sees::All };
            let sizes = GraphSizes { seq: (seq - first_query) as i64, part: Some(part), ..whole };
            return Some(vec![QueryPart { first: first_query, sizes }]);
        }
        let queries = share.first_part(seq);
        let part = |(at, begin): (usize, usize)| {
            let (whole_rows, keys) = (tokens * ranks as i64, (begin + queries) as i64);
            let part = PartSizes { tokens, whole: whole_rows, keys, sees: Sees::UpToOwn };
            // A window that no query's view reaches beyond is none.
            let window = window.filter(|window| *window < part.keys);
            let sizes = GraphSizes { seq: queries as i64, window, part: Some(part), ..whole };
            QueryPart { first: at * queries, sizes }
        };
        Some(share.begins(seq).into_iter().enumerate().take(share.ranks.min(2)).map(part).collect())
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
        let GraphSizes { batch, heads, dim, .. } = *sizes;
        let tokens = (batch * sizes.tokens()) as usize;
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
