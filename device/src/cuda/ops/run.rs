//! From an operation to the function that launches it.

use super::capability::{accept_fp8, accept_on_hopper};
use super::{
    activation, attention, cache, collective, columns, control, custom, dropout, elementwise, embedding, experts,
    first_values, head_norm, joint_norm, loss, loss_parallel, muon, norm, optimizer, pair_loss, progress_mark,
    quantize, quantize_blocks, quantize_counts, reduce, rotary, select, skip_step, transpose_fp8,
};
use crate::cuda::condition::not_loaded;
use crate::cuda::kernels::KernelSet;
use crate::cuda::{CudaDevice, Queue};
use crate::ops::{Collective, CollectiveKind, Gemm, When};
use crate::{Op, Result};

/// Launches a checked operation on the queue's stream, or records it while that captures.
///
/// # Errors
/// An error of a library or of the driver.
pub(crate) fn run(op: &Op, cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
    match op {
        Op::Gemm(op) => cuda.cublaslt.run(op, queue),
        Op::Attention(op) => attention::forward(op, cuda.cudnn.as_ref(), queue),
        Op::AttentionBackward(op) => attention::backward(op, cuda.cudnn.as_ref(), queue),
        Op::CachedAttention(op) => cache::cached_attention(op, queue),
        Op::TakeRows(op) => cache::take_rows(op, queue),
        Op::BiasGrad(op) => columns::bias_grad(op, queue),
        Op::AddPartialColumns(op) => columns::add_partial_columns(op, queue),
        Op::Add(op) => elementwise::add(op, queue),
        Op::Multiply(op) => elementwise::multiply(op, queue),
        Op::Copy(op) => elementwise::copy(op, queue),
        Op::Move(op) => elementwise::move_bytes(op, queue),
        Op::CopyColumns(op) => elementwise::copy_columns(op, queue),
        Op::OrderRows(op) => elementwise::order_rows(op, queue),
        Op::Select(op) => select::select(op, queue),
        Op::Fill(op) => elementwise::fill(op, queue),
        Op::FirstValues(op) => first_values::first_values(op, queue),
        Op::Poison(op) => elementwise::poison(op, queue),
        Op::Quantize(op) if quantize_blocks::is_for(op) => quantize_blocks::quantize(op, queue),
        Op::Quantize(op) => quantize::quantize(op, queue),
        Op::CountQuantized(op) => quantize_counts::count_quantized(op, queue),
        Op::SumCounts(op) => quantize_counts::sum_counts(op, queue),
        Op::MakeScale(op) => quantize::make_scale(op, queue),
        Op::UpdateScales(op) => quantize::update_scales(op, queue),
        Op::TransposeFp8(op) => transpose_fp8::transpose_fp8(op, queue),
        Op::Activation(op) => activation::activation(op, queue),
        Op::ActivationBackward(op) => activation::activation_backward(op, queue),
        Op::Glu(op) => activation::glu(op, queue),
        Op::GluBackward(op) => activation::glu_backward(op, queue),
        Op::Norm(op) => norm::norm(op, queue),
        Op::NormBackward(op) => norm::norm_backward(op, queue),
        Op::HeadNorm(op) => head_norm::head_norm(op, queue),
        Op::HeadNormBackward(op) => head_norm::head_norm_backward(op, queue),
        Op::HeadSums(op) => joint_norm::head_sums(op, queue),
        Op::JointNorm(op) => joint_norm::joint_norm(op, queue),
        Op::JointNormBackward(op) => joint_norm::joint_norm_backward(op, queue),
        Op::Rotary(op) => rotary::rotary(op, queue),
        Op::Dropout(op) => dropout::dropout(op, queue),
        Op::ReluDropout(op) => dropout::relu_dropout(op, queue),
        Op::ReluDropoutBackward(op) => dropout::relu_dropout_backward(op, queue),
        Op::Embedding(op) => embedding::embedding(op, queue),
        Op::EmbeddingBackward(op) => embedding::embedding_backward(op, queue),
        Op::Route(op) => experts::route(op, queue),
        Op::RouteBackward(op) => experts::route_backward(op, queue),
        Op::LimitLoad(op) => experts::limit_load(op, queue),
        Op::SortByExpert(op) => experts::sort_by_expert(op, queue),
        Op::SlotsOfPairs(op) => experts::slots_of_pairs(op, queue),
        Op::PlaceRows(op) => experts::place_rows(op, queue),
        Op::ExpertsOfSlots(op) => experts::experts_of_slots(op, queue),
        Op::GatherRows(op) => experts::gather_rows(op, queue),
        Op::CombineRows(op) => experts::combine_rows(op, queue),
        Op::GroupedGemm(op) => experts::grouped_gemm(op, queue),
        Op::ExpertGlu(op) => experts::expert_glu(op, queue),
        Op::ExpertGluBackward(op) => experts::expert_glu_backward(op, queue),
        Op::CountLoad(op) => experts::count_load(op, queue),
        Op::UpdateSelectionBias(op) => experts::update_selection_bias(op, queue),
        Op::CrossEntropy(op) => loss::cross_entropy(op, queue),
        Op::CrossEntropyPart(op) => loss_parallel::part(op, queue),
        Op::CrossEntropyJoin(op) => loss_parallel::join(op, queue),
        Op::PairLoss(op) => pair_loss::pair_loss(op, queue),
        Op::SoftCap(op) => elementwise::soft_cap(op, queue),
        Op::Mse(op) => loss::mse(op, queue),
        Op::SumInto(op) => reduce::sum_into(op, queue),
        Op::SquareSum(op) => reduce::square_sum(op, queue),
        Op::ClipScale(op) => optimizer::clip_scale(op, queue),
        Op::SkipStep(op) => skip_step::skip_step(op, queue),
        Op::VoidStep(op) => skip_step::void_step(op, queue),
        Op::Update(op) => optimizer::update(op, queue),
        Op::NesterovMomentum(op) => optimizer::nesterov_momentum(op, queue),
        Op::ScaleBlock(op) => muon::scale_block(op, queue),
        Op::MatrixPolynomial(op) => muon::matrix_polynomial(op, queue),
        Op::DecayedStep(op) => optimizer::decayed_step(op, queue),
        Op::WriteControl(op) => control::write_control(op, queue),
        Op::WriteSampleRecord(op) => control::write_sample_record(op, queue),
        Op::ProgressMark(op) => progress_mark::progress_mark(op, cuda.marks.as_ref(), queue),
        Op::Custom(op) => custom::custom(op, &cuda.custom_kernels, queue),
        Op::Collective(op) => collective::collective(op, queue),
        Op::When(_) => unreachable!("streams capture it"),
    }
}

/// Fails unless a checked operation can be submitted to a stream. `capturing` says if the stream captures.
///
/// # Errors
/// A custom operation without a CUDA side, or one that is to be captured before its kernel is loaded; an 8-bit floating
/// type on a GPU that has none; more experts than kernels take.
pub(crate) fn accept(op: &Op, capturing: bool, cuda: &CudaDevice) -> Result<()> {
    let properties = &cuda.gpu.properties;
    match op {
        Op::Custom(op) => custom::accept(op, capturing, cuda),
        Op::When(when) => accept_when(when, capturing, cuda),
        Op::Gemm(Gemm { fp8: Some(scales), .. }) => {
            accept_fp8(op.name(), properties)?;
            match scales.a.is_by_block() {
                // The library has them for these GPUs alone.
                true => accept_on_hopper(op.name(), properties, "scales by block", "another 8-bit recipe, or bf16"),
                false => Ok(()),
            }
        }
        _ => {
            match kernel_set(op) {
                Some(KernelSet::Fp8) => accept_fp8(op.name(), properties)?,
                Some(KernelSet::Experts) => experts::accept(op, properties)?,
                None => return Ok(()),
            }
            // Kernels that were not prepared are loaded now, unless the stream captures.
            if capturing { Ok(()) } else { load_kernels(op, cuda) }
        }
    }
}

/// As [`accept`], for an operation with a body. Unless the stream captures, all that the body needs is loaded.
fn accept_when(when: &When, capturing: bool, cuda: &CudaDevice) -> Result<()> {
    match (capturing, cuda.condition.get()) {
        (false, _) => cuda.load_condition()?,
        (true, Some(_)) => {}
        (true, None) => return Err(not_loaded()),
    }
    when.body.iter().try_for_each(|op| {
        if let Op::Custom(op) = op {
            custom::accept_in_body(op, cuda)?;
            if !capturing {
                custom::prepare(op, cuda)?;
            }
        }
        accept(op, capturing, cuda)
    })
}

/// The kernels that an operation needs besides those that are always loaded.
fn kernel_set(op: &Op) -> Option<KernelSet> {
    match op {
        Op::Quantize(_)
        | Op::CountQuantized(_)
        | Op::SumCounts(_)
        | Op::MakeScale(_)
        | Op::UpdateScales(_)
        | Op::TransposeFp8(_) => Some(KernelSet::Fp8),
        Op::Route(_)
        | Op::RouteBackward(_)
        | Op::LimitLoad(_)
        | Op::SortByExpert(_)
        | Op::SlotsOfPairs(_)
        | Op::PlaceRows(_)
        | Op::Collective(Collective { kind: CollectiveKind::Rows(_), .. })
        | Op::ExpertsOfSlots(_)
        | Op::GatherRows(_)
        | Op::CombineRows(_)
        | Op::GroupedGemm(_)
        | Op::ExpertGlu(_)
        | Op::ExpertGluBackward(_)
        | Op::CountLoad(_)
        | Op::UpdateSelectionBias(_) => Some(KernelSet::Experts),
        _ => None,
    }
}

fn load_kernels(op: &Op, cuda: &CudaDevice) -> Result<()> {
    kernel_set(op).map_or(Ok(()), |set| cuda.kernels.load_set(set))
}

/// Lets libraries choose how to do an operation, and loads the kernels that are not always loaded.
///
/// # Errors
/// An operation that a library cannot do.
pub(crate) fn prepare(op: &Op, cuda: &CudaDevice) -> Result<()> {
    match op {
        Op::Gemm(op) => cuda.cublaslt.prepare(op, &cuda.kernels),
        Op::Custom(op) => custom::prepare(op, cuda),
        Op::When(when) => when.body.iter().try_for_each(|op| prepare(op, cuda)),
        // For attention `scratch_bytes` asks whether cuDNN does it. That makes cuDNN's plan.
        _ => load_kernels(op, cuda),
    }
}

/// Bytes of scratch memory that the operation needs while it runs. Known before anything is allocated.
pub(crate) fn scratch_bytes(op: &Op, cuda: &CudaDevice) -> usize {
    let multiprocessors = cuda.gpu.properties.multiprocessors as usize;
    match op {
        Op::Gemm(op) => cuda.cublaslt.scratch_bytes(op),
        Op::Attention(op) => attention::forward_scratch(op, cuda.cudnn.as_ref(), &cuda.kernels),
        Op::AttentionBackward(op) => attention::backward_scratch(op, cuda.cudnn.as_ref(), &cuda.kernels),
        Op::BiasGrad(op) => columns::scratch_bytes(op, multiprocessors),
        Op::HeadNormBackward(op) => head_norm::scratch_bytes(op, multiprocessors),
        Op::JointNormBackward(op) => joint_norm::scratch_bytes(op, multiprocessors),
        Op::EmbeddingBackward(op) => embedding::scratch_bytes(op),
        Op::SortByExpert(op) => experts::sort_scratch(op),
        Op::CountLoad(op) => experts::count_load_scratch(op),
        Op::Quantize(op) => quantize::scratch_bytes(op),
        Op::MakeScale(_) => quantize::make_scale_scratch_bytes(),
        Op::SumInto(op) => reduce::scratch_bytes(&[op.input]),
        Op::SquareSum(op) => reduce::scratch_bytes(&op.inputs),
        Op::When(when) => when.body.iter().map(|op| scratch_bytes(op, cuda)).max().unwrap_or(0),
        _ => 0,
    }
}
