//! The first difference between a step with graphs and the same step run eagerly.

use std::fmt::{Display, Formatter};

use device::{DType, F8E4M3, F8E5M2, Float, bf16};

/// When two tensors count as the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sameness {
    /// The bits of both are the same.
    #[default]
    Bits,
    /// Each number with graphs differs from that without, `x`, by at most `absolute + relative * |x|`, as in NumPy's
    /// `allclose`. It is for kernels of others whose bits differ from run to run. NaN is the same as NaN. Integers and bytes
    /// have the same bits.
    Close {
        /// The part of the difference that grows with the number: a share of the one without graphs.
        relative: f64,
        /// The part that does not, in the tensor's units.
        absolute: f64,
    },
}

impl Sameness {
    /// Whether elements of that type are the same.
    fn holds(self, graphed: &[u8], eager: &[u8], dtype: DType) -> bool {
        let Sameness::Close { relative, absolute } = self else { return graphed == eager };
        let (Some(graphed), Some(eager)) = (number(graphed, dtype), number(eager, dtype)) else {
            return graphed == eager;
        };
        let close = (graphed - eager).abs() <= absolute + relative * eager.abs();
        close || graphed == eager || graphed.is_nan() && eager.is_nan()
    }
}

/// The first tensor, in the order of the step, that is not the same if the tensor's region runs as a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The region; of a graph that holds several, the one that wrote the tensor last.
    pub region: String,
    /// The operation that wrote the tensor last.
    pub operation: &'static str,
    /// The tensor's buffer.
    pub tensor: String,
    /// The tensor's address in the step with graphs.
    pub address: u64,
    /// The tensor's type.
    pub dtype: DType,
    /// The tensor's elements.
    pub elements: usize,
    /// When tensors counted as the same.
    pub same: Sameness,
    /// The values. `None` if they were the same when both steps were run once more.
    pub values: Option<DifferingValues>,
    /// Whether the difference is gone if the host waits after each region. Then work of two regions lacks an order: for
    /// instance, it overlaps and uses the same memory.
    pub hidden_by_waits: bool,
}

/// The values of two tensors that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct DifferingValues {
    /// How many elements differ.
    pub elements: usize,
    /// The index of the first one.
    pub first: usize,
    /// The value with graphs.
    pub graphed: String,
    /// The value without graphs.
    pub eager: String,
}

impl DifferingValues {
    /// Compares the bytes of two tensors of that type.
    pub(crate) fn between(graphed: &[u8], eager: &[u8], dtype: DType, same: Sameness) -> Option<DifferingValues> {
        let size = dtype.size();
        let element = |at: usize| at * size..(at + 1) * size;
        let differ = |at: &usize| !same.holds(&graphed[element(*at)], &eager[element(*at)], dtype);
        let mut differing = (0..graphed.len() / size).filter(differ);
        let first = differing.next()?;
        let shown = |bytes: &[u8]| value(&bytes[first * size..(first + 1) * size], dtype);
        let elements = 1 + differing.count();
        Some(DifferingValues { elements, first, graphed: shown(graphed), eager: shown(eager) })
    }
}

/// One element of a floating type.
fn number(bytes: &[u8], dtype: DType) -> Option<f64> {
    match dtype {
        DType::F32 => Some(f32::from_le_bytes(bytes.try_into().unwrap_or_default()).into()),
        DType::Bf16 => Some(bf16::from_le_bytes(bytes.try_into().unwrap_or_default()).into()),
        DType::F8E4M3 => Some(F8E4M3(bytes[0]).to_f32().into()),
        DType::F8E5M2 => Some(F8E5M2(bytes[0]).to_f32().into()),
        DType::I32 | DType::U16 | DType::U8 => None,
    }
}

/// One element, as a number. All digits of an f32 are there.
fn value(bytes: &[u8], dtype: DType) -> String {
    match dtype {
        DType::F32 => format!("{:?}", f32::from_le_bytes(bytes.try_into().unwrap_or_default())),
        DType::Bf16 => format!("{:?}", bf16::from_le_bytes(bytes.try_into().unwrap_or_default())),
        DType::I32 => i32::from_le_bytes(bytes.try_into().unwrap_or_default()).to_string(),
        DType::F8E4M3 => format!("{:?}", F8E4M3(bytes[0]).to_f32()),
        DType::F8E5M2 => format!("{:?}", F8E5M2(bytes[0]).to_f32()),
        DType::U16 => format!("bits {:#06x}", u16::from_le_bytes(bytes.try_into().unwrap_or_default())),
        DType::U8 => format!("byte {}", bytes[0]),
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Difference { region, operation, tensor, dtype, elements, values, .. } = self;
        let other = match self.same {
            Sameness::Bits => "bits",
            Sameness::Close { .. } => "values, beyond the tolerance,",
        };
        write!(
            f,
            "{region}: `{tensor}` ({elements} x {dtype}, written by `{operation}`) has other {other} with graphs: "
        )?;
        match values {
            Some(DifferingValues { elements, first, graphed, eager }) => {
                write!(
                    f,
                    "{elements} elements differ, the first at index {first}: {graphed} with graphs, {eager} without"
                )?;
            }
            None => write!(f, "the difference did not come back when both steps were run once more")?,
        }
        if self.hidden_by_waits {
            write!(f, ". It is gone if the host waits after each region, so regions overlap that lack an order")?;
        }
        Ok(())
    }
}
