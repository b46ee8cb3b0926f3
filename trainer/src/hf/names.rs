//! What our parameters are called, and how they lie, in files of other systems.

use std::ops::Range;

use device::ops::NormKind;
use engine::model::{FeedForward, GptShape, Position, gpt};

/// Whose names and layouts a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Our own: a tensor a parameter, without padding.
    Ours,
    /// `GPT2LMHeadModel` of `transformers`: its `Conv1D` keeps matrices as `(in, out)`.
    Gpt2,
    /// `LlamaForCausalLM` of `transformers`: queries, keys and values, and gate and up, are tensors of their own.
    Llama,
}

impl Family {
    /// The Hugging Face family a shape belongs to, or which of its options no family has.
    pub fn of(shape: &GptShape) -> Result<Family, &'static str> {
        let learned = shape.position == Position::Learned;
        if !shape.attention {
            return Err("model.attention = false");
        }
        match (shape.norm, shape.feed_forward, shape.position) {
            (NormKind::Layer, FeedForward::Gelu, Position::Learned) if !shape.bias => Err("model.bias = false"),
            (NormKind::Layer, FeedForward::Gelu, Position::Learned) if shape.kv_heads != shape.heads => {
                Err("model.kv_heads below model.heads")
            }
            (NormKind::Layer, FeedForward::Gelu, Position::Learned) => Ok(Family::Gpt2),
            (NormKind::Rms, FeedForward::SwiGlu, Position::Rotary { .. }) => Ok(Family::Llama),
            (NormKind::Rms, ..) if learned => Err("model.norm = \"rmsnorm\" with model.position = \"learned\""),
            _ => Err("the mix of model.norm, model.activation and model.position"),
        }
    }
}

/// A tensor of a file: these rows of one of our parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name in the file.
    pub name: String,
    /// Rows of the parameter.
    pub rows: Range<usize>,
}

/// One of our parameters, and the tensors that hold it in files of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Our name.
    pub name: String,
    /// Our shape, padding not counted.
    pub shape: Vec<usize>,
    /// The tensors, in the order of their rows, which together are all rows.
    pub parts: Vec<Part>,
    /// The file has the transpose; such a parameter has one part.
    pub transposed: bool,
}

/// All parameters of a shape, in their order, as files of the family hold them.
pub fn entries(shape: &GptShape, family: Family) -> Vec<Entry> {
    let specs = gpt(shape.clone()).specs;
    specs
        .into_iter()
        .map(|spec| {
            let mut sizes = spec.shape.sizes().to_vec();
            sizes[0] = spec.rows;
            let mut at = 0;
            let parts = part_names(shape, family, &spec.name).into_iter().map(|(name, rows)| {
                let rows = at..at + rows.unwrap_or(spec.rows);
                at = rows.end;
                Part { name, rows }
            });
            let parts: Vec<Part> = parts.collect();
            let linear = spec.name.starts_with("h.") && sizes.len() == 2;
            Entry { shape: sizes, parts, transposed: family == Family::Gpt2 && linear, name: spec.name }
        })
        .collect()
}

/// The tensors that hold a parameter, with their rows where they have not all.
fn part_names(shape: &GptShape, family: Family, name: &str) -> Vec<(String, Option<usize>)> {
    let whole = |name: String| vec![(name, None)];
    match family {
        Family::Ours => whole(name.into()),
        Family::Gpt2 if name == "lm_head.weight" => whole(name.into()),
        Family::Gpt2 => whole(format!("transformer.{name}")),
        Family::Llama => {
            let Some((block, inner)) = name.strip_prefix("h.").and_then(|rest| rest.split_once('.')) else {
                return whole(match name {
                    "wte.weight" => "model.embed_tokens.weight".into(),
                    "lm_head.weight" => name.into(),
                    _ => name.replace("ln_f", "model.norm"),
                });
            };
            let layer = format!("model.layers.{block}");
            let (module, kind) = inner.rsplit_once('.').unwrap_or((inner, ""));
            let (q_rows, kv_rows) = (shape.hidden, shape.kv_heads * shape.head_dim());
            match module {
                "attn.c_attn" => [("q", q_rows), ("k", kv_rows), ("v", kv_rows)]
                    .map(|(part, rows)| (format!("{layer}.self_attn.{part}_proj.{kind}"), Some(rows)))
                    .into(),
                "mlp.c_fc" => {
                    ["gate", "up"].map(|part| (format!("{layer}.mlp.{part}_proj.{kind}"), Some(shape.ffn))).into()
                }
                "attn.c_proj" => whole(format!("{layer}.self_attn.o_proj.{kind}")),
                "mlp.c_proj" => whole(format!("{layer}.mlp.down_proj.{kind}")),
                "ln_1" => whole(format!("{layer}.input_layernorm.{kind}")),
                _ => whole(format!("{layer}.post_attention_layernorm.{kind}")),
            }
        }
    }
}

impl Entry {
    /// Values of a row.
    fn width(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The shape of a part in its file.
    pub fn part_shape(&self, part: &Part) -> Vec<usize> {
        let mut sizes = self.shape.clone();
        sizes[0] = part.rows.len();
        if self.transposed {
            sizes.reverse();
        }
        sizes
    }

    /// The parameter's values from those of its parts, each as its file has them.
    pub fn join(&self, parts: &[Vec<f32>]) -> Vec<f32> {
        match parts {
            [whole] if self.transposed => transpose(whole, self.width(), self.shape[0]),
            parts => parts.concat(),
        }
    }

    /// A part's values, as its file has them, from the parameter's.
    pub fn split(&self, values: &[f32], part: &Part) -> Vec<f32> {
        let width = self.width();
        let rows = &values[part.rows.start * width..part.rows.end * width];
        if self.transposed { transpose(rows, part.rows.len(), width) } else { rows.to_vec() }
    }
}

/// The transpose of `(rows, columns)`.
fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut transposed = Vec::with_capacity(values.len());
    for column in 0..columns {
        transposed.extend((0..rows).map(|row| values[row * columns + column]));
    }
    transposed
}
