//! Ranges for NVIDIA's profilers: a library stands in for the profiler's, and writes down its input.

use std::process::Command;

use graph_manager::ManagerOptions;

use crate::toy::{Mode, toy};

const PROFILER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../device/tests/nvtx_profiler.c");
const NAME: &str =
    "nvtx::recording_regions_captures_and_launches_are_nested_ranges_once_the_device_is_told_to_make_them";

/// A recorded step, a warm-up, a capture and a replay with ranges, after and before steps without.
fn profiled() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    manager.record(Mode::Evaluate, 1, &mut |cx| toy.step(cx, 0)).unwrap();
    toy.device.set_nvtx(true);
    for _ in 0..3 {
        toy.train(&mut manager, 1, 0).unwrap();
    }
    toy.device.set_nvtx(false);
    toy.train(&mut manager, 1, 0).unwrap();
}

#[test]
fn recording_regions_captures_and_launches_are_nested_ranges_once_the_device_is_told_to_make_them() {
    if std::env::var_os("RANGES").is_some() {
        return profiled();
    }
    let folder = std::env::temp_dir().join(format!("nvtx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (library, written) = (folder.join("profiler.so"), folder.join("ranges.txt"));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(PROFILER).status().unwrap();
    assert!(compiled.success());
    let output = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact"])
        .env("NVTX_INJECTION64_PATH", &library)
        .env("RANGES", &written)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = std::fs::read_to_string(&written).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    // Each range with those around it.
    let (mut open, mut ranges): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        match line.strip_prefix("push ") {
            Some(name) => {
                open.push(name);
                ranges.push(open.join(" > "));
            }
            None => assert!(open.pop().is_some(), "{text}"),
        }
    }
    assert!(open.is_empty(), "{text}");
    let times = |range: &str| ranges.iter().filter(|other| *other == range).count();
    let region = "forward of layer 1, microbatch 0";
    for (range, expected) in [
        // It is made again to compare it.
        ("record Train".to_string(), 2),
        (format!("record Train > step > {region}"), 2),
        // The warm-up, before the capture, the launch after it, and the replay.
        (region.to_string(), 4),
        (format!("capture {region}"), 1),
        (format!("capture {region} > {region}"), 1),
        (format!("capture {region} > instantiate {region}"), 1),
        (format!("{region} > launch {region}"), 2),
        ("record Evaluate".to_string(), 0),
    ] {
        assert_eq!(times(&range), expected, "`{range}` in {ranges:#?}");
    }
}
