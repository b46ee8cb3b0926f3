//! The properties of a product that decide the choice of an algorithm: sizes, types, epilogue and alignment, but not
//! addresses.

use std::fmt;

use crate::ops::{Epilogue, Fp8Scales, Gemm, GemmColumns, Scale};
use crate::{DType, Tensor};

/// No kernel profits from stricter alignment than this. Device memory starts at multiples of it.
const ALIGNMENT: u16 = 256;

/// A matrix product without its addresses. `m`, `n` and `k` are those of [`Gemm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GemmProblem {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    /// Elements from row to row of `a`, `b` and `out`, if they are columns of wider tensors.
    pub(super) strides: Option<[usize; 3]>,
    /// The types of `a` and `b`. They differ only if both are 8-bit types.
    pub(super) inputs: [DType; 2],
    pub(super) output: DType,
    /// Present if the factors are of 8-bit types.
    pub(super) fp8: Option<Fp8Problem>,
    pub(super) accumulate: bool,
    pub(super) tf32: bool,
    pub(super) epilogue: EpilogueKind,
    /// The largest power of two, at most 256, that divides the address: of `a`, `b`, `out`, `pre` and `bias`.
    pub(super) alignment: [u16; 5],
    /// Whether bias and saved input are of the type that the library demands.
    same_type: bool,
}

/// [`Fp8Scales`] without its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fp8Problem {
    /// Of `a` and `b`.
    pub(super) scales: [ScaleKind; 2],
    pub(super) fast_accumulation: bool,
}

impl Fp8Problem {
    fn of(scales: &Fp8Scales) -> Fp8Problem {
        let fast_accumulation = scales.fast_accumulation;
        Fp8Problem { scales: [&scales.a, &scales.b].map(ScaleKind::of), fast_accumulation }
    }
}

/// The kind of a [`Scale`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ScaleKind {
    Tensor,
    Rows,
    Groups,
    Blocks,
}

impl ScaleKind {
    fn of(scale: &Scale) -> ScaleKind {
        match scale {
            Scale::Tensor(_) => ScaleKind::Tensor,
            Scale::Rows(_) => ScaleKind::Rows,
            Scale::Groups(_) => ScaleKind::Groups,
            Scale::Blocks(_) => ScaleKind::Blocks,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ScaleKind::Tensor => "tensor",
            ScaleKind::Rows => "rows",
            ScaleKind::Groups => "groups",
            ScaleKind::Blocks => "blocks",
        }
    }
}

/// The kind of an [`Epilogue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EpilogueKind {
    None,
    Bias,
    BiasGelu,
    GeluBackward,
    GeluBackwardActivated,
}

impl EpilogueKind {
    /// Whether the library writes or reads a second matrix, `pre`.
    pub(super) fn has_auxiliary(self) -> bool {
        !matches!(self, EpilogueKind::None | EpilogueKind::Bias)
    }
}

impl GemmProblem {
    pub(super) fn of(op: &Gemm, tf32: bool) -> GemmProblem {
        let (m, n, k) = op.dimensions();
        let (epilogue, bias, pre) = match op.epilogue {
            Epilogue::None => (EpilogueKind::None, None, None),
            Epilogue::Bias(bias) => (EpilogueKind::Bias, Some(bias), None),
            Epilogue::BiasGelu { bias, pre } => (EpilogueKind::BiasGelu, Some(bias), Some(pre)),
            Epilogue::GeluBackward { pre, activated: None } => (EpilogueKind::GeluBackward, None, Some(pre)),
            Epilogue::GeluBackward { pre, .. } => (EpilogueKind::GeluBackwardActivated, None, Some(pre)),
        };
        let aligned = |tensor: Option<Tensor>| tensor.map_or(ALIGNMENT, |tensor| alignment(tensor.address));
        let places = op.places();
        let [a, b, out] = [(op.a, places[0]), (op.b, places[1]), (op.out, places[2])]
            .map(|(tensor, place)| alignment(place.address(&tensor)));
        let fp8 = op.fp8.as_ref().map(Fp8Problem::of);
        let demanded = bias_type(op.out.dtype, fp8);
        GemmProblem {
            m,
            n,
            k,
            transpose_a: op.transpose_a,
            transpose_b: op.transpose_b,
            strides: (op.columns != GemmColumns::ALL).then(|| places.map(|place| place.stride)),
            inputs: [op.a.dtype, op.b.dtype],
            output: op.out.dtype,
            fp8,
            accumulate: op.accumulate,
            tf32: tf32 && op.a.dtype == DType::F32,
            epilogue,
            alignment: [a, b, out, aligned(pre), aligned(bias)],
            same_type: [pre, bias].into_iter().flatten().all(|tensor| tensor.dtype == demanded),
        }
    }

    /// The type of a bias that cuBLASLt fuses.
    pub(super) fn bias_type(&self) -> DType {
        bias_type(self.output, self.fp8)
    }

    /// Whether cuBLASLt may be asked to fuse the epilogue, by its rules for bias and auxiliary matrices.
    pub(super) fn fusible(&self) -> bool {
        self.same_type && !(self.epilogue.has_auxiliary() && (!self.n.is_multiple_of(8) || self.alignment[3] < 16))
    }
}

/// cuBLASLt takes a bias of the output's type, except that of a product of 8-bit factors is bf16.
fn bias_type(output: DType, fp8: Option<Fp8Problem>) -> DType {
    if fp8.is_some() { DType::Bf16 } else { output }
}

fn alignment(address: u64) -> u16 {
    1 << address.trailing_zeros().min(ALIGNMENT.trailing_zeros())
}

/// One word: the key in the table of choices.
impl fmt::Display for GemmProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |transposed| if transposed { 't' } else { 'n' };
        write!(f, "{}x{}x{}-", self.m, self.n, self.k)?;
        write!(f, "{}{}-", letter(self.transpose_a), letter(self.transpose_b))?;
        if let Some([a, b, out]) = self.strides {
            write!(f, "strides{a},{b},{out}-")?;
        }
        let [a, b] = self.inputs;
        match self.fp8 {
            None => write!(f, "{a}{}", if self.tf32 { "(tf32)" } else { "" })?,
            Some(Fp8Problem { scales, fast_accumulation }) => {
                let [of_a, of_b] = scales.map(ScaleKind::name);
                let scales = if of_a == of_b { of_a.to_string() } else { format!("{of_a}x{of_b}") };
                let accumulation = if fast_accumulation { "fast" } else { "precise" };
                write!(f, "{a}x{b}({scales},{accumulation})")?;
            }
        }
        write!(f, "-{}", self.output)?;
        write!(f, "{}-{:?}", if self.accumulate { "-accumulate" } else { "" }, self.epilogue)?;
        write!(f, "{}", if self.same_type { "" } else { "(mixed)" })?;
        let [a, b, out, pre, bias] = self.alignment;
        write!(f, "-align{a},{b},{out},{pre},{bias}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Columns, Fp8Matrix};
    use crate::{BufferId, Shape};

    fn tensor(address: u64, sizes: &[usize], dtype: DType) -> Tensor {
        Tensor { address, shape: Shape::new(sizes), dtype, buffer: BufferId::NOTHING }
    }

    fn linear(epilogue: impl Fn(Tensor, Tensor) -> Epilogue, columns: usize, offset: u64) -> GemmProblem {
        let bf16 = |address, sizes: &[usize]| tensor(address, sizes, DType::Bf16);
        let (input, weight) = (bf16(4096, &[2, 8, 64]), bf16(8192, &[columns, 64]));
        let out = bf16(1 << 20, &[2, 8, columns]);
        let pre = bf16((2 << 20) + offset, &[2, 8, columns]);
        GemmProblem::of(&Gemm::linear(input, weight, out, epilogue(bf16(512, &[columns]), pre)), true)
    }

    #[test]
    fn some_columns_are_another_problem_than_a_tensor_of_their_width() {
        let bf16 = |sizes: &[usize]| tensor(4096, sizes, DType::Bf16);
        let (input, weight, out) = (bf16(&[8, 64]), bf16(&[32, 64]), bf16(&[8, 96]));
        let whole = GemmProblem::of(&Gemm::linear(input, weight, bf16(&[8, 32]), Epilogue::None), false);
        let part = |first| {
            let columns = GemmColumns { out: Some(Columns { first, count: 32 }), ..GemmColumns::ALL };
            GemmProblem::of(&Gemm { columns, ..Gemm::linear(input, weight, out, Epilogue::None) }, false)
        };
        assert_ne!(part(0), whole);
        assert_eq!(part(32).to_string(), "8x32x64-nt-strides64,64,96-bf16-bf16-None-align256,256,64,256,256");
        assert_eq!([part(0).alignment[2], part(1).alignment[2]], [256, 2]);
    }

    #[test]
    fn problems_that_differ_in_anything_but_addresses_have_different_keys() {
        let none = |_, _| Epilogue::None;
        let bias = |bias, _| Epilogue::Bias(bias);
        let gelu = |bias, pre| Epilogue::BiasGelu { bias, pre };
        let problems =
            [linear(none, 32, 0), linear(bias, 32, 0), linear(gelu, 32, 0), linear(gelu, 40, 0), linear(gelu, 32, 2)];
        for (i, a) in problems.iter().enumerate() {
            assert!(problems[..i].iter().all(|b| a != b && a.to_string() != b.to_string()), "{a}");
            assert!(!a.to_string().contains(char::is_whitespace), "{a} is not one word");
        }
        assert_eq!(linear(gelu, 32, 0), linear(gelu, 32, 256));
        assert!(!problems[0].tf32, "TF32 is for f32 alone");
    }

    fn fp8(types: [DType; 2], kinds: [ScaleKind; 2], fast: bool, out: DType, epilogue: Epilogue) -> GemmProblem {
        let scale = |kind| match kind {
            ScaleKind::Tensor => Scale::Tensor(tensor(512, &[1], DType::F32)),
            ScaleKind::Rows => Scale::Rows(tensor(512, &[32], DType::F32)),
            ScaleKind::Groups => Scale::Groups(tensor(512, &Scale::group_shape(32, 64), DType::F32)),
            ScaleKind::Blocks => Scale::Blocks(tensor(512, &Scale::block_shape(32, 64), DType::F32)),
        };
        let matrix =
            |index: usize| Fp8Matrix { values: tensor(4096, &[32, 64], types[index]), scale: scale(kinds[index]) };
        let product = Gemm::fp8(matrix(0), matrix(1), tensor(1 << 20, &[32, 32], out), fast);
        GemmProblem::of(&Gemm { epilogue, ..product }, true)
    }

    #[test]
    fn products_of_8_bit_factors_differ_by_both_types_scales_and_accumulation() {
        use DType::{Bf16, F8E4M3, F8E5M2, F32};
        use ScaleKind::{Blocks, Groups, Rows, Tensor};
        let (e4, mixed) = ([F8E4M3; 2], [F8E5M2, F8E4M3]);
        let problems = [
            fp8(e4, [Tensor; 2], true, Bf16, Epilogue::None),
            fp8(e4, [Tensor; 2], false, Bf16, Epilogue::None),
            fp8(e4, [Rows; 2], true, Bf16, Epilogue::None),
            fp8(mixed, [Tensor; 2], true, Bf16, Epilogue::None),
            fp8([F8E4M3, F8E5M2], [Tensor; 2], true, Bf16, Epilogue::None),
            fp8(e4, [Tensor; 2], true, F32, Epilogue::None),
            fp8(e4, [Groups; 2], false, Bf16, Epilogue::None),
            fp8(e4, [Groups, Blocks], false, Bf16, Epilogue::None),
            fp8(e4, [Blocks, Groups], false, Bf16, Epilogue::None),
        ];
        for (i, a) in problems.iter().enumerate() {
            assert!(problems[..i].iter().all(|b| a != b && a.to_string() != b.to_string()), "{a}");
            assert!(!a.to_string().contains(char::is_whitespace), "{a} is not one word");
        }
        assert_eq!(
            problems[3].to_string(),
            "32x32x64-nt-fp8-e5m2xfp8-e4m3(tensor,fast)-bf16-None-align256,256,256,256,256"
        );
        assert!(problems[7].to_string().contains("(groupsxblocks,precise)"), "{}", problems[7]);
    }

    #[test]
    fn the_bias_of_a_product_of_8_bit_factors_is_fused_if_it_is_bf16_whatever_the_output_is() {
        for out in [DType::Bf16, DType::F32] {
            let with = |dtype| {
                fp8([DType::F8E4M3; 2], [ScaleKind::Tensor; 2], true, out, Epilogue::Bias(tensor(512, &[32], dtype)))
            };
            assert!(with(DType::Bf16).fusible() && with(DType::Bf16).bias_type() == DType::Bf16);
            assert!(!with(DType::F32).fusible());
        }
    }

    #[test]
    fn a_gelu_is_not_asked_of_the_library_where_its_auxiliary_matrix_breaks_a_rule() {
        let gelu = |bias, pre| Epilogue::BiasGelu { bias, pre };
        assert!(linear(gelu, 32, 0).fusible());
        assert!(!linear(gelu, 36, 0).fusible(), "rows of 36 elements");
        assert!(!linear(gelu, 32, 2).fusible(), "an address that is not a multiple of 16");
        let mixed = |bias: Tensor, _| Epilogue::Bias(Tensor { dtype: DType::F32, ..bias });
        assert!(!linear(mixed, 32, 0).fusible(), "an f32 bias on a bf16 output");
    }
}
