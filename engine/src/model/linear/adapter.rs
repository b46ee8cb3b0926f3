//! Low-rank adapters (LoRA, Hu et al., 2021): a linear layer with a frozen weight adds `alpha / rank * B A dropout(x)`
//! to its output. `A` and `B` are trained.
//!
//! The layers of a block pack several matrices in one weight, such as queries, keys and values. Each [`LoraTarget`] is
//! one of these matrices, or all of them as one, and has an adapter of its own. The `A` of a layer's adapters are
//! packed in one parameter `(adapters * rank, in)`, so their products with the input are one. Their `B` are packed too:
//! `(outputs of all adapters, rank)`.
//!
//! Each expert has adapters of its own. `A` packs them by expert and then by adapter, `B` by adapter and then by expert. Their
//! products are those of a linear layer, of each expert's rows: the product of `B` and `A` is never made.

use std::ops::Range;

use device::Tensor;
use device::ops::{Add, Columns, Dropout, DropoutPart, DropoutSite, Epilogue, Gemm, GemmColumns, GroupedGemm};
use graph_manager::Result;

use super::lora::{Lora, LoraTarget};
use crate::microbatch::adds_to_gradients;
use crate::model::buffers::tensor_like;
use crate::model::builder::LayerBuilder;
use crate::model::dropout::{DropoutLayer, dropout_backward};
use crate::model::tensor_parallel::{Packed, TensorParallel};
use crate::params::{Init, Param, ParamSpec};
use crate::step_policy::StepContext;
use crate::tile::Tile;

impl Lora {
    fn has(&self, target: LoraTarget) -> bool {
        self.targets.contains(&target)
    }

    /// Adapters of the layer that packs queries, keys and values.
    pub(crate) fn of_qkv(&self) -> Option<AdapterSpec> {
        let each = [LoraTarget::Query, LoraTarget::Key, LoraTarget::Value];
        let all = 0..each.len();
        let groups = if self.has(LoraTarget::QueryKeyValue) { vec![all] } else { self.single(&each) };
        self.spec(groups, 0)
    }

    /// Adapters of the layer before latent attention, which packs what `queries` says, then the latent of keys and values.
    pub(crate) fn of_latents(&self, queries: LoraTarget) -> Option<AdapterSpec> {
        self.spec(self.single(&[queries, LoraTarget::KeyValueLatent]), 0)
    }

    /// Adapters of the layer from the latent of queries.
    pub(crate) fn of_query_latent(&self) -> Option<AdapterSpec> {
        self.spec(self.single(&[LoraTarget::QueryOfLatent]), 4)
    }

    /// Adapters of the layer from the latent of keys and values.
    pub(crate) fn of_key_value_latent(&self) -> Option<AdapterSpec> {
        self.spec(self.single(&[LoraTarget::KeyValueOfLatent]), 5)
    }

    /// Adapters of the layer after attention.
    pub(crate) fn of_attention_output(&self) -> Option<AdapterSpec> {
        self.spec(self.single(&[LoraTarget::AttentionOutput]), 1)
    }

    /// Adapters of the first layer of a feed-forward layer. It packs so many matrices: the last is [`LoraTarget::Up`].
    pub(crate) fn of_up(&self, groups: usize) -> Option<AdapterSpec> {
        let each = [LoraTarget::Gate, LoraTarget::Up];
        let groups = match groups > 1 && self.has(LoraTarget::GateUp) {
            true => std::iter::once(0..groups).collect(),
            false => self.single(&each[each.len() - groups..]),
        };
        self.spec(groups, 2)
    }

    /// Adapters of the last layer of a feed-forward layer.
    pub(crate) fn of_down(&self) -> Option<AdapterSpec> {
        self.spec(self.single(&[LoraTarget::Down]), 3)
    }

    /// An adapter for each of the `packed` matrices that is a target.
    fn single(&self, packed: &[LoraTarget]) -> Vec<Range<usize>> {
        (0..packed.len()).filter(|&at| self.has(packed[at])).map(|at| at..at + 1).collect()
    }

    fn spec(&self, groups: Vec<Range<usize>>, layer: usize) -> Option<AdapterSpec> {
        (!groups.is_empty()).then(|| AdapterSpec {
            rank: self.rank,
            scale: self.scale(),
            dropout: self.dropout,
            groups,
            layer,
        })
    }
}

/// Most adapters of a linear layer: queries, keys and values.
const MOST: usize = 3;

/// The adapters of a linear layer before they have memory.
#[derive(Clone, Debug)]
pub(crate) struct AdapterSpec {
    pub(crate) rank: usize,
    scale: f32,
    dropout: f64,
    /// By adapter: the numbers of the matrices that it covers, among the packed ones.
    pub(crate) groups: Vec<Range<usize>>,
    /// The number of the layer among the block's linear layers.
    layer: usize,
}

impl AdapterSpec {
    /// `A`, then `B`, of the layer `name` with so many inputs. Its outputs pack `packed` and are split over the ranks;
    /// `row_parallel` says that the inputs are split instead. `layer` is the layer that they belong to.
    pub(super) fn params(
        &self,
        (name, layer): (&str, usize),
        input: usize,
        packed: &[Packed],
        row_parallel: bool,
        parallel: &TensorParallel,
    ) -> [ParamSpec; 2] {
        let covered: Vec<Packed> = self.groups.iter().flat_map(|groups| &packed[groups.clone()]).copied().collect();
        let outputs = covered.iter().map(Packed::size).sum();
        let low = self.groups.len() * self.rank;
        let a = ParamSpec::new(format!("{name}.lora_A"), [low, input], AdapterSpec::init_of_a(input), layer);
        let b = ParamSpec::new(format!("{name}.lora_B"), [outputs, self.rank], Init::Constant(0.0), layer);
        // Of the parameter that is whole on each rank, backward computes a part from the rank's own inputs or outputs.
        match row_parallel {
            true => [parallel.columns(a, vec![low]), parallel.partial(b)],
            false => [parallel.partial(a), parallel.rows(b, &covered)],
        }
    }

    /// The first values of `A` with so many inputs, as in PEFT: Kaiming's uniform distribution. `B` begins at 0.
    pub(crate) fn init_of_a(input: usize) -> Init {
        Init::Uniform(1.0 / (input as f32).sqrt())
    }

    /// The adapters over their parameters, in a block.
    pub(super) fn build(
        &self,
        [a, b]: [Param; 2],
        packed: &[Packed],
        row_parallel: bool,
        builder: &LayerBuilder<'_>,
        block: usize,
    ) -> Adapter {
        let parallel = builder.of.parallel;
        let ranks = if row_parallel { 1 } else { parallel.size() };
        let sizes: Vec<usize> = packed.iter().map(|group| group.on_each(ranks)).collect();
        // A rank's inputs of a row-parallel layer are its columns of the whole layer's.
        let first_channel = if row_parallel { parallel.rank() * a.weight.shape.last() } else { 0 };
        let part = DropoutPart { first_channel, ..DropoutPart::default() };
        let dropout = builder.of.dropout(self.dropout, block + 1, 3 + self.layer as u16, part);
        self.over([a, b], 1, &sizes, dropout)
    }

    /// The adapters of one matrix, or of that many experts, over the adapters' parameters. `sizes` are those of the
    /// packed matrices here.
    pub(crate) fn over(&self, [a, b]: [Param; 2], experts: usize, sizes: &[usize], dropout: DropoutLayer) -> Adapter {
        let size = |groups: Range<usize>| sizes[groups].iter().sum::<usize>();
        let mut columns = [None; MOST];
        for (at, groups) in self.groups.iter().enumerate() {
            columns[at] = Some(Columns { first: size(0..groups.start), count: size(groups.clone()) });
        }
        let width = size(0..sizes.len());
        Adapter { a, b, experts, rank: self.rank, scale: self.scale, columns, width, dropout }
    }

    /// Parameters, whole.
    pub(super) fn weights(&self, input: usize, packed: &[Packed]) -> usize {
        let outputs = |groups: &Range<usize>| -> usize { packed[groups.clone()].iter().map(Packed::size).sum() };
        self.groups.iter().map(|groups| self.rank * (input + outputs(groups))).sum()
    }
}

/// The adapters of a linear layer, or this rank's shard.
#[derive(Clone, Copy)]
pub(crate) struct Adapter {
    /// `(adapters * rank, in)`, of each expert.
    a: Param,
    /// `(outputs, rank)` of each adapter, of each expert.
    b: Param,
    /// Experts here; 1 of a linear layer.
    experts: usize,
    rank: usize,
    scale: f32,
    /// The outputs of each adapter.
    columns: [Option<Columns>; MOST],
    /// Outputs of the layer.
    width: usize,
    dropout: DropoutLayer,
}

/// The values that an adapter's forward leaves for its backward.
#[derive(Clone, Copy)]
pub(crate) struct SavedAdapter {
    /// `(..., adapters * rank)`: `alpha / rank * A dropout(x)`.
    low: Tensor,
    dropout: Option<DropoutSite>,
    /// The first row of each expert; `None` of a linear layer.
    offsets: Option<Tensor>,
}

impl SavedAdapter {
    /// Of a tile of rows.
    pub(crate) fn of_tile(self, tile: Tile) -> SavedAdapter {
        SavedAdapter { low: tile.of(self.low), dropout: self.dropout.map(|site| tile.dropout(site)), ..self }
    }
}

/// The tensors that the gradients of an adapter's weights are computed from.
#[derive(Clone, Copy)]
pub(crate) struct AdapterGradient {
    pub(crate) saved: SavedAdapter,
    /// `(..., adapters * rank)`: the gradient of `low`, times `alpha / rank`.
    grad_low: Tensor,
}

impl AdapterGradient {
    /// Of a tile of rows.
    pub(crate) fn of_tile(self, tile: Tile) -> AdapterGradient {
        AdapterGradient { saved: self.saved.of_tile(tile), grad_low: tile.of(self.grad_low) }
    }
}

/// One of a layer's adapters.
struct One {
    /// The adapter's columns of `low`.
    low: Option<Columns>,
    /// The adapter's columns of the layer's output.
    output: Option<Columns>,
    /// The adapter's rows of `B`: the first, and their number.
    rows: (usize, usize),
}

/// Multiplies, or multiplies the rows of each expert.
fn multiply(cx: &StepContext<'_>, offsets: Option<Tensor>, product: Gemm) -> Result<()> {
    match offsets {
        None => cx.run(product),
        Some(offsets) => cx.run(GroupedGemm::of_each_expert(&product, offsets)),
    }
}

impl Adapter {
    /// The adapters one by one. A product with all columns of a tensor names none.
    fn each(&self) -> impl Iterator<Item = One> + use<> {
        let Adapter { experts, rank, width, .. } = *self;
        let columns: Vec<Columns> = self.columns.into_iter().flatten().collect();
        let all = columns.len();
        let mut first_row = 0;
        columns.into_iter().enumerate().map(move |(at, columns)| {
            let rows = (first_row, columns.count * experts);
            first_row += rows.1;
            One {
                low: (all > 1).then_some(Columns { first: at * rank, count: rank }),
                output: (columns.count < width).then_some(columns),
                rows,
            }
        })
    }

    /// Adds `alpha / rank * B A` to a copy of the layer's weight `(out, in)`.
    pub(super) fn add_to_weight(&self, cx: &StepContext<'_>, weight: Tensor) -> Result<()> {
        for One { low, output, rows: (first, count) } in self.each() {
            let rows = |of: Tensor, part: Option<Columns>| part.map_or(of, |part| of.narrow(part.first, part.count));
            let (a, b) = (rows(self.a.weight, low), self.b.weight.narrow(first, count));
            let product = Gemm::plain(b, a, rows(weight, output));
            cx.run(Gemm { alpha: self.scale, accumulate: true, ..product })?;
        }
        Ok(())
    }

    /// Memory for the values that the adapter's forward leaves, for an input with the rows of `rows`. `record` is the
    /// microbatch's `SampleRecord`, if there is dropout.
    pub(super) fn saved(
        &self,
        cx: &mut StepContext<'_>,
        rows: &Tensor,
        record: Option<Tensor>,
    ) -> Result<SavedAdapter> {
        let low = tensor_like(cx, "lora_low", rows, self.low_width())?;
        Ok(SavedAdapter { low, dropout: self.dropout.site(cx, record), offsets: None })
    }

    /// As [`Adapter::saved`], for the rows of experts that begin at `offsets`.
    pub(crate) fn saved_of_experts(
        &self,
        cx: &mut StepContext<'_>,
        rows: &Tensor,
        offsets: Tensor,
    ) -> Result<SavedAdapter> {
        let low = tensor_like(cx, "expert_lora_low", rows, self.low_width())?;
        Ok(SavedAdapter { low, dropout: None, offsets: Some(offsets) })
    }

    /// The inner size of all adapters of a matrix.
    fn low_width(&self) -> usize {
        self.a.weight.shape.rows() / self.experts
    }

    /// Adds the adapter's product to the layer's `output` `(..., out)`, for the layer's `input` `(..., in)`, and writes
    /// the values for backward.
    pub(crate) fn forward(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        output: Tensor,
        saved: SavedAdapter,
    ) -> Result<()> {
        self.prepare_backward(cx, input, saved)?;
        let low = saved.low;
        for One { low: columns, output: to, rows: (first, count) } in self.each() {
            let columns = GemmColumns { a: columns, out: to, ..GemmColumns::ALL };
            let b = self.b.weight.narrow(first, count);
            let product = Gemm { columns, accumulate: true, ..Gemm::linear(low, b, output, Epilogue::None) };
            multiply(cx, saved.offsets, product)?;
        }
        Ok(())
    }

    /// As [`Adapter::forward`], as far as backward needs: writes the values for it.
    pub(crate) fn prepare_backward(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        SavedAdapter { low, dropout, offsets }: SavedAdapter,
    ) -> Result<()> {
        let dropped = dropout_backward(cx, "lora_input", input, dropout)?;
        let product = Gemm::linear(dropped, self.a.weight, low, Epilogue::None);
        multiply(cx, offsets, Gemm { alpha: self.scale, ..product })
    }

    /// Memory for the tensors that the gradients of the adapter's weights are computed from, for an output gradient
    /// with the rows of `rows`.
    pub(crate) fn gradient(
        &self,
        cx: &mut StepContext<'_>,
        saved: SavedAdapter,
        rows: &Tensor,
    ) -> Result<AdapterGradient> {
        Ok(AdapterGradient { saved, grad_low: tensor_like(cx, "lora_grad_low", rows, self.low_width())? })
    }

    /// Adds the adapter's part to the gradient of the layer's input, for the gradient `(..., out)` of the layer's
    /// output.
    pub(crate) fn input_gradient(
        &self,
        cx: &mut StepContext<'_>,
        AdapterGradient { saved, grad_low }: AdapterGradient,
        grad_output: Tensor,
        grad_input: Tensor,
    ) -> Result<()> {
        for One { low, output, rows: (first, count) } in self.each() {
            let columns = GemmColumns { a: output, out: low, ..GemmColumns::ALL };
            let product = Gemm::dgrad(grad_output, self.b.weight.narrow(first, count), grad_low, Epilogue::None);
            multiply(cx, saved.offsets, Gemm { columns, alpha: self.scale, ..product })?;
        }
        let product = |to| Gemm::dgrad(grad_low, self.a.weight, to, Epilogue::None);
        match saved.dropout {
            None => multiply(cx, saved.offsets, Gemm { accumulate: true, ..product(grad_input) }),
            Some(site) => {
                let through = cx.tensor("lora_grad_input", grad_input.shape, grad_input.dtype)?;
                cx.run(product(through))?;
                cx.run(Dropout { input: through, output: through, site })?;
                cx.run(Add { a: grad_input, b: through, output: grad_input })
            }
        }
    }

    /// The gradients of `A` and `B`, after [`Adapter::input_gradient`], from the layer's input and the gradient of the
    /// layer's output.
    pub(crate) fn weight_gradients(
        &self,
        cx: &mut StepContext<'_>,
        AdapterGradient { saved, grad_low }: AdapterGradient,
        input: Tensor,
        grad_output: Tensor,
    ) -> Result<()> {
        let accumulate = adds_to_gradients(cx);
        if let Some(grad) = self.a.grad {
            let dropped = dropout_backward(cx, "lora_input_again", input, saved.dropout)?;
            multiply(cx, saved.offsets, Gemm::wgrad(grad_low, dropped, grad, accumulate))?;
        }
        let Some(grad) = self.b.grad else { return Ok(()) };
        for One { low, output, rows: (first, count) } in self.each() {
            let columns = GemmColumns { a: output, b: low, ..GemmColumns::ALL };
            let product = Gemm::wgrad(grad_output, saved.low, grad.narrow(first, count), accumulate);
            multiply(cx, saved.offsets, Gemm { columns, ..product })?;
        }
        Ok(())
    }
}
