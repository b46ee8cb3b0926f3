//! A transformer that decodes: forward only, with keys and values, or latents, of all tokens so far in a cache.

use device::ops::{Embedding, Epilogue, Gemm, SoftCap, TakeRows};
use device::{Area, DType, Device, Shape, Tensor};
use graph_manager::Result;

use super::block::Block;
use super::branch::Branch;
use super::embedding::EmbeddingLayer;
use super::head::LanguageHead;
use super::rotary_tables;
use super::shape::GptShape;
use crate::model::architecture::StepTensors;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::loss_term::{LossTerm, TermSums};
use crate::model::part::DecodeStep;
use crate::model::sequence::{RotaryTables, TokensHere};
use crate::model::tensor_parallel::TensorParallel;
use crate::params::Params;
use crate::step_policy::StepContext;

/// The position of a forward in the text, in device memory: one graph serves every position.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// `(1)`, i32: the position of the first new token.
    pub start: Tensor,
    /// `(1)`, i32: the new token whose logits are wanted, counted from the first.
    pub wanted: Tensor,
}

/// The layers of a GPT with a cache for one text of up to `max_seq_len` tokens.
pub struct Decoder {
    embedding: EmbeddingLayer,
    /// The branches of all blocks, each with a cache `(1, max_seq_len, width)` if the branch needs one.
    branches: Vec<(Branch, Option<Tensor>)>,
    head: LanguageHead,
    /// `(max_seq_len, head_dim / 2, 2)`, f32.
    rotary: RotaryTables<Tensor>,
    _areas: Vec<Area>,
}

impl Decoder {
    /// Allocates the caches of a model. Its parameters are in memory.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Device, shape: &GptShape, params: &Params) -> Result<Decoder> {
        let mut areas = Vec::new();
        let rotary = rotary_tables(shape).uploaded(device, &mut areas, &TokensHere::all())?;
        // Only the layers of training read or add to these.
        let unused = device.virtual_tensor("control", [1], DType::U8);
        let losses = TermSums { terms: [LossTerm::OF_TARGETS].into(), all: unused };
        let step = StepTensors {
            control: unused,
            losses,
            expert_loads: None,
            mismatched_rewards: None,
            rows_beyond: None,
            rotary,
            here: TokensHere::all(),
            positions: None,
        };
        let of = ShardedShape { shape, parallel: &TensorParallel::alone() };
        let builder = LayerBuilder { of, params, step };
        let mut branches = Vec::new();
        for block in 0..shape.layers {
            for branch in Block::build(&builder, block).branches {
                let cache = match branch.part.cache_width() {
                    Some(width) => {
                        let name = format!("cache of block {block}");
                        Some(device.allocate_tensor(
                            &mut areas,
                            &name,
                            [1, shape.max_seq_len, width],
                            shape.precision.activations(),
                        )?)
                    }
                    None => None,
                };
                branches.push((branch, cache));
            }
        }
        // A row is written before it is read. But an operation reads the cache as one buffer, and all of it must have
        // values.
        for cache in branches.iter().filter_map(|(_, cache)| *cache) {
            device.zero(&cache)?;
        }
        let (embedding, head) = (EmbeddingLayer::build(&builder), LanguageHead::build(&builder));
        Ok(Decoder { embedding, branches, head, rotary, _areas: areas })
    }

    /// Bytes of the caches of all blocks.
    pub fn cache_bytes(&self) -> usize {
        self.branches.iter().filter_map(|(_, cache)| *cache).map(|cache| cache.bytes()).sum()
    }

    /// Reads `tokens` `(1, rows)` at the cursor, and writes the logits after the wanted one to `logits`
    /// `(1, padded vocab)`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn forward(&self, cx: &mut StepContext<'_>, tokens: Tensor, cursor: Cursor, logits: Tensor) -> Result<()> {
        let Decoder { embedding, branches, head, .. } = self;
        let (rows, hidden) = (tokens.shape.last(), embedding.table.weight.shape.last());
        let positions = match embedding.positions {
            Some(table) => Some(take_rows(cx, "positions", table.weight, cursor.start, rows)?),
            None => None,
        };
        let angles = self.rotary.try_map(|table| take_rows(cx, "angles", *table, cursor.start, rows))?;
        let x = cx.tensor("embedded", [1, rows, hidden], embedding.dtype)?;
        cx.run(Embedding {
            tokens,
            table: embedding.table.weight,
            positions,
            position_ids: None,
            output: x,
            first_token: 0,
            scale: embedding.scale,
        })?;
        let mut stream = (x, None);
        for (branch, cache) in branches {
            let step = DecodeStep { angles, start: cursor.start, cache: *cache };
            stream = branch.decode(cx, stream, &step)?;
        }
        let (_, normed, _) = head.norm.forward(cx, stream.0, stream.1)?;
        let normed = normed.reshape([rows, hidden]);
        let wanted = take_rows(cx, "wanted", normed, cursor.wanted, 1)?;
        cx.run(Gemm::linear(wanted, head.table.weight, logits, Epilogue::None))?;
        head.soft_cap.map_or(Ok(()), |cap| cx.run(SoftCap { values: logits, cap }))
    }
}

/// `rows` consecutive rows of a table, beginning at the row that `start` holds.
fn take_rows(
    cx: &mut StepContext<'_>,
    name: &'static str,
    table: Tensor,
    start: Tensor,
    rows: usize,
) -> Result<Tensor> {
    let mut sizes = table.shape.sizes().to_vec();
    sizes[0] = rows;
    let output = cx.tensor(name, Shape::new(&sizes), table.dtype)?;
    cx.run(TakeRows { table, start, output })?;
    Ok(output)
}
