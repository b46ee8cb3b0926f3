//! Operations that submit their work themselves, in steps: their memory is planned, their graphs are verified against
//! eager steps in other memory, and memory that other code owns is like a caller's.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::rc::Rc;

use cudarc::driver::result;
use device::cuda::{CudaWork, GpuProperties};
use device::ops::{Accesses, Add, CustomOp, Fill};
use device::{Area, DType, Device, HostTensors, Tensor};
use graph_manager::{
    CaptureAll, CudaGraphManager, EagerMemory, ManagerOptions, Result, StepContext, Verification, Verified,
};

use crate::toy::checked_device;

type Manager = CudaGraphManager<CaptureAll<&'static str>>;
type Context<'m> = StepContext<'m, CaptureAll<&'static str>>;

const N: usize = 64;

/// `output = input`, by a call of the driver on a GPU. It notes the address of its output in each run.
#[derive(Clone)]
struct Copies {
    input: Tensor,
    output: Tensor,
    outputs: Rc<RefCell<Vec<u64>>>,
}

/// The addresses that it has seen are no part of what it does.
impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Copies")
    }
}

impl CustomOp for Copies {
    fn name(&self) -> &'static str {
        "copies"
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.input], [self.output])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> device::Result<()> {
        let output = tensors.write::<f32>(&self.output)?;
        self.outputs.borrow_mut().push(output.as_ptr().addr() as u64);
        output.copy_from_slice(tensors.read::<f32>(&self.input)?);
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        Some(CudaWork::call(|on| {
            let (from, to) = (on.read(&self.input)?, on.write(&self.output)?);
            self.outputs.borrow_mut().push(to);
            // SAFETY: both tensors are in memory of the GPU and as large as that.
            unsafe { result::memcpy_dtod_async(to, from, self.input.bytes(), on.stream().0.cast()) }?;
            Ok(())
        }))
    }
}

/// Adds 1 to `total`: a number is made in one region, and copied and added in another, all in planned memory.
fn step(cx: &mut Context<'_>, total: Tensor, outputs: &Rc<RefCell<Vec<u64>>>) -> Result<()> {
    let one = cx.region("make", (), |cx, ()| {
        let one = cx.tensor("one", [N], DType::F32)?;
        cx.run(Fill { output: one, value: 1.0 })?;
        Ok(one)
    })?;
    cx.region("copy", one, |cx, input| {
        let output = cx.tensor("output", [N], DType::F32)?;
        cx.run(device::Op::from(Copies { input, output, outputs: outputs.clone() }))?;
        cx.run(Add { a: total, b: output, output: total })
    })
}

fn manager(device: &Device) -> Manager {
    Manager::new(device.stream("compute"), ManagerOptions::default(), CaptureAll::default()).unwrap()
}

#[test]
fn a_call_is_planned_captured_and_replayed_and_gets_other_addresses_when_it_is_verified_in_memory_apart() {
    let device = checked_device();
    let (mut areas, outputs) = (Vec::new(), Rc::new(RefCell::new(Vec::new())));
    let total = device.allocate_tensor(&mut areas, "total", [N], DType::F32).unwrap();
    device.zero(&total).unwrap();
    let mut manager = manager(&device);
    for _ in 0..4 {
        manager.step("step", 1, &mut |cx| step(cx, total, &outputs)).unwrap();
    }
    assert_eq!(device.download::<f32>(&total).unwrap(), [4.0; N]);
    assert_eq!(manager.report().graphs.len(), 2);
    let planned = outputs.borrow().clone();
    assert!(planned.iter().all(|address| *address == planned[0]), "one plan, one address: {planned:?}");

    for (memory, elsewhere) in [(EagerMemory::Shared, false), (EagerMemory::Apart, true)] {
        outputs.borrow_mut().clear();
        let how = Verification { memory, ..Verification::default() };
        let found = manager.verify("step", 1, &how, &mut |cx| step(cx, total, &outputs)).unwrap();
        assert!(matches!(found, Verified::Same { .. }), "{found:?}");
        let moved = outputs.borrow().iter().any(|address| *address != planned[0]);
        assert_eq!(moved, elsewhere, "{:?} and {planned:?}", outputs.borrow());
    }
    assert_eq!(device.download::<f32>(&total).unwrap(), [4.0; N], "the state is put back");
}

/// Memory of another owner, of this process or of a GPU, as an area full of zeros.
fn adopted(device: &Device) -> Area {
    struct Owner(u64);
    impl Drop for Owner {
        fn drop(&mut self) {
            // SAFETY: allocated below.
            unsafe { result::free_sync(self.0) }.unwrap();
        }
    }
    if device.gpu().is_some() {
        // SAFETY: freed by the owner.
        let address = unsafe { result::malloc_sync(4 * N) }.unwrap();
        // SAFETY: as large, and of the owner.
        unsafe { result::memset_d8_sync(address, 0, 4 * N) }.unwrap();
        // SAFETY: the memory lives until the owner is dropped, and nobody else uses it.
        return unsafe { device.adopt("theirs", address, 4 * N, Owner(address)) }.unwrap();
    }
    let mut owner = vec![0_u128; N / 4];
    let address = owner.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: as above.
    unsafe { device.adopt("theirs", address, 4 * N, owner) }.unwrap()
}

#[test]
fn a_step_that_works_in_adopted_memory_is_replayed_and_verified_and_its_state_is_put_back() {
    let (device, outputs) = (checked_device(), Rc::default());
    let area = adopted(&device);
    let total = area.tensor("total", 0, [N], DType::F32);
    let mut manager = manager(&device);
    for steps in 1..5 {
        manager.step("step", 1, &mut |cx| step(cx, total, &outputs)).unwrap();
        assert_eq!(device.download::<f32>(&total).unwrap(), [steps as f32; N]);
    }
    let found = manager.verify("step", 1, &Verification::default(), &mut |cx| step(cx, total, &outputs)).unwrap();
    assert_eq!(found, Verified::Same { tensors: 1, bytes: total.bytes() });
    assert_eq!(device.download::<f32>(&total).unwrap(), [4.0; N]);
}
