//! Every kernel compiles for every supported GPU, by the function that compiles it on a machine with the GPU. It needs
//! NVRTC and no GPU; `./x test` installs NVRTC.
//!
//! `kernels.checked` names what was compiled and found right, with a hash of source, headers, options and compiler.
//! Nothing of it is compiled again: that takes two minutes of a core.

use std::collections::BTreeSet;

use device::cuda::compile;
use device::cuda::{KernelFile, KernelSet, cubin_name, kernel_files};
use rayon::prelude::*;

/// A100, RTX 30, RTX 40 and L40, H100 and H200, B200, RTX 50.
const TARGETS: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"];

/// GPUs that differ little from an A100 or an H200. Kernels are compiled for them with `ALL_KERNELS=1` in the environment.
const SIMILAR: [&str; 4] = ["sm_86", "sm_89", "sm_100", "sm_120"];

/// Takes longer to compile than all others together, and uses no instruction that only some GPUs have. It is compiled
/// for the H200 alone, and for all GPUs with `ALL_KERNELS=1` in the environment.
const SLOW: &str = "attention/attention.cu";

/// The assembler's report of one kernel.
#[derive(Debug, PartialEq)]
struct Kernel {
    name: String,
    /// Bytes a thread keeps in local memory: arrays that are not in registers, and spilled registers.
    stack: usize,
    spill_stores: usize,
    spill_loads: usize,
}

/// Reads ptxas's `-v`: a line `Function properties for NAME`, then one with the three numbers.
fn kernels(log: &str) -> Vec<Kernel> {
    let lines: Vec<&str> = log.lines().collect();
    let named = lines.windows(2).filter_map(|pair| Some((pair[0].split_once("Function properties for ")?.1, pair[1])));
    let kernel = |(name, numbers): (&str, &str)| {
        let bytes = |of: &str| {
            let number = numbers.split(',').find_map(|part| part.trim().strip_suffix(of)?.split_whitespace().last());
            number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no `{of}` in ptxas's {numbers:?}"))
        };
        Kernel {
            name: name.trim().into(),
            stack: bytes(" bytes stack frame"),
            spill_stores: bytes(" bytes spill stores"),
            spill_loads: bytes(" bytes spill loads"),
        }
    };
    named.map(kernel).collect()
}

/// The problems of a source on a target: one line per kernel that uses local memory.
fn problems(file: &str, source: &str, target: &str) -> Vec<String> {
    let (cubin, log) = match compile(file, source, target) {
        Ok(compiled) => compiled,
        Err(error) => return vec![format!("{file} for {target} does not compile. {error}")],
    };
    assert!(cubin.starts_with(b"\x7fELF"), "{file} for {target}: not a cubin");
    let kernels = kernels(&log);
    assert!(!kernels.is_empty(), "{file} for {target}: ptxas names no kernel in {log:?}");
    let in_local_memory =
        kernels.into_iter().filter(|kernel| kernel.stack + kernel.spill_stores + kernel.spill_loads > 0);
    let line = |Kernel { name, stack, spill_stores, spill_loads }: Kernel| {
        format!(
            "kernel `{name}` of {file} for {target} keeps {stack} bytes a thread in local memory: {spill_stores} bytes \
             of spill stores, {spill_loads} of spill loads"
        )
    };
    in_local_memory.map(line).collect()
}

#[test]
fn every_kernel_compiles_for_every_supported_gpu_and_keeps_its_values_in_registers() {
    if let Err(error) = compile("nothing.cu", "extern \"C\" __global__ void nothing() {}", "sm_90a") {
        panic!("{error}\nor run `./x test`, which installs it");
    }
    let files = kernel_files();
    let mut all: Vec<_> = TARGETS.iter().flat_map(|target| files.iter().map(move |file| (*target, file))).collect();
    all.retain(|(target, file)| file.set != KernelSet::ExpertsOnHopper || *target == "sm_90a");
    let every = std::env::var_os("ALL_KERNELS").is_some_and(|value| value == "1");
    let is_slow = |file: &KernelFile| file.name == SLOW || file.set == KernelSet::Fp8;
    all.retain(|(target, file)| every || (!SIMILAR.contains(target) && (!is_slow(file) || *target == "sm_90a")));
    let checked = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device/kernels.checked");
    let before = std::fs::read_to_string(checked).unwrap_or_default();
    let name = |(target, file): &(&str, &KernelFile)| cubin_name(file.name, file.source, target).unwrap();
    let names: BTreeSet<String> = all.iter().map(name).collect();
    let known: BTreeSet<&str> = before.lines().collect();
    all.retain(|pair| !known.contains(name(pair).as_str()));
    // The longest first, so that no core works on a long one while the others have finished.
    all.sort_by_key(|(_, file)| std::cmp::Reverse(file.source.len()));
    let problems: Vec<String> = all
        .into_par_iter()
        .with_max_len(1)
        .flat_map(|(target, file)| problems(file.name, file.source, target))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let now: String = names.iter().map(|name| format!("{name}\n")).collect();
    if !every && now != before {
        std::fs::write(checked, now).unwrap();
        eprintln!("device/tests/device/kernels.checked is new: commit it with the kernels");
    }
}

#[test]
fn a_custom_operation_s_kernel_compiles_for_every_supported_gpu_and_may_include_the_shared_headers() {
    let with_headers = "#include \"common.cuh\"
        KERNEL(halve)(bf16* x, u64 count) {
            u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
            if (i < count) set(x + i, 0.5f * value(x + i));
        }";
    for target in TARGETS {
        for (file, source) in [("axpy.cu", include_str!("../../examples/axpy.cu")), ("halve.cu", with_headers)] {
            assert_eq!(problems(file, source, target), Vec::<String>::new());
        }
    }
}

#[test]
fn a_kernel_that_spills_is_named_with_its_target_and_bytes() {
    // 255 registers a thread at most: 400 values that all live across the loop do not fit.
    let source = "extern \"C\" __global__ void greedy(float* x, int n) {
        float kept[400];
        _Pragma(\"unroll\") for (int i = 0; i < 400; i++) kept[i] = x[i];
        for (int k = 0; k < n; k++) {
            _Pragma(\"unroll\") for (int i = 0; i < 400; i++) kept[i] = kept[i] * kept[(i + 1) % 400] + x[k];
        }
        _Pragma(\"unroll\") for (int i = 0; i < 400; i++) x[i] = kept[i];
    }";
    let problems = problems("greedy.cu", source, "sm_80");
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("kernel `greedy` of greedy.cu for sm_80 keeps "), "{problems:?}");
    assert!(!problems[0].contains(" 0 bytes of spill stores"), "{problems:?}");
}

#[test]
fn a_gpu_that_the_compiler_is_too_old_for_is_named_with_its_version_and_the_fix() {
    let error = compile("nothing.cu", "extern \"C\" __global__ void nothing() {}", "sm_999").unwrap_err().to_string();
    assert!(error.contains(" does not know sm_999. Fix: a newer one: install "), "{error}");
}

/// The first statement of every kernel in a source, after the line that declares the kernel: it has a name, or a
/// pattern of names in a macro.
fn first_statements(source: &str) -> Vec<(&str, &str)> {
    let starts = source.match_indices("__global__").chain(source.match_indices("KERNEL("));
    let statement = |(at, _): (usize, &str)| {
        let line = &source[source[..at].rfind('\n').map_or(0, |end| end + 1)..];
        let declared = line.lines().next().unwrap_or_default();
        if declared.starts_with("//") || declared.starts_with("#define KERNEL(") {
            return None;
        }
        let (_, body) = source[at..].split_once('{')?;
        let body = body.trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
        Some((declared.trim_end_matches([' ', '\\']), body.split(';').next()?))
    };
    starts.filter_map(statement).collect()
}

#[test]
fn every_kernel_waits_for_the_work_before_it_before_anything_else() {
    assert_eq!(first_statements("KERNEL(a)(int b) {  \\\n  c();  }"), [("KERNEL(a)(int b) {", "c()")]);
    let mut found = 0;
    for file in kernel_files().iter().filter(|file| file.set != KernelSet::When) {
        for (declared, first) in first_statements(file.source) {
            let name = file.name;
            assert_eq!(first, "begin_kernel()", "{name}: `{declared}` must begin with begin_kernel(): see common.cuh");
            found += 1;
        }
    }
    assert!(found > 90, "{found} kernels found");
}
