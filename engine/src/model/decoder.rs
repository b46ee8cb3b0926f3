//! A transformer that reads on from what it has read: forward only, with the keys and values of all tokens in a cache.

use device::ops::{CachedAttention, Embedding, Epilogue, Gemm, Rotary, TakeRows};
use device::{Area, DType, Device, Tensor};
use graph_manager::Result;

use super::block::{AttentionHalf, Block};
use super::embedding::EmbeddingLayer;
use super::gpt::LayerMaker;
use super::head::LanguageHead;
use super::{GptShape, Hidden, StepTensors, TensorParallel, gpt};
use crate::params::Params;
use crate::step_policy::StepContext;

/// Where in a text a forward stands, in device memory, so that one graph serves every position.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// `(1)`, i32: the position of the first new token.
    pub start: Tensor,
    /// `(1)`, i32: which of the new tokens' logits are wanted, counted from the first.
    pub wanted: Tensor,
}

/// The layers of a GPT over a cache for one text of up to `seq` tokens.
pub struct Decoder {
    embedding: EmbeddingLayer,
    blocks: Vec<Block>,
    head: LanguageHead,
    /// `(seq, head_dim / 2, 2)`, f32.
    rotary: Option<Tensor>,
    /// Of each block, `(1, seq, 2 * kv_heads * head_dim)`.
    caches: Vec<Tensor>,
    _areas: Vec<Area>,
}

impl Decoder {
    /// Allocates the cache of a model whose parameters are in memory.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Device, shape: &GptShape, params: &Params) -> Result<Decoder> {
        let mut areas = Vec::new();
        let rotary = match gpt(shape.clone()).rotary {
            Some(table) => {
                let tensor = device.allocate_tensor(&mut areas, "rotary_table", table.shape(), DType::F32)?;
                device.upload(&tensor, &table.values())?;
                Some(tensor)
            }
            None => None,
        };
        let width = 2 * shape.kv_heads * shape.head_dim();
        let mut caches = Vec::new();
        for block in 0..if shape.attention { shape.layers } else { 0 } {
            let name = format!("cache of block {block}");
            caches.push(device.allocate_tensor(&mut areas, &name, [1, shape.seq, width], shape.dtype)?);
        }
        // Rows not yet written are not read, but a cache is one buffer: it has values from the start.
        for cache in &caches {
            device.zero(cache)?;
        }
        // What training's layers read and add to beside their parameters; nothing here does.
        let unused = device.virtual_tensor("control", [1], DType::U8);
        let step = StepTensors { control: unused, loss_sum: unused, rotary };
        let tensor = TensorParallel::alone();
        let make = LayerMaker { shape, tensor: &tensor, params, step };
        let blocks = (0..shape.layers).map(|block| make.block(block)).collect();
        Ok(Decoder { embedding: make.embedding(), blocks, head: make.head(), rotary, caches, _areas: areas })
    }

    /// Reads `tokens` `(1, rows)` at the cursor, and leaves the logits after the wanted one in `logits`
    /// `(1, padded vocab)`.
    ///
    /// # Errors
    /// What the device refused.
    pub fn forward(&self, cx: &mut StepContext<'_>, tokens: Tensor, cursor: Cursor, logits: Tensor) -> Result<()> {
        let Decoder { embedding, blocks, head, .. } = self;
        let (rows, hidden) = (tokens.shape.last(), embedding.table.weight.shape.last());
        let positions = match embedding.positions {
            Some(table) => Some(take(cx, "positions", table.weight, cursor.start, rows)?),
            None => None,
        };
        let rotary = match self.rotary {
            Some(table) => Some(take(cx, "angles", table, cursor.start, rows)?),
            None => None,
        };
        let x = cx.tensor("embedded", [1, rows, hidden], embedding.dtype)?;
        cx.run(Embedding { tokens, table: embedding.table.weight, positions, output: x, first_token: 0 })?;
        // The record is for dropout, which a forward of this mode has not.
        let mut flow = Hidden { x, delta: None, targets: None, record: tokens };
        for (index, block) in blocks.iter().enumerate() {
            if let Some(attention) = &block.attention {
                flow = attention.read_on(cx, flow, rotary, self.caches[index], cursor.start)?;
            }
            (flow, _) = block.feed_forward.forward(cx, flow)?;
        }
        let (_, normed, _) = head.norm.forward(cx, flow.x, flow.delta)?;
        let normed = normed.reshape([rows, hidden]);
        let wanted = take(cx, "wanted", normed, cursor.wanted, 1)?;
        cx.run(Gemm::linear(wanted, head.table.weight, logits, Epilogue::None))
    }
}

impl AttentionHalf {
    /// As the forward of training, for tokens that come after those in the cache.
    fn read_on(
        &self,
        cx: &mut StepContext<'_>,
        input: Hidden,
        rotary: Option<Tensor>,
        cache: Tensor,
        start: Tensor,
    ) -> Result<Hidden> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let (rows, dtype) = (input.x.shape.rows(), input.x.dtype);
        let (x, normed, _) = self.norm.forward(cx, input.x, input.delta)?;
        let qkv = cx.tensor("qkv", [1, rows, self.qkv.width()], dtype)?;
        self.qkv.forward(cx, normed, qkv)?;
        if let Some(table) = rotary {
            cx.run(Rotary { qkv, table, heads, kv_heads, inverse: false })?;
        }
        let context = cx.tensor("context", input.x.shape, dtype)?;
        cx.run(CachedAttention { qkv, cache, start, output: context, heads, kv_heads })?;
        let delta = cx.tensor("attention_out", input.x.shape, dtype)?;
        self.projection.forward(cx, context, delta)?;
        Ok(Hidden { x, delta: Some(delta), ..input })
    }
}

/// `rows` rows of a table from the one that `start` says.
fn take(cx: &mut StepContext<'_>, name: &'static str, table: Tensor, start: Tensor, rows: usize) -> Result<Tensor> {
    let mut sizes = table.shape.sizes().to_vec();
    sizes[0] = rows;
    let output = cx.tensor(name, device::Shape::new(&sizes), table.dtype)?;
    cx.run(TakeRows { table, start, output })?;
    Ok(output)
}
