//! From an operation to the function that runs it.

use super::{
    Pool, activation, attention, cache, custom, declared, dropout, elementwise, embedding, experts, first_values, gemm,
    head_norm, joint_norm, loss, loss_parallel, muon, norm, optimizer, pair_loss, quantize, quantize_counts, rotary,
    select, skip_step, soft_cap, transpose_fp8, update, view,
};
use crate::ops::{Control, SampleRecord, When, WriteControl, WriteSampleRecord};
use crate::{Error, Op, Result};

/// The threads and state behind operations of a host device.
pub(crate) struct HostDevice {
    pub(crate) pool: Pool,
    /// Hold kernels to the tensors that their operations declare.
    pub(crate) check: bool,
}

impl HostDevice {
    /// # Errors
    /// The threads cannot be started.
    pub(crate) fn new(threads: usize, check: bool) -> Result<HostDevice> {
        let refused = |error| Error::operation("device", format!("cannot start {threads} threads: {error}"));
        Ok(HostDevice { pool: Pool::new(threads).map_err(refused)?, check })
    }
}

/// Runs a checked operation to its end on the calling thread and the pool's.
///
/// Collectives never come here: streams and graphs start them and wait for them.
///
/// # Errors
/// A custom operation's.
///
/// # Panics
/// If the device checks, and the kernel takes memory that the operation did not declare.
pub(crate) fn run(op: &Op, device: &HostDevice) -> Result<()> {
    let pool = &device.pool;
    if let (true, Op::Custom(op)) = (device.check, op) {
        custom::poison_outputs(op, pool);
    }
    let _held = device.check.then(|| declared::hold(op.name(), op.accesses(), pool));
    match op {
        Op::Custom(op) => return custom::custom(op, pool),
        Op::Gemm(op) => gemm::gemm(op, pool),
        Op::BiasGrad(op) => elementwise::bias_grad(op, pool),
        Op::AddPartialColumns(op) => elementwise::add_partial_columns(op),
        Op::Add(op) => elementwise::add(op, pool),
        Op::Multiply(op) => elementwise::multiply(op, pool),
        Op::Copy(op) => elementwise::copy(op, pool),
        Op::Move(op) => elementwise::move_bytes(op, pool),
        Op::CopyColumns(op) => elementwise::copy_columns(op, pool),
        Op::OrderRows(op) => elementwise::order_rows(op, pool),
        Op::Select(op) => select::select(op, pool),
        Op::Fill(op) => elementwise::fill(op, pool),
        Op::FirstValues(op) => first_values::first_values(op, pool),
        Op::Poison(op) => elementwise::poison(op, pool),
        Op::Quantize(op) => quantize::quantize(op, pool),
        Op::CountQuantized(op) => quantize_counts::count_quantized(op, pool),
        Op::SumCounts(op) => quantize_counts::sum_counts(op),
        Op::MakeScale(op) => quantize::make_scale(op, pool),
        Op::UpdateScales(op) => quantize::update_scales(op),
        Op::TransposeFp8(op) => transpose_fp8::transpose_fp8(op, pool),
        Op::Activation(op) => activation::activation(op, pool),
        Op::ActivationBackward(op) => activation::activation_backward(op, pool),
        Op::Glu(op) => activation::glu(op, pool),
        Op::GluBackward(op) => activation::glu_backward(op, pool),
        Op::Norm(op) => norm::norm(op, pool),
        Op::NormBackward(op) => norm::norm_backward(op, pool),
        Op::HeadNorm(op) => head_norm::head_norm(op, pool),
        Op::HeadNormBackward(op) => head_norm::head_norm_backward(op, pool),
        Op::HeadSums(op) => joint_norm::head_sums(op, pool),
        Op::JointNorm(op) => joint_norm::joint_norm(op, pool),
        Op::JointNormBackward(op) => joint_norm::joint_norm_backward(op, pool),
        Op::Rotary(op) => rotary::rotary(op, pool),
        Op::Attention(op) => attention::attention(op, pool),
        Op::AttentionBackward(op) => attention::attention_backward(op, pool),
        Op::CachedAttention(op) => cache::cached_attention(op, pool),
        Op::TakeRows(op) => cache::take_rows(op, pool),
        Op::Dropout(op) => dropout::dropout(op, pool),
        Op::ReluDropout(op) => dropout::relu_dropout(op, pool),
        Op::ReluDropoutBackward(op) => dropout::relu_dropout_backward(op, pool),
        Op::Embedding(op) => embedding::embedding(op, pool),
        Op::EmbeddingBackward(op) => embedding::embedding_backward(op, pool),
        Op::Route(op) => experts::route(op, pool),
        Op::RouteBackward(op) => experts::route_backward(op, pool),
        Op::LimitLoad(op) => experts::limit_load(op),
        Op::SortByExpert(op) => experts::sort_by_expert(op),
        Op::SlotsOfPairs(op) => experts::slots_of_pairs(op),
        Op::PlaceRows(op) => experts::place_rows(op),
        Op::ExpertsOfSlots(op) => experts::experts_of_slots(op),
        Op::GatherRows(op) => experts::gather_rows(op, pool),
        Op::CombineRows(op) => experts::combine_rows(op, pool),
        Op::GroupedGemm(op) => experts::grouped_gemm(op, pool),
        Op::ExpertGlu(op) => experts::expert_glu(op, pool),
        Op::ExpertGluBackward(op) => experts::expert_glu_backward(op, pool),
        Op::CountLoad(op) => experts::count_load(op),
        Op::UpdateSelectionBias(op) => experts::update_selection_bias(op),
        Op::CrossEntropy(op) => loss::cross_entropy(op, pool),
        Op::CrossEntropyPart(op) => loss_parallel::part(op, pool),
        Op::CrossEntropyJoin(op) => loss_parallel::join(op, pool),
        Op::PairLoss(op) => pair_loss::pair_loss(op, pool),
        Op::SoftCap(op) => soft_cap::soft_cap(op, pool),
        Op::Mse(op) => loss::mse(op, pool),
        Op::SumInto(op) => loss::sum_into(op, pool),
        Op::SquareSum(op) => optimizer::square_sum(op, pool),
        Op::ClipScale(op) => optimizer::clip_scale(op),
        Op::SkipStep(op) => skip_step::skip_step(op),
        Op::VoidStep(op) => skip_step::void_step(op),
        Op::Update(op) => update::update(op, pool),
        Op::NesterovMomentum(op) => muon::nesterov_momentum(op, pool),
        Op::ScaleBlock(op) => muon::scale_block(op, pool),
        Op::MatrixPolynomial(op) => muon::matrix_polynomial(op, pool),
        Op::DecayedStep(op) => muon::decayed_step(op, pool),
        Op::When(op) => return when(op, device),
        Op::WriteControl(op) => write_control(op),
        Op::WriteSampleRecord(op) => write_sample_record(op),
        Op::ProgressMark(mark) => mark.leave(),
        Op::Collective(_) => unreachable!("streams start collectives"),
    }
    Ok(())
}

/// The body, if the flag says so. Each operation is held to its own declaration.
fn when(op: &When, device: &HostDevice) -> Result<()> {
    match view::read::<i32>(&op.flag)[0] {
        0 => Ok(()),
        _ => op.body.iter().try_for_each(|op| run(op, device)),
    }
}

fn write_control(op: &WriteControl) {
    view::write_block(&op.control, &op.value);
}

fn write_sample_record(op: &WriteSampleRecord) {
    let control: Control = view::read_block(&op.control);
    let record = SampleRecord { first_sample: control.first_sample + op.offset, step: control.step, reserved: 0 };
    view::write_block(&op.record, &record);
}
