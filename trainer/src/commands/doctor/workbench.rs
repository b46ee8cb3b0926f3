//! Runs one operation on a device. Its tensors have the same values on every device.

use device::{Area, DType, Device, F8E4M3, F8E5M2, Float, Op, Result, Shape, Stream, Tensor, bf16};

use crate::run::random::uniform;

/// Makes an operation and its tensors on a workbench.
pub(super) type Make = Box<dyn Fn(&mut Workbench) -> Result<Op>>;

/// Adds a trial, by its name.
pub(super) type AddTrial<'a> = &'a mut dyn FnMut(&str, Make);

/// A device, a stream, and the tensors of one trial.
pub(super) struct Workbench {
    pub(super) device: Device,
    pub(super) stream: Stream,
    areas: Vec<Area>,
}

/// The values that an operation wrote, by tensor.
pub(super) type Written = Vec<Vec<f64>>;

impl Workbench {
    pub(super) fn new(device: &Device) -> Workbench {
        Workbench { device: device.clone(), stream: device.stream("doctor"), areas: Vec::new() }
    }

    fn allocate(&mut self, shape: Shape, dtype: DType) -> Result<Tensor> {
        let name = format!("tensor {}", self.areas.len());
        self.device.allocate_tensor(&mut self.areas, &name, shape, dtype)
    }

    /// A tensor with values uniform in `[-1, 1)`, a function of the number of tensors before it.
    pub(super) fn input(&mut self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        self.scaled(shape, dtype, 1.0)
    }

    /// As [`Workbench::input`], with values multiplied by `scale`.
    pub(super) fn scaled(&mut self, shape: impl Into<Shape>, dtype: DType, scale: f32) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), dtype)?;
        let stream = self.areas.len() as u64;
        let values: Vec<f32> =
            (0..tensor.elements()).map(|i| scale * (2.0 * uniform(stream, i as u64) - 1.0)).collect();
        match dtype {
            DType::Bf16 => {
                self.device.upload(&tensor, &rounded::<bf16>(&values))?;
            }
            DType::F8E4M3 => self.device.upload(&tensor, &rounded::<F8E4M3>(&values))?,
            DType::F8E5M2 => self.device.upload(&tensor, &rounded::<F8E5M2>(&values))?,
            _ => self.device.upload(&tensor, &values)?,
        }
        Ok(tensor)
    }

    /// An f32 tensor with values uniform between two numbers.
    pub(super) fn between(&mut self, shape: impl Into<Shape>, low: f32, high: f32) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), DType::F32)?;
        let stream = self.areas.len() as u64;
        let value = |i: usize| low + (high - low) * uniform(stream, i as u64);
        self.device.upload(&tensor, &(0..tensor.elements()).map(value).collect::<Vec<f32>>())?;
        Ok(tensor)
    }

    /// An i32 tensor of the given values.
    pub(super) fn integers(&mut self, shape: impl Into<Shape>, values: &[i32]) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), DType::I32)?;
        self.device.upload(&tensor, values)?;
        Ok(tensor)
    }

    /// A block of plain data.
    pub(super) fn block<T: bytemuck::Pod>(&mut self, value: &T) -> Result<Tensor> {
        let tensor = self.allocate([size_of::<T>()].into(), DType::U8)?;
        self.device.upload(&tensor, bytemuck::bytes_of(value))?;
        Ok(tensor)
    }

    /// A tensor to be written, filled with NaN.
    pub(super) fn output(&mut self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let tensor = self.allocate(shape.into(), dtype)?;
        match dtype {
            DType::F32 => self.device.upload(&tensor, &vec![f32::NAN; tensor.elements()])?,
            DType::Bf16 => self.device.upload(&tensor, &vec![bf16::NAN; tensor.elements()])?,
            DType::I32 => self.device.upload(&tensor, &vec![-1i32; tensor.elements()])?,
            DType::F8E4M3 => self.device.upload(&tensor, &vec![F8E4M3(0x7f); tensor.elements()])?,
            DType::F8E5M2 => self.device.upload(&tensor, &vec![F8E5M2(0x7f); tensor.elements()])?,
            DType::U8 => self.device.upload(&tensor, &vec![0xffu8; tensor.elements()])?,
        }
        Ok(tensor)
    }

    /// Runs an operation.
    pub(super) fn run(&self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        self.prepare(&op)?;
        self.stream.submit(op)
    }

    /// Lets libraries choose their algorithms, as recording a step does.
    pub(super) fn prepare(&self, op: &Op) -> Result<()> {
        self.device.begin_trace();
        let prepared = self.stream.submit(op.clone());
        self.device.end_trace();
        prepared
    }

    /// The values of the tensors that an operation writes.
    pub(super) fn written(&self, op: &Op) -> Result<Written> {
        op.accesses().writes.iter().map(|tensor| self.numbers(tensor)).collect()
    }

    fn numbers(&self, tensor: &Tensor) -> Result<Vec<f64>> {
        let flat = tensor.reshape([tensor.elements()]);
        Ok(match tensor.dtype {
            DType::F32 => self.device.download::<f32>(&flat)?.into_iter().map(f64::from).collect(),
            DType::Bf16 => self.device.download::<bf16>(&flat)?.into_iter().map(f64::from).collect(),
            DType::I32 => self.device.download::<i32>(&flat)?.into_iter().map(f64::from).collect(),
            DType::F8E4M3 => self.device.download::<F8E4M3>(&flat)?.into_iter().map(|x| x.to_f32().into()).collect(),
            DType::F8E5M2 => self.device.download::<F8E5M2>(&flat)?.into_iter().map(|x| x.to_f32().into()).collect(),
            DType::U8 => self.device.download::<u8>(&flat)?.into_iter().map(f64::from).collect(),
        })
    }
}

fn rounded<T: Float>(values: &[f32]) -> Vec<T> {
    values.iter().map(|&x| T::from_f32(x)).collect()
}

/// The largest relative L2 distance between corresponding tensors; infinite if any value is NaN.
pub(super) fn distance(ours: &Written, theirs: &Written) -> f64 {
    let one = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        if a.iter().zip(b).any(|(x, y)| x.is_nan() || y.is_nan()) {
            return f64::INFINITY;
        }
        let square: f64 = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum();
        let norm: f64 = b.iter().map(|y| y * y).sum();
        if square == 0.0 { 0.0 } else { (square / norm.max(1e-300)).sqrt() }
    };
    ours.iter().zip(theirs).map(one).fold(0.0, f64::max)
}
