//! The first difference between a step with graphs and the same step run eagerly.

use std::fmt::{Display, Formatter};

use device::{DType, F8E4M3, F8E5M2, Float, bf16};

/// The first tensor, in the order of the step, that has other bits if its region runs as a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The region; of a graph that holds several, the one that wrote the tensor last.
    pub region: String,
    /// The operation that wrote the tensor last.
    pub operation: &'static str,
    /// The tensor's buffer.
    pub tensor: String,
    /// Its address in the step with graphs.
    pub address: u64,
    /// Its type.
    pub dtype: DType,
    /// Its elements.
    pub elements: usize,
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
    /// Its value with graphs.
    pub graphed: String,
    /// Its value without.
    pub eager: String,
}

impl DifferingValues {
    /// Compares the bytes of two tensors of that type.
    pub(crate) fn between(graphed: &[u8], eager: &[u8], dtype: DType) -> Option<DifferingValues> {
        let size = dtype.size();
        let differ = |at: &usize| graphed[at * size..(at + 1) * size] != eager[at * size..(at + 1) * size];
        let mut differing = (0..graphed.len() / size).filter(differ);
        let first = differing.next()?;
        let shown = |bytes: &[u8]| value(&bytes[first * size..(first + 1) * size], dtype);
        let elements = 1 + differing.count();
        Some(DifferingValues { elements, first, graphed: shown(graphed), eager: shown(eager) })
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
        DType::U8 => format!("byte {}", bytes[0]),
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Difference { region, operation, tensor, dtype, elements, values, .. } = self;
        write!(
            f,
            "{region}: `{tensor}` ({elements} x {dtype}, written by `{operation}`) has other bits with graphs: "
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
