//! Token and position embedding.

use crate::Float;
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{Embedding, EmbeddingBackward};

/// The row of a token in a table of `rows` rows that begins with token `first`. `None` for a token outside of it.
fn row(token: i32, first: usize, rows: usize) -> Option<usize> {
    usize::try_from(token).ok()?.checked_sub(first).filter(|&row| row < rows)
}

impl HostKernel for Embedding {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => forward::<T>(self, pool));
    }
}

fn forward<T: Float>(op: &Embedding, pool: &Pool) {
    let (hidden, seq, vocab) = (op.table.shape.last(), op.tokens.shape.last(), op.table.shape.rows());
    let tokens = view::read::<i32>(&op.tokens);
    let table = view::read::<T>(&op.table);
    let positions = op.positions.as_ref().map(view::read::<T>);
    let position_ids = op.position_ids.as_ref().map(view::read::<i32>);
    pool.for_each_chunk(view::write::<T>(&op.output), hidden, |at, out| {
        match row(tokens[at], op.first_token, vocab) {
            Some(row) => {
                let row = &table[row * hidden..(row + 1) * hidden];
                out.iter_mut().zip(row).for_each(|(out, x)| *out = T::from_f32(op.scale * x.to_f32()));
            }
            None => out.fill(T::from_f32(0.0)),
        }
        if let Some(positions) = positions {
            let position = position_ids.map_or(at % seq, |ids| ids[at] as usize);
            let position = &positions[position * hidden..(position + 1) * hidden];
            out.iter_mut().zip(position).for_each(|(out, p)| *out = T::from_f32(out.to_f32() + p.to_f32()));
        }
    });
}

/// Table rows of one task. It adds up their gradients.
const ROWS: usize = 64;

impl HostKernel for EmbeddingBackward {
    /// Each task owns a range of table rows: it goes through all tokens in order and adds those
    /// of its rows.
    fn run(&self, pool: &Pool) {
        with_float!(self.grad_output.dtype, T => backward::<T>(self, pool));
    }
}

fn backward<T: Float>(op: &EmbeddingBackward, pool: &Pool) {
    let (hidden, seq) = (op.grad_output.shape.last(), op.tokens.shape.last());
    let tokens = view::read::<i32>(&op.tokens);
    let grad = view::read::<T>(&op.grad_output);
    let add = |to: &mut [f32], at: usize, scale: f32| {
        to.iter_mut().zip(&grad[at * hidden..]).for_each(|(to, x)| *to += scale * x.to_f32());
    };
    if let Some(table) = &op.grad_table {
        let vocab = table.shape.rows();
        pool.for_each_chunk(view::write::<f32>(table), ROWS * hidden, |chunk, rows| {
            for (at, &token) in tokens.iter().enumerate() {
                if let Some(row) = row(token, op.first_token, vocab)
                    && row / ROWS == chunk
                {
                    add(&mut rows[(row - chunk * ROWS) * hidden..][..hidden], at, op.scale);
                }
            }
        });
    }
    if let Some(positions) = &op.grad_positions {
        pool.for_each_chunk(view::write::<f32>(positions), hidden, |position, row| {
            for at in (position..tokens.len()).step_by(seq).filter(|_| position < seq) {
                add(row, at, 1.0);
            }
        });
    }
}
