//! Runs one operation on a device. Its tensors have the same values on every device.

use std::cell::RefCell;
use std::collections::HashMap;

use super::guard::{Guarded, Poison, as_bytes};
use crate::random::uniforms;
use crate::{DType, Device, Element, F8E4M3, F8E5M2, Float, Op, Result, Shape, Stream, Tensor, bf16};

/// Makes an operation and its tensors on a workbench.
pub type Make = Box<dyn Fn(&mut Workbench) -> Result<Op>>;

/// The poison around the tensors of a trial.
#[derive(Clone, Copy)]
pub(super) struct Poisons {
    pub(super) all: Poison,
    /// Around and in the tensor of this number there is another one.
    pub(super) other: Option<(usize, Poison)>,
}

impl Poisons {
    pub(super) fn all(poison: Poison) -> Poisons {
        Poisons { all: poison, other: None }
    }

    fn of(&self, number: usize) -> Poison {
        self.other.filter(|(other, _)| *other == number).map_or(self.all, |(_, poison)| poison)
    }
}

/// A device, a stream, and the tensors of one trial.
pub struct Workbench {
    /// The device that computes.
    pub device: Device,
    /// The stream that operations are submitted to.
    pub stream: Stream,
    poisons: Poisons,
    tensors: Vec<Guarded>,
}

/// A tensor that an operation wrote.
pub(super) struct WrittenTensor {
    /// The tensor's number, shape and type.
    pub(super) name: String,
    pub(super) values: Vec<f64>,
    /// For each element, whether the element is the poison that was there before.
    poisoned: Vec<bool>,
    /// Some elements may be.
    in_part: bool,
}

/// The results of an operation.
pub(super) type Written = Vec<WrittenTensor>;

impl Workbench {
    /// A workbench without tensors.
    pub fn new(device: &Device) -> Workbench {
        Workbench::poisoned(&device.stream("doctor"), Poisons::all(Poison::NotANumber))
    }

    /// A workbench that runs operations on a stream, among such poison.
    pub(super) fn poisoned(stream: &Stream, poisons: Poisons) -> Workbench {
        Workbench { device: stream.device().clone(), stream: stream.clone(), poisons, tensors: Vec::new() }
    }

    fn allocate(&mut self, shape: Shape, dtype: DType) -> Result<Tensor> {
        let guarded = Guarded::new(&self.device, self.tensors.len(), shape, dtype)?;
        let tensor = guarded.tensor;
        self.tensors.push(guarded);
        Ok(tensor)
    }

    /// A tensor with values uniform in `[-1, 1)`, or any bits of u16 or u8, a function of the number of tensors before it.
    pub fn input(&mut self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        self.scaled(shape, dtype, 1.0)
    }

    /// As [`Workbench::input`], with values multiplied by `scale`.
    pub fn scaled(&mut self, shape: impl Into<Shape>, dtype: DType, scale: f32) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), dtype)?;
        let stream = self.tensors.len() as u64;
        let values = drawn(stream, tensor.elements(), |x| scale * (2.0 * x - 1.0));
        match dtype {
            DType::Bf16 => {
                self.device.upload(&tensor, &rounded::<bf16>(&values))?;
            }
            DType::F8E4M3 => self.device.upload(&tensor, &rounded::<F8E4M3>(&values))?,
            DType::F8E5M2 => self.device.upload(&tensor, &rounded::<F8E5M2>(&values))?,
            DType::U16 => {
                let bits: Vec<u16> = values.iter().map(|x| (x.to_bits() >> 4) as u16).collect();
                self.device.upload(&tensor, &bits)?;
            }
            DType::U8 => {
                let bits: Vec<u8> = values.iter().map(|x| (x.to_bits() >> 4) as u8).collect();
                self.device.upload(&tensor, &bits)?;
            }
            _ => self.device.upload(&tensor, &values)?,
        }
        Ok(tensor)
    }

    /// An f32 tensor with values uniform between two numbers.
    pub(super) fn between(&mut self, shape: impl Into<Shape>, low: f32, high: f32) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), DType::F32)?;
        let stream = self.tensors.len() as u64;
        let values = drawn(stream, tensor.elements(), |x| low + (high - low) * x);
        self.device.upload(&tensor, &values)?;
        Ok(tensor)
    }

    /// An i32 tensor of the given values.
    pub(super) fn integers(&mut self, shape: impl Into<Shape>, values: &[i32]) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), DType::I32)?;
        self.device.upload(&tensor, values)?;
        Ok(tensor)
    }

    /// A mask, u8: about half of the bytes are 0.
    pub(super) fn mask(&mut self, shape: impl Into<Shape>) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), DType::U8)?;
        let stream = self.tensors.len() as u64;
        let values = drawn(stream, tensor.elements(), |x| u8::from(x < 0.5));
        self.device.upload(&tensor, &values)?;
        Ok(tensor)
    }

    /// A block of plain data.
    pub(super) fn block<T: bytemuck::Pod>(&mut self, value: &T) -> Result<Tensor> {
        let tensor = self.allocate([size_of::<T>()].into(), DType::U8)?;
        self.device.upload(&tensor, bytemuck::bytes_of(value))?;
        Ok(tensor)
    }

    /// A tensor to be written, filled with NaN.
    pub fn output(&mut self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), dtype)?;
        match dtype {
            DType::F32 => self.device.upload(&tensor, &vec![f32::NAN; tensor.elements()])?,
            DType::Bf16 => self.device.upload(&tensor, &vec![bf16::NAN; tensor.elements()])?,
            DType::I32 => self.device.upload(&tensor, &vec![-1i32; tensor.elements()])?,
            DType::F8E4M3 => self.device.upload(&tensor, &vec![F8E4M3(0x7f); tensor.elements()])?,
            DType::F8E5M2 => self.device.upload(&tensor, &vec![F8E5M2(0x7f); tensor.elements()])?,
            DType::U16 => self.device.upload(&tensor, &vec![0xffffu16; tensor.elements()])?,
            DType::U8 => self.device.upload(&tensor, &vec![0xffu8; tensor.elements()])?,
        }
        Ok(tensor)
    }

    /// As [`Workbench::output`]. The operation may leave some elements alone.
    pub fn output_in_part(&mut self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let tensor = self.output(shape, dtype)?;
        self.tensors.iter_mut().filter(|of| of.has(&tensor)).for_each(|of| of.written_in_part = true);
        Ok(tensor)
    }

    /// Runs an operation among poison. Bytes that it does not write keep their values.
    pub(super) fn run(&self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        self.prepare(&op)?;
        let values: Vec<Vec<u8>> = self.tensors.iter().map(|of| of.values(&self.device)).collect::<Result<_>>()?;
        self.among_poison(&op, || self.stream.submit(op.clone()))?;
        let writes = op.accesses().writes;
        self.tensors.iter().zip(values).try_for_each(|(of, values)| of.restore(&self.device, &writes, &values))
    }

    /// Runs `work` among poison. It must do the same as the operation.
    ///
    /// # Errors
    /// Those of `work`; bytes changed that the operation does not declare to write.
    pub(super) fn among_poison(&self, op: &Op, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let accesses = op.accesses();
        let tensors = || self.tensors.iter().enumerate();
        let poison =
            |(number, of): (usize, &Guarded)| of.poison(&self.device, &accesses.reads, self.poisons.of(number));
        let before: Vec<Vec<u8>> = tensors().map(poison).collect::<Result<_>>()?;
        work()?;
        let mut kept = self.tensors.iter().zip(before);
        kept.try_for_each(|(of, before)| of.check_kept(&self.device, op, &accesses.writes, before))
    }

    /// Lets libraries choose their algorithms, as recording a step does.
    pub fn prepare(&self, op: &Op) -> Result<()> {
        self.device.begin_trace();
        let prepared = self.stream.submit(op.clone());
        self.device.end_trace();
        prepared
    }

    /// The results of an operation that ran among poison.
    pub(super) fn written(&self, op: &Op) -> Result<Written> {
        let accesses = op.accesses();
        let of_tensor = |tensor: &Tensor| {
            let bytes = self.device.download::<u8>(&as_bytes(tensor))?;
            let values = numbers(tensor.dtype, &bytes);
            let Some((number, of)) = self.tensors.iter().enumerate().find(|(_, of)| of.has(tensor)) else {
                unreachable!("a trial's tensors are the workbench's")
            };
            let poisoned = match accesses.reads.contains(tensor) {
                true => vec![false; values.len()],
                false => of.poisoned(tensor, &bytes, self.poisons.of(number)),
            };
            Ok(WrittenTensor { name: of.describe(), values, poisoned, in_part: of.written_in_part })
        };
        accesses.writes.iter().map(of_tensor).collect()
    }

    /// The tensors with bytes that an operation does not declare to read, in and around them: their numbers, and words.
    pub(super) fn undeclared(&self, op: &Op) -> Vec<(usize, String)> {
        let reads = op.accesses().reads;
        let name = |(number, of): (usize, &Guarded)| {
            let beside = if of.is_one_of(&reads) { "bytes beside " } else { "" };
            (number, format!("{beside}{}", of.describe()))
        };
        self.tensors.iter().enumerate().map(name).collect()
    }
}

/// A value of each of the first `count` numbers of a stream.
fn drawn<T>(stream: u64, count: usize, value: impl Fn(f32) -> T) -> Vec<T> {
    /// The most numbers of a stream that are kept: 16 MiB.
    const KEPT: usize = 1 << 22;
    thread_local! {
        /// By stream: the numbers that trials have drawn. All trials draw the same ones.
        static DRAWN: RefCell<HashMap<u64, Vec<f32>>> = RefCell::default();
    }
    if count > KEPT {
        return uniforms(stream).take(count).map(value).collect();
    }
    DRAWN.with_borrow_mut(|drawn| {
        let numbers = drawn.entry(stream).or_default();
        if numbers.len() < count {
            *numbers = uniforms(stream).take(count).collect();
        }
        numbers[..count].iter().map(|x| value(*x)).collect()
    })
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn of<T: Element>(bytes: &[u8], number: impl Fn(T) -> f64) -> Vec<f64> {
        bytes.chunks_exact(size_of::<T>()).map(|bytes| number(bytemuck::pod_read_unaligned(bytes))).collect()
    }
    match dtype {
        DType::F32 => of::<f32>(bytes, f64::from),
        DType::Bf16 => of::<bf16>(bytes, f64::from),
        DType::I32 => of::<i32>(bytes, f64::from),
        DType::F8E4M3 => of::<F8E4M3>(bytes, |x| x.to_f32().into()),
        DType::F8E5M2 => of::<F8E5M2>(bytes, |x| x.to_f32().into()),
        DType::U16 => of::<u16>(bytes, f64::from),
        DType::U8 => of::<u8>(bytes, f64::from),
    }
}

fn rounded<T: Float>(values: &[f32]) -> Vec<T> {
    values.iter().map(|&x| T::from_f32(x)).collect()
}

/// Whether both have the same bits, but for poison.
pub(super) fn same(a: &Written, b: &Written) -> bool {
    let of_tensor = |(a, b): (&WrittenTensor, &WrittenTensor)| {
        let poison = a.poisoned.iter().zip(&b.poisoned).map(|(a, b)| *a && *b);
        a.values.iter().zip(&b.values).zip(poison).all(|((a, b), poison)| poison || a.to_bits() == b.to_bits())
    };
    a.iter().zip(b).all(of_tensor)
}

/// A tensor with elements that the operation should write but left alone: they are poison in a run among one kind of
/// poison, and in a run among the other.
pub(super) fn left_alone<'a>(a: &'a Written, b: &Written) -> Option<&'a WrittenTensor> {
    let pairs = a.iter().zip(b).filter(|(a, _)| !a.in_part);
    let mut left = pairs.filter(|(a, b)| a.poisoned.iter().zip(&b.poisoned).any(|(a, b)| *a && *b));
    left.next().map(|(a, _)| a)
}

/// The largest relative L2 distance between corresponding tensors that were written among the same poison; infinite if any
/// value is NaN that is no poison.
pub(super) fn distance(ours: &Written, theirs: &Written) -> f64 {
    let one = |(a, b): (&WrittenTensor, &WrittenTensor)| {
        let poison = a.poisoned.iter().zip(&b.poisoned).map(|(a, b)| *a && *b);
        let pairs = a.values.iter().zip(&b.values).zip(poison).filter(|(_, poison)| !poison);
        let (mut square, mut norm) = (0.0, 0.0);
        for ((x, y), _) in pairs {
            if x.is_nan() || y.is_nan() {
                return f64::INFINITY;
            }
            square += (x - y) * (x - y);
            norm += y * y;
        }
        if square == 0.0 { 0.0 } else { (square / f64::max(norm, 1e-300)).sqrt() }
    };
    ours.iter().zip(theirs).map(one).fold(0.0, f64::max)
}
