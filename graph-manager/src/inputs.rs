//! The inputs of a graph, in words.

use device::{DType, Shape, Tensor};

use crate::error::Result;
use crate::tensor_tree::TensorTree;

/// An input in the words of errors.
pub(crate) struct Input {
    /// The input's name in the struct of inputs.
    pub(crate) name: &'static str,
    pub(crate) tensor: Tensor,
}

/// All inputs in a tree, in order.
pub(crate) fn inputs(tree: &impl TensorTree) -> Result<Vec<Input>> {
    let mut all = Vec::new();
    tree.map(&mut |name, tensor| {
        all.push(Input { name, tensor });
        Ok(tensor)
    })?;
    Ok(all)
}

/// A shape and a type, such as `(8, 64) f32`.
pub(crate) fn in_words((shape, dtype): (Shape, DType)) -> String {
    format!("{shape:?} {dtype}")
}

/// The first difference between the inputs of a call and the inputs of the capture, in words. `noun` names an input,
/// such as `input`.
pub(crate) fn difference(noun: &str, now: &[Input], captured: &[(Shape, DType)]) -> Option<String> {
    if now.len() != captured.len() {
        return Some(format!("the number of its {noun}s is {}, and was {} at the capture", now.len(), captured.len()));
    }
    now.iter().zip(captured).enumerate().find_map(|(number, (Input { name, tensor }, was))| {
        let is = (tensor.shape, tensor.dtype);
        // The name of a tensor that is not in a struct says nothing.
        let named = if *name == "tensor" { String::new() } else { format!(" (`{name}`)") };
        let (is_in_words, was_in_words) = (in_words(is), in_words(*was));
        (is != *was).then(|| format!("{noun} {number}{named} is {is_in_words}, and was {was_in_words} at the capture"))
    })
}
