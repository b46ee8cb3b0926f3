"""Checks that graph-manager builds beside other crates that use CUDA: with their CUDA version, loaded or linked.

    python bench/builds_beside.py [NAME of a case ...]

Each case is a program with graph-manager and other crates of the registry, for `cargo check`. It needs no GPU. Without
nvcc a stand-in takes its place: it compiles nothing, so candle's kernels are empty, and the Rust code is checked all the
same. burn's LLVM is left out as on docs.rs, since it is a download of its own. CARGO_TARGET_DIR names the folder for builds; without it, one is made and removed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = f'graph-manager = {{ path = "{ROOT}/graph-manager"'
BESIDE = OURS + ', default-features = false, features = ["cuda", "host", "trainer-ops"] }'

# By name: the dependencies, and the names that the program uses.
CASES = {
    "alone": ([OURS + " }"], []),
    "without the operations of a trainer": (
        [OURS + ', default-features = false, features = ["cuda-13000", "host"] }'],
        ["graph_manager::device::ops::CustomOp", "graph_manager::Capture"],
    ),
    "cudarc for CUDA 12.8": ([BESIDE, 'cudarc = { version = "0.19", features = ["cuda-12080"] }'], ["cudarc::driver::CudaContext"]),
    "cudarc for CUDA 12.9": ([BESIDE, 'cudarc = { version = "0.19", features = ["cuda-12090"] }'], ["cudarc::driver::CudaContext"]),
    "cudarc for CUDA 13.4": ([BESIDE, 'cudarc = { version = "0.19", features = ["cuda-13040"] }'], ["cudarc::driver::CudaContext"]),
    "cudarc linked": (
        [BESIDE, 'cudarc = { version = "0.19", default-features = false, features = ["std", "driver", "cuda-12080", "dynamic-linking"] }'],
        ["cudarc::driver::CudaContext"],
    ),
    "cudarc as cubecl-cuda has it": (
        [
            OURS + " }",
            'cudarc = { version = "0.19", default-features = false, features = ["std", "driver", "nvrtc", "nccl", '
            '"fallback-dynamic-loading", "cuda-version-from-build-system", "fallback-latest"] }',
        ],
        ["cudarc::driver::CudaContext"],
    ),
    "candle-core": ([BESIDE, 'candle-core = { version = "0.11", features = ["cuda"] }'], ["candle_core::CudaDevice"]),
    "burn-cuda": ([OURS + " }", 'burn-cuda = "0.22"'], ["burn_cuda::CudaDevice"]),
}

NVCC = """#!/bin/sh
# Stands in for nvcc: it makes empty files.
case "$*" in
    *--version*) printf 'nvcc\\nCopyright\\nBuilt\\nCuda compilation tools, release 12.8, V12.8.93\\n'; exit ;;
esac
for argument; do
    case $previous in
        -o) : >"$argument" ;;
        --output-directory) folder=$argument ;;
    esac
    previous=$argument
done
[ -z "$folder" ] || : >"$folder/$(basename "${previous%.cu}").ptx"
"""


def environment(folder):
    """The environment of a check, with a stand-in for nvcc if there is none."""
    values = {**os.environ}
    values.setdefault("CARGO_TARGET_DIR", str(folder / "target"))
    if shutil.which("nvcc") is None:
        stand_in = folder / "toolkit/bin/nvcc"
        stand_in.parent.mkdir(parents=True)
        stand_in.write_text(NVCC)
        stand_in.chmod(0o755)
        values |= {"PATH": f"{stand_in.parent}:{values['PATH']}", "CUDA_COMPUTE_CAP": "80"}
        print("nvcc: a stand-in, for CUDA 12.8")
    return values


def check(folder, name, values):
    """Whether a case builds. Prints the seconds, or else the last lines of Cargo."""
    dependencies, used = CASES[name]
    (folder / "src").mkdir(exist_ok=True)
    manifest = '[package]\nname = "beside"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n[dependencies]\n'
    (folder / "Cargo.toml").write_text(manifest + "\n".join(dependencies) + "\n")
    uses = "".join(f"pub use {path};\n" for path in ["graph_manager::device::cuda::gpu_count", *used])
    (folder / "src/lib.rs").write_text(uses)
    began = time.monotonic()
    if name == "burn-cuda":
        values = {**values, "DOCS_RS": "1"}
    command = ["cargo", "check", "--quiet", "--message-format", "short"]
    run = subprocess.run(command, cwd=folder, env=values, stderr=subprocess.PIPE, text=True)
    seconds = time.monotonic() - began
    print(f"{name}: {f'builds, {seconds:.0f} s' if run.returncode == 0 else 'FAILS'}", flush=True)
    if run.returncode != 0:
        print("\n".join(run.stderr.splitlines()[-20:]))
    return run.returncode == 0


def main():
    names = sys.argv[1:] or list(CASES)
    for name in names:
        if name not in CASES:
            sys.exit(f"builds_beside: {name!r} is no case. Fix: one of {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        values = environment(folder)
        # All are checked, also after a failure.
        sys.exit(not all([check(folder, name, values) for name in names]))


if __name__ == "__main__":
    main()
