//! Regions named by strings, and a few tensors for steps of them.

use std::cell::RefCell;

use device::ops::{Add, Copy, Fill};
use device::{Area, DType, Device, Stream, Tensor};
use graph_manager::{CheckReplays, CudaGraphManager, ManagerOptions, Policy, Pool};

use crate::toy::checked_device;

/// Regions with names that begin with `eager` become no graphs.
pub struct Named;

impl Policy for Named {
    type Region = &'static str;
    type Mode = &'static str;

    fn captured(&self, region: &'static str) -> Result<(), &'static str> {
        if region.starts_with("eager") { Err("its name says so") } else { Ok(()) }
    }
}

pub type Manager = CudaGraphManager<Named>;
pub type StepContext<'m> = graph_manager::StepContext<'m, Named>;

/// A device with tensors of four numbers. `x`, `y` and `z` are 0, `one` is 1.
pub struct Bench {
    pub device: Device,
    pub compute: Stream,
    /// Of the compute stream.
    pub pool: Pool,
    pub x: Tensor,
    pub y: Tensor,
    pub z: Tensor,
    pub one: Tensor,
    areas: RefCell<Vec<Area>>,
}

/// With the checker on.
pub fn bench() -> Bench {
    Bench::on(checked_device())
}

fn allocate(device: &Device, areas: &mut Vec<Area>, name: &str, values: &[f32]) -> Tensor {
    let tensor = device.allocate_tensor(areas, name, [values.len()], DType::F32).unwrap();
    device.upload(&tensor, values).unwrap();
    tensor
}

impl Bench {
    /// With a stream, a pool and tensors on this device.
    pub fn on(device: Device) -> Bench {
        let (compute, mut areas) = (device.stream("compute"), Vec::new());
        let [x, y, z, one] = [("x", 0.0), ("y", 0.0), ("z", 0.0), ("one", 1.0)]
            .map(|(name, value)| allocate(&device, &mut areas, name, &[value; 4]));
        Bench { pool: Pool::new(compute.clone()), compute, device, x, y, z, one, areas: RefCell::new(areas) }
    }

    /// A tensor of these numbers.
    pub fn tensor(&self, name: &str, values: &[f32]) -> Tensor {
        allocate(&self.device, &mut self.areas.borrow_mut(), name, values)
    }

    /// A tensor of four times this number.
    pub fn filled(&self, value: f32) -> Tensor {
        self.tensor("t", &[value; 4])
    }

    /// A flag that is that.
    pub fn flag(&self, name: &str, value: i32) -> Tensor {
        let areas = &mut self.areas.borrow_mut();
        let flag = self.device.allocate_tensor(areas, name, [1], DType::I32).unwrap();
        self.device.upload(&flag, &[value]).unwrap();
        flag
    }

    pub fn read(&self, tensor: Tensor) -> Vec<f32> {
        self.device.download(&tensor).unwrap()
    }

    pub fn manager(&self, options: ManagerOptions) -> Manager {
        Manager::new(self.compute.clone(), options, Named).unwrap()
    }

    /// The number that all elements of a tensor are.
    pub fn value(&self, tensor: Tensor) -> f32 {
        let values = self.read(tensor);
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        values[0]
    }

    /// `x += 1`.
    pub fn count(&self) -> Add {
        Add { a: self.x, b: self.one, output: self.x }
    }
}

/// The code of a step is compared with its list before each replay.
pub fn compared() -> ManagerOptions {
    ManagerOptions { check_replays: CheckReplays::Always, ..ManagerOptions::default() }
}

pub fn fill(output: Tensor, value: f32) -> Fill {
    Fill { output, value }
}

pub fn copy(input: Tensor, output: Tensor) -> Copy {
    Copy { input, output }
}
