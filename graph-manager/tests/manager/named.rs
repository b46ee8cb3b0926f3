//! Regions named by strings, and a few tensors for steps of them.

use device::ops::{Add, Copy, Fill};
use device::{Area, DType, Device, Stream, Tensor};
use graph_manager::{CudaGraphManager, ManagerOptions, Policy};

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

/// A checked device with tensors of four numbers. `x`, `y` and `z` are 0, `one` is 1.
pub struct Bench {
    pub device: Device,
    pub compute: Stream,
    pub x: Tensor,
    pub y: Tensor,
    pub z: Tensor,
    pub one: Tensor,
    _areas: Vec<Area>,
}

pub fn bench() -> Bench {
    let device = checked_device();
    let mut areas = Vec::new();
    let mut tensor = |name: &str, value: f32| {
        let tensor = device.allocate_tensor(&mut areas, name, [4], DType::F32).unwrap();
        device.upload(&tensor, &[value; 4]).unwrap();
        tensor
    };
    let (x, y, z, one) = (tensor("x", 0.0), tensor("y", 0.0), tensor("z", 0.0), tensor("one", 1.0));
    Bench { compute: device.stream("compute"), device, x, y, z, one, _areas: areas }
}

impl Bench {
    pub fn manager(&self, options: ManagerOptions) -> Manager {
        Manager::new(self.compute.clone(), options, Named).unwrap()
    }

    pub fn value(&self, tensor: Tensor) -> f32 {
        let values = self.device.download::<f32>(&tensor).unwrap();
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        values[0]
    }

    /// `x += 1`.
    pub fn count(&self) -> Add {
        Add { a: self.x, b: self.one, output: self.x }
    }
}

pub fn fill(output: Tensor, value: f32) -> Fill {
    Fill { output, value }
}

pub fn copy(input: Tensor, output: Tensor) -> Copy {
    Copy { input, output }
}
