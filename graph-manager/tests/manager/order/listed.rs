//! The printed list of a recorded step.

use device::ops::{Add, Fill};
use device::{DType, Device, HostOptions};
use graph_manager::{CaptureAll, CudaGraphManager, ManagerOptions};

#[test]
fn a_list_has_a_line_for_each_operation_and_one_for_a_region_that_repeats_another() {
    let device = Device::host(HostOptions { dry: true, ..HostOptions::default() }).unwrap();
    let memory = device.allocate("total", 16).unwrap();
    let total = memory.tensor("total", 0, [4], DType::F32);
    let side = device.stream("beside");
    let (begun, done) = (device.event(), device.event());
    let mut manager =
        CudaGraphManager::new(device.stream("compute"), ManagerOptions::default(), CaptureAll::<&str>::default())
            .unwrap();
    let step = &mut |cx: &mut graph_manager::StepContext<'_, CaptureAll<&'static str>>| {
        ["first", "second"].into_iter().try_for_each(|name| {
            cx.region(name, (), |cx, ()| {
                let one = cx.tensor("one", [4], DType::F32)?;
                cx.run(Fill { output: one, value: 1.0 })?;
                cx.compute().record(&begun)?;
                side.wait(&begun)?;
                side.submit(Add { a: total, b: one, output: total })?;
                side.record(&done)?;
                Ok(cx.compute().wait(&done)?)
            })
        })
    };
    manager.record("count", 1, step).unwrap();
    let expected = [
        "\"count\", 1 microbatch: 4 operations in 2 regions, 2 of them different",
        "first",
        "  0 compute fill; writes one (4) f32",
        "  1 beside add, after 0; reads total (4) f32, one (4) f32; writes total (4) f32",
        "second, from 2: as first",
        "",
    ];
    assert_eq!(manager.lists(), expected.join("\n"));
    let mut waits = Vec::new();
    manager.list("count", 1, |entry| waits.push((entry.region.to_string(), entry.name, entry.waits)));
    let entry = |region: &str, name, waits: &[usize]| (region.to_string(), name, waits.to_vec());
    assert_eq!(
        waits,
        [
            entry("first", "fill", &[]),
            entry("first", "add", &[0]),
            entry("second", "fill", &[1]),
            entry("second", "add", &[2])
        ]
    );
}

#[test]
fn a_region_that_failed_has_ended_where_the_step_goes_on() {
    let device = Device::host(HostOptions { dry: true, ..HostOptions::default() }).unwrap();
    let memory = device.allocate("total", 16).unwrap();
    let output = memory.tensor("total", 0, [4], DType::F32);
    let options = ManagerOptions { enable: false, ..ManagerOptions::default() };
    let mut manager = CudaGraphManager::new(device.stream("compute"), options, CaptureAll::<&str>::default()).unwrap();
    let fill = |value| Fill { output, value };
    let step = &mut |cx: &mut graph_manager::StepContext<'_, CaptureAll<&'static str>>| {
        cx.region("outer", (), |cx, ()| {
            let failed = cx.region("inner", (), |cx, ()| {
                cx.run(fill(1.0))?;
                cx.run(Add { a: output, b: output, output: output.narrow(0, 1) })
            });
            assert!(failed.is_err());
            cx.run(fill(2.0))
        })?;
        cx.run(fill(3.0))?;
        let failed = cx.region("last", (), |cx, ()| {
            cx.run(fill(4.0))?;
            cx.run(Add { a: output, b: output, output: output.narrow(0, 1) })
        });
        assert!(failed.is_err());
        Ok(())
    };
    manager.record("step", 1, step).unwrap();
    let mut regions = Vec::new();
    manager.list("step", 1, |entry| regions.push((entry.name, entry.visit)));
    assert_eq!(regions, [("fill", Some(1)), ("fill", Some(0)), ("fill", None), ("fill", Some(2))]);
}
