//! The number formats that a model computes in, by parameter and by matrix product.

use common::choice;
use device::DType;

use crate::params::ParamSpec;

choice! {
    /// A precision recipe. In all of them master weights, `main_grad` by default, optimizer state, statistics of norms and
    /// losses are f32, and matrix products accumulate in f32.
    pub enum Precision {
        /// f32 everywhere.
        F32 = "f32",
        /// f32 everywhere. On a GPU matrix products round their inputs to TF32 (10 bits of mantissa).
        Tf32 = "tf32",
        /// bf16 weights and activations.
        Bf16 = "bf16",
    }
}

/// Two of a linear layer's three matrix products. Their output is an activation or the gradient of one. The third is
/// the weight gradient (wgrad). Its output is `main_grad`, f32 or as [`ParamSpec::grad_type`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// The output, from input and weight.
    Forward,
    /// The input gradient (dgrad), from output gradient and weight.
    InputGradient,
}

impl Precision {
    /// The type of the values that pass between layers: activations and their gradients.
    pub fn activations(self) -> DType {
        match self {
            Precision::F32 | Precision::Tf32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
        }
    }

    /// The type in which layers read a parameter's weights.
    pub fn weights(self, spec: &ParamSpec) -> DType {
        if spec.always_f32 { DType::F32 } else { self.activations() }
    }

    /// The type of a product's output.
    pub fn output(self, product: Product) -> DType {
        match product {
            Product::Forward | Product::InputGradient => self.activations(),
        }
    }

    /// Whether a GPU rounds the f32 inputs of matrix products to TF32; see
    /// [`CudaOptions::tf32`](device::cuda::CudaOptions::tf32).
    pub fn rounds_to_tf32(self) -> bool {
        self == Precision::Tf32
    }

    /// The declared parameters, with weights in the recipe's types.
    pub(crate) fn apply(self, specs: impl IntoIterator<Item = ParamSpec>) -> Vec<ParamSpec> {
        specs.into_iter().map(|spec| ParamSpec { dtype: self.weights(&spec), ..spec }).collect()
    }
}
