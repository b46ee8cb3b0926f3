//! Token and position embedding.

mod host;
mod launch;

use crate::ops::{Operation, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// `output[b, s] = scale * table[tokens[b, s] - first_token] + positions[s]`, or `+ positions[position_ids[b, s]]`.
///
/// The row of a token outside the table is 0: the token is another rank's, or a mistake of the data reader. Data
/// readers check ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// `(batch, seq)`, i32.
    pub tokens: Tensor,
    /// `(vocab, hidden)`.
    pub table: Tensor,
    /// The token of the table's first row.
    pub first_token: usize,
    /// The factor of the table's rows.
    pub scale: f32,
    /// `(seq or more, hidden)`, learned positions.
    pub positions: Option<Tensor>,
    /// `(batch, seq)`, i32, each below `seq`: the position of each token in its document; `None` if each sample is one
    /// document.
    pub position_ids: Option<Tensor>,
    /// `(batch, seq, hidden)`.
    pub output: Tensor,
}

impl Operation for Embedding {
    const NAME: &'static str = "embedding";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("table", self.table), ("output", self.output)])?;
        if let Some(ids) = &self.position_ids {
            ensure_values(Self::NAME, "position_ids", ids, DType::I32, self.tokens.elements())?;
        }
        check_tokens(Self::NAME, &self.tokens, &self.output, &self.table, self.positions.as_ref())
    }

    tensors! { read tokens, table, positions, position_ids; write output }

    /// Only the table's rows of the batch's tokens are touched.
    fn bytes(&self) -> f64 {
        (2 * self.output.bytes()) as f64
    }
}

fn check_tokens(
    op: &'static str,
    tokens: &Tensor,
    rows: &Tensor,
    table: &Tensor,
    positions: Option<&Tensor>,
) -> Result<()> {
    let hidden = table.shape.last();
    ensure_dtype(op, "tokens", tokens, DType::I32)?;
    ensure(op, tokens.shape.sizes().len() == 2, || format!("`tokens` is {:?}, needs (batch, seq)", tokens.shape))?;
    ensure_elements(op, "rows", rows, tokens.elements() * hidden)?;
    if let Some(positions) = positions {
        ensure(op, positions.shape.last() == hidden && positions.shape.rows() >= tokens.shape.last(), || {
            format!("`positions` is {:?}, needs ({} or more, {hidden})", positions.shape, tokens.shape.last())
        })?;
    }
    Ok(())
}

/// Gradient of [`Embedding`]: rows of `grad_output`, times `scale`, are added to the table row of their token, in token
/// order, so the result has the same bits each time. Rows of tokens outside the table are skipped.
///
/// Both gradients are added to, never overwritten: a batch touches few of the table's rows, and the table may be tied
/// to the head. If positions have ids, their gradient is that of a table with these ids as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingBackward {
    /// `(batch, seq)`, i32.
    pub tokens: Tensor,
    /// `(batch, seq, hidden)`.
    pub grad_output: Tensor,
    /// `(vocab, hidden)`, f32, added to; `None` if the table is frozen.
    pub grad_table: Option<Tensor>,
    /// The token of the table's first row.
    pub first_token: usize,
    /// The forward's.
    pub scale: f32,
    /// `(seq or more, hidden)`, f32, added to.
    pub grad_positions: Option<Tensor>,
}

impl Operation for EmbeddingBackward {
    const NAME: &'static str = "embedding_backward";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("grad_output", self.grad_output)])?;
        for (name, tensor) in [("grad_table", &self.grad_table), ("grad_positions", &self.grad_positions)] {
            if let Some(tensor) = tensor {
                ensure_dtype(Self::NAME, name, tensor, DType::F32)?;
            }
        }
        let table = self.grad_table.as_ref().unwrap_or(&self.grad_output);
        check_tokens(Self::NAME, &self.tokens, &self.grad_output, table, self.grad_positions.as_ref())
    }

    tensors! { read tokens, grad_output; update grad_table, grad_positions }

    /// As the lookup's: only rows of the batch's tokens are touched.
    fn bytes(&self) -> f64 {
        (self.grad_output.bytes() + 2 * self.grad_output.elements() * DType::F32.size()) as f64
    }
}
