//! The first layer: tokens to hidden states.

use device::ops::{DropoutSite, Embedding, EmbeddingBackward, SequenceShare};
use device::{DType, Tensor};
use graph_manager::Result;

use crate::batch_sizes::{BatchSizes, sequence_share};
use crate::model::buffers::all_rows;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::dropout::{DropoutLayer, drop_in_place, dropout_backward};
use crate::model::layer::{Layer, Saved};
use crate::model::sequence::{Hidden, TokensHere};
use crate::model::tensor_parallel::TensorParallel;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

/// The table of tokens.
pub(crate) const TOKEN_TABLE: &str = "wte.weight";
/// The table of learned positions.
const POSITION_TABLE: &str = "wpe.weight";

/// Whether a parameter is the table of tokens, possibly the head's too, or that of learned positions.
pub fn is_embedding(spec: &ParamSpec) -> bool {
    [TOKEN_TABLE, POSITION_TABLE].contains(&&*spec.name)
}

/// The parameters that this rank has of layer 0: the table of tokens (a tied head uses it too), and learned positions.
pub(crate) fn embedding_params(shape: &ShardedShape<'_>) -> Vec<ParamSpec> {
    let tokens = ParamSpec { sparse: !shape.shape.tied, ..shape.vocabulary_table(TOKEN_TABLE, 0) };
    let table = |positions| {
        let most = shape.shape.max_seq_len;
        assert!(positions >= most, "{positions} learned positions for {most} tokens");
        let sizes = [positions, shape.shape.hidden];
        ParamSpec { sparse: true, ..ParamSpec::new(POSITION_TABLE, sizes, shape.shape.matrix_init(), 0) }
    };
    [tokens].into_iter().chain(shape.shape.position.learned().map(table)).collect()
}

/// Looks tokens up in a table, and adds learned positions if there are any.
pub(crate) struct EmbeddingLayer {
    /// The table, `(padded vocab, hidden)`, or this rank's rows of the table.
    pub(crate) table: Param,
    /// The token of the first row here.
    pub(crate) first_token: usize,
    /// The factor of embedded tokens.
    pub(crate) scale: f32,
    /// `(positions, hidden)`: a sample takes the first of them; `None` if positions are not learned.
    pub(crate) positions: Option<Param>,
    /// The tokens of samples on this rank, and the tokens' [positions](crate::model::StepTensors::positions).
    pub(crate) here: TokensHere,
    pub(crate) own_positions: Option<Tensor>,
    pub(crate) sequence: SequenceShare,
    pub(crate) dropout: DropoutLayer,
    pub(crate) dtype: DType,
    pub(crate) ranks: TensorParallel,
}

struct SavedTokens {
    /// `(batch, seq)`, i32.
    tokens: Tensor,
    position_ids: Option<Tensor>,
    dropout: Option<DropoutSite>,
}

impl EmbeddingLayer {
    /// The layer over its parameters.
    pub(crate) fn build(builder: &LayerBuilder<'_>) -> EmbeddingLayer {
        let LayerBuilder { of, params, step } = builder;
        EmbeddingLayer {
            here: step.here.clone(),
            own_positions: step.positions.filter(|_| of.shape.position.learned().is_some()),
            sequence: sequence_share(&of.parallel.ranks),
            table: params.get(TOKEN_TABLE),
            positions: of.shape.position.learned().map(|_| params.get(POSITION_TABLE)),
            dropout: of.hidden_dropout(0, 0),
            first_token: of.first_token(),
            scale: of.shape.embedding_scale(),
            dtype: of.shape.precision.activations(),
            ranks: of.parallel.clone(),
        }
    }
}

impl EmbeddingLayer {
    /// `(samples, tokens)`, i32: the positions of the tokens here, if ranks divide samples and positions are learned.
    fn own_positions(&self, cx: &StepContext<'_>) -> Option<Tensor> {
        let BatchSizes { samples, tokens_per_sample } = BatchSizes::of(cx);
        let first = samples * self.here.first_row(tokens_per_sample);
        self.own_positions.map(|all| all.view(first, [samples, tokens_per_sample]))
    }

    /// The rows of a table of positions that the samples of the step take. Training steps set the gradients of the
    /// others to 0.
    fn in_use(&self, cx: &StepContext<'_>, table: Option<Tensor>) -> Option<Tensor> {
        table.map(|table| table.narrow(0, BatchSizes::of(cx).tokens_per_sample * self.sequence.ranks))
    }
}

impl Layer for EmbeddingLayer {
    /// From tokens `(batch, seq)` to `(batch, seq, hidden)`, or with sequence parallelism to this rank's rows.
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Saved)> {
        let all = all_rows(cx, "embedded", self.table.weight.shape.last(), self.dtype)?;
        let dropout = self.dropout.site(cx, input.samples.record);
        let position_ids = input.samples.position_ids().or_else(|| self.own_positions(cx));
        let positions = self.in_use(cx, self.positions.map(|positions| positions.weight));
        cx.run(Embedding {
            tokens: input.x,
            table: self.table.weight,
            first_token: self.first_token,
            scale: self.scale,
            positions: self.ranks.on_first_rank(positions),
            position_ids,
            output: all,
        })?;
        // One rank's table has the token, the others add zeros: the sum is exact.
        let x = self.ranks.reduce(cx, "embedded_here", all)?;
        drop_in_place(cx, x, dropout)?;
        let saved = SavedTokens { tokens: input.x, position_ids, dropout };
        Ok((Hidden { x, delta: None, ..input }, Saved::new(saved)))
    }

    /// `grad` is that of the embedded tokens. It is returned as it is: no layer comes before, so nothing reads it.
    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved, grad: Tensor) -> Result<Tensor> {
        let saved: &SavedTokens = saved.get();
        let grad_table = self.table.grad;
        let grad_positions = self.in_use(cx, self.positions.and_then(|positions| positions.grad));
        if grad_table.is_none() && grad_positions.is_none() {
            return Ok(grad);
        }
        let grad_output = dropout_backward(cx, "grad_embedded", grad, saved.dropout)?;
        let grad_output = self.ranks.gather_rows(cx, "all_grad_embedded", grad_output)?;
        let (tokens, first_token, scale) = (saved.tokens, self.first_token, self.scale);
        let of_tokens = EmbeddingBackward { tokens, grad_output, grad_table, first_token, scale, grad_positions };
        let Some(position_ids) = saved.position_ids else {
            cx.run(of_tokens)?;
            return Ok(grad);
        };
        cx.run(EmbeddingBackward { grad_positions: None, ..of_tokens })?;
        // The table of positions is treated as a table of tokens: the positions are the tokens.
        if grad_positions.is_some() {
            cx.run(EmbeddingBackward {
                tokens: position_ids,
                grad_output,
                grad_table: grad_positions,
                first_token: 0,
                scale: 1.0,
                grad_positions: None,
            })?;
        }
        Ok(grad)
    }
}
