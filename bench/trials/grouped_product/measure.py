"""Checks grouped.cu and times it beside PyTorch. Fails if a result is wrong.

    python3 bench/trials/grouped_product/measure.py [--quick] [--rows 16384,65536] [--models olmoe] [--forms forward]

It needs one GPU of compute capability 9.0, PyTorch with CUDA 13, and NVRTC. First it asks the hardware whether it clips
ragged boxes (probe.cu). Then it checks every kernel, with clipping by hardware where that works, and without. Rates are
TFLOP/s. --quick times less.
"""

import argparse
import concurrent.futures
import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[2] / "device/kernels"
SHARED_BYTES = 28 * 8192 + 128 + 513 * 4
# Exact in bf16.
SENTINEL = 12288.0
# Experts, H, F.
MODELS = {"olmoe": (64, 2048, 1024), "qwen3": (128, 2048, 768), "mixtral": (8, 4096, 14336)}
PAIRS = {"alone": 1, "rows": 2, "columns": 2}
FORMS = {
    "forward": ("256_alone", "256_rows", "256_columns", "128_columns"),
    "input": ("256_alone", "256_rows", "256_columns", "128_columns"),
    "weight_write": ("256_alone", "256_rows", "256_rows_boxed"),
    "weight_add": ("256_alone", "256_rows", "256_rows_boxed"),
    "forward_swiglu": ("256_alone", "256_rows", "256_columns"),
    "input_swiglu": ("256_alone", "256_rows", "256_columns"),
}
DEVICE = "cuda"
driver = None
# What runs, and since when: a kernel that waits forever is named.
doing = ["", time.time()]


def now(what):
    doing[:] = what, time.time()


def watch(seconds=40):
    while time.time() - doing[1] < seconds:
        time.sleep(1)
    print(f"STUCK for {seconds} s: {doing[0]}", flush=True)
    os._exit(3)


def report(kind, error, trace):
    """Names the kernel that failed. The others can be run with --forms."""
    sys.__excepthook__(kind, error, trace)
    print(f"FAILED at: {doing[0]}", flush=True)


# ---- Compiling and launching ----------------------------------------------------------------------------------------


def check(call, status):
    if status != 0:
        raise RuntimeError(f"{call} failed with {status}")


def library(name):
    """A library of CUDA's, of the system or of PyTorch's packages."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        found = list(Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{name}"))
        return ctypes.CDLL(str(found[0])) if found else None


def compiled(name, ragged):
    """Machine code of a source, with ragged loads and stores or not."""
    library("libnvrtc-builtins.so.13.0")
    nvrtc = library("libnvrtc.so.13")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = (HERE / name).read_bytes()
    check("nvrtcCreateProgram", nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None))
    options = ["--std=c++17", "-default-device", "--gpu-architecture=sm_90a", f"-I{KERNELS}", f"-I{HERE}",
               f"-DRAGGED_LOADS={int(ragged[0])}", f"-DRAGGED_STORES={int(ragged[1])}"]
    options = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if status != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode())
    check("nvrtcGetCUBINSize", nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    check("nvrtcGetCUBIN", nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin.raw


def module_of(cubin):
    module = ctypes.c_void_p()
    check("cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), cubin))
    return module


def function_of(module, name, shared):
    function = ctypes.c_void_p()
    check("cuModuleGetFunction", driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    if shared:
        check("cuFuncSetAttribute", driver.cuFuncSetAttribute(function, 8, shared))
    return function


def aligned(content):
    """A copy of bytes at an address that is a multiple of 64, and what keeps it there."""
    memory = ctypes.create_string_buffer(len(content) + 64)
    address = (ctypes.addressof(memory) + 63) & ~63
    ctypes.memmove(address, content, len(content))
    return address, memory


def tensor_map(tensor, sizes, strides):
    """A CUtensorMap with boxes of 64 lines of 64 bf16 or 32 f32, swizzled over 128 bytes."""
    address, memory = aligned(bytes(128))
    rank = len(sizes)
    kind, line = (7, 32) if tensor.dtype == torch.float32 else (9, 64)
    box = (line, 64) + (1,) * (rank - 2)
    status = driver.cuTensorMapEncodeTiled(
        ctypes.c_void_p(address), kind, rank, ctypes.c_void_p(tensor.data_ptr()), (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*strides), (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*([1] * rank)), 0, 3, 2, 0)
    check("cuTensorMapEncodeTiled", status)
    content = ctypes.string_at(address, 128)
    del memory
    return content


def matrix_map(matrix):
    rows, columns = matrix.shape
    return tensor_map(matrix, (columns, rows), (columns * 2,))


def ragged_map(matrix):
    line = matrix.shape[1] * 2
    return tensor_map(matrix, (matrix.shape[1], 1 << 30, 0x7fff0000, 0x7fff0000), (line, line, (1 << 35) - line))


def weight_map(weight):
    (experts, n, k), size = weight.shape, weight.element_size()
    return tensor_map(weight, (k, n, experts), (k * size, n * k * size))


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class Config(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


def launcher(function, content, blocks, threads, shared, cluster):
    """A function that launches a kernel with the bytes of its arguments."""
    address, memory = aligned(content)
    arguments, attribute = (ctypes.c_void_p * 1)(address), Attribute(4, 0, (cluster, 1, 1))
    stream = torch.cuda.current_stream().cuda_stream
    config = Config(blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.pointer(attribute), int(cluster > 1))
    return lambda: (memory, check("cuLaunchKernelEx",
                                  driver.cuLaunchKernelEx(ctypes.byref(config), function, arguments, None)))


class Kernels:
    """grouped.cu, compiled with ragged loads and stores or without."""

    def __init__(self, cubin, ragged):
        self.module, self.ragged, self.functions = module_of(cubin), ragged, {}
        self.name = f"loads {'ragged' if ragged[0] else 'zeroed'}, stores {'ragged' if ragged[1] else 'masked'}"
        self.blocks = torch.cuda.get_device_properties(0).multi_processor_count // 2 * 2

    def product(self, form, variant, offsets, a, b, out, second=None, pre=None, p=None, parts=None, width=0, steps=0):
        """A function that launches one product."""
        name = f"{form}_{variant}"
        if name not in self.functions:
            self.functions[name] = function_of(self.module, name, SHARED_BYTES)
        height = 0
        if form.startswith("weight"):
            encode = ragged_map if self.ragged[0] else matrix_map
            maps = encode(a) + encode(b) + weight_map(out) + bytes(128)
            height, width = out.shape[1:]
        else:
            encode = ragged_map if self.ragged[1] else matrix_map
            maps = matrix_map(a) + weight_map(b) + encode(out) + (bytes(128) if second is None else encode(second))
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in (offsets, out, second, pre, p, parts)]
        content = maps + struct.pack("<6Q4I", *pointers, len(offsets) - 1, height, width, steps)
        run = launcher(self.functions[name], content, self.blocks, 384, SHARED_BYTES, PAIRS[variant.split("_")[1]])
        kept = (offsets, a, b, out, second, pre, p, parts)
        return lambda: (kept, run())

    def forward(self, variant, offsets, x, w, out):
        return self.product("forward", variant, offsets, x, w, out, width=w.shape[1], steps=w.shape[2] // 64)

    def input(self, variant, offsets, dy, w, out):
        return self.product("input", variant, offsets, dy, w, out, width=w.shape[2], steps=w.shape[1] // 64)

    def weight(self, form, variant, offsets, dy, x, dw):
        return self.product(form, variant, offsets, dy, x, dw)

    def forward_swiglu(self, variant, offsets, x, w, pre, h, p):
        return self.product("forward_swiglu", variant, offsets, x, w, pre, h, p=p, width=w.shape[1] // 2,
                            steps=w.shape[2] // 64)

    def input_swiglu(self, variant, offsets, dy, w, pre, p, d_pre, h, parts):
        return self.product("input_swiglu", variant, offsets, dy, w, d_pre, h, pre, p, parts, width=w.shape[2],
                            steps=w.shape[1] // 64)


# ---- The probe ------------------------------------------------------------------------------------------------------


def probe():
    """Prints where the hardware is wrong. The exit status is 10, 1 more if loads work, and 2 more if stores work."""
    function = function_of(module_of(compiled("probe.cu", (True, True))), "probe", 0)
    small = (torch.arange(1000 * 192, device=DEVICE) % 30011 + 1).to(torch.int16).view(1000, 192)
    # Column, start, rows, row.
    cases = [(0, 0, 1000, 0), (64, 0, 1000, 960), (128, 100, 64, 0), (0, 100, 65, 64), (64, 100, 1, 0),
             (0, 37, 100, 64), (0, 5, 10, 0), (128, 999, 1, 0), (0, 0, 7, 0), (64, 500, 0, 0), (0, 200, 63, 0),
             (0, 300, 700, 640), (0, 10, 64, 64), (128, 936, 64, 0)]
    right = [True, True]

    def probed(found, case):
        right[:] = (a and b for a, b in zip(right, found))
        if not all(found):
            print(f"probe: column, start, rows, row {case}: load, store {found}")

    for case in cases:
        probed(probe_case(function, small, *case), case)
    # Addresses beyond 4 GiB.
    large, case = torch.zeros(131072, 28672, dtype=torch.int16, device=DEVICE), (28608, 130000, 1000, 960)
    large[130000:] = 7
    probed(probe_case(function, large, *case, window=(129900, 131072)), case)
    sys.exit(10 + right[0] + 2 * right[1])


def probe_case(function, matrix, x, start, rows, row, window=None):
    first, end = window or (0, matrix.shape[0])
    to = torch.full_like(matrix, -1)
    loaded = torch.full((64, 64), -2, dtype=torch.int16, device=DEVICE)
    content = ragged_map(matrix) + ragged_map(to) + struct.pack("<Q4I", loaded.data_ptr(), x, start, rows, row)
    launcher(function, content + bytes(-len(content) % 64), 1, 128, 0, 1)()
    torch.cuda.synchronize()
    valid = max(0, min(64, rows - row))
    expected = torch.zeros_like(loaded)
    expected[:valid] = matrix[start + row:start + row + valid, x:x + 64]
    stored = torch.full_like(matrix[first:end], -1)
    values = torch.arange(1, 4097, dtype=torch.int16, device=DEVICE).view(64, 64)
    stored[start + row - first:start + row - first + valid, x:x + 64] = values[:valid]
    return torch.equal(loaded, expected), torch.equal(to[first:end], stored)


# ---- Checks ---------------------------------------------------------------------------------------------------------


def random(*shape):
    return torch.randn(shape, device=DEVICE).bfloat16()


def offsets_of(counts):
    return torch.tensor([0, *counts], device=DEVICE).cumsum(0).to(torch.int32)


def segments(offsets):
    bounds = offsets.tolist()
    return list(enumerate(zip(bounds, bounds[1:])))


def swiglu(pre, p):
    gate, up = pre.double().chunk(2, 1)
    return torch.nn.functional.silu(gate) * up * p.double()[:, None]


def error_of(found, expected, scale=0.1):
    if expected.numel() == 0:
        return 0.0
    error = ((found.double() - expected).abs() / (expected.abs() + scale)).max().item()
    return error if error == error else float("inf")


class Case:
    """Operands of one set of segments, and the expected results, in f64. Rows behind the last segment are NaN."""

    def __init__(self, counts, n, k, spare):
        self.offsets, self.used = offsets_of(counts), sum(counts)
        self.rows, experts = self.used + spare, len(counts)
        self.n, self.k = n, k
        self.x, self.dy, self.w = random(self.rows, k), random(self.rows, n), random(experts, n, k)
        # For SwiGLU: n is 2 F of up, and k is F of down.
        self.pre, self.p = random(self.rows, 2 * k), torch.rand(self.rows, device=DEVICE)
        for poisoned in (self.x, self.dy, self.pre, self.p):
            poisoned[self.used:] = float("nan")
        self.forward = torch.zeros(self.used, n, dtype=torch.float64, device=DEVICE)
        self.input = torch.zeros(self.used, k, dtype=torch.float64, device=DEVICE)
        self.weight = torch.zeros(experts, n, k, dtype=torch.float64, device=DEVICE)
        for e, (start, end) in segments(self.offsets):
            w = self.w[e].double()
            x, dy = self.x[start:end].double(), self.dy[start:end].double()
            self.forward[start:end], self.input[start:end], self.weight[e] = x @ w.t(), dy @ w, dy.t() @ x

    def filled(self, columns, dtype=torch.bfloat16):
        return torch.full((self.rows, columns), SENTINEL, dtype=dtype, device=DEVICE)

    def run(self, kernels, form, variant):
        """The results of a kernel, the parts that it must not have written, and its errors."""
        n, k, used = self.n, self.k, self.used
        if form == "forward":
            out = self.filled(n)
            kernels.forward(variant, self.offsets, self.x, self.w, out)()
            return [out], [out[used:]], [error_of(out[:used], self.forward)]
        if form == "input":
            out = self.filled(k)
            kernels.input(variant, self.offsets, self.dy, self.w, out)()
            return [out], [out[used:]], [error_of(out[:used], self.input)]
        if form.startswith("weight"):
            generator = torch.Generator(DEVICE).manual_seed(1)
            before = torch.randn(self.weight.shape, device=DEVICE, generator=generator)
            dw = before.clone() if form == "weight_add" else torch.full_like(before, float("nan"))
            kernels.weight(form, variant, self.offsets, self.dy, self.x, dw)()
            expected = self.weight + before.double() if form == "weight_add" else self.weight
            # Sums of f32 are much nearer than those of bf16.
            return [dw], [], [100 * error_of(dw, expected, 1.0)]
        if form == "forward_swiglu":
            pre, h = self.filled(n), self.filled(n // 2)
            kernels.forward_swiglu(variant, self.offsets, self.x, self.w, pre, h, self.p)()
            errors = [error_of(pre[:used], self.forward), error_of(h[:used], swiglu(pre[:used], self.p[:used]))]
            return [pre, h], [pre[used:], h[used:]], errors
        d_pre, h = self.filled(2 * k), self.filled(k)
        parts = self.filled((k + 127) // 128, torch.float32)
        kernels.input_swiglu(variant, self.offsets, self.dy, self.w, self.pre, self.p, d_pre, h, parts)()
        pre, p = self.pre[:used].double().requires_grad_(), self.p[:used].double().requires_grad_()
        expected_h = swiglu(pre, p)
        of_pre, of_p = torch.autograd.grad(expected_h, (pre, p), self.input)
        errors = [error_of(d_pre[:used], of_pre), error_of(h[:used], expected_h.detach())]
        # A sum of many terms of both signs: relative to their size.
        size = (self.input * swiglu(self.pre[:used], torch.ones_like(self.p[:used]))).abs().sum(1) + 1
        if used:
            errors.append(100 * ((parts[:used].double().sum(1) - of_p).abs() / size).max().item())
        return [d_pre, h, parts], [d_pre[used:], h[used:], parts[used:]], errors


def verify(kernels, quick):
    """Whether every kernel is right."""
    sizes = [(640, 320), (512, 256), (128, 64)]
    cases = {
        "balanced": [128] * 4, "one hot": [7, 900, 3, 0, 12], "empty": [0, 0, 130, 0], "all to one": [0, 0, 700, 0, 0],
        "single rows": [1] * 9, "ragged": [65, 1, 127, 129, 63, 255, 257, 31], "no rows": [0, 0, 0],
        "many": [(i * 37) % 90 for i in range(200)],
    }
    made = [(f"{name}, {n} x {k}", Case(counts, n, k, 70)) for name, counts in cases.items()
            for n, k in (sizes[:1] if quick else sizes) if name != "many" or n == 512]
    generator = torch.Generator().manual_seed(2)
    counts = torch.randint(0, 400, (64,), generator=generator).tolist()
    made.append(("olmoe, 2048 x 1024", Case(counts, 2048, 1024, 1000)))
    wrong, worst = [], {}
    for what, case in made:
        for form, variants in FORMS.items():
            for variant in variants:
                now(f"{form}_{variant}, {kernels.name}, {what}")
                results, untouched, errors = case.run(kernels, form, variant)
                again, _, _ = case.run(kernels, form, variant)
                torch.cuda.synchronize()
                name, error = f"{form}_{variant}", max(errors)
                worst[name] = max(worst.get(name, 0), error)
                # Half a unit of the last place of bf16 is 2^-8 at most, or 0.004.
                if not error < 0.01:
                    wrong.append(f"{name}: {what}: errors {', '.join(f'{e:.1e}' for e in errors)}")
                if not all(bool((part == SENTINEL).all()) for part in untouched):
                    wrong.append(f"{name}: {what}: wrote behind the last segment")
                if not all(torch.equal(a, b) for a, b in zip(results, again)):
                    wrong.append(f"{name}: {what}: another run gave other bits")
    print(f"{kernels.name}: {len(made)} cases, largest relative errors (f32 sums x 100):")
    print("  " + ", ".join(f"{name} {error:.1e}" for name, error in worst.items()))
    for line in wrong[:20]:
        print("  WRONG " + line)
    return not wrong


# ---- Times ----------------------------------------------------------------------------------------------------------


def rate(run, flops, milliseconds):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    count = max(3, min(400, int(milliseconds / max(start.elapsed_time(end), 1e-3))))
    start.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return flops * count / start.elapsed_time(end) / 1e9


def counts_of(rows, experts, skewed):
    """Rows of experts, balanced or by rank^-0.7 in a random order, as the peer's gemm_bench.py has them."""
    if not skewed:
        return [rows // experts] * experts
    weights = torch.arange(1, experts + 1).double() ** -0.7
    weights = weights[torch.randperm(experts, generator=torch.Generator().manual_seed(1))]
    counts = (weights / weights.sum() * rows).long()
    counts[int(counts.argmax())] += rows - int(counts.sum())
    return counts.tolist()


def transposed(tensor):
    return tensor.transpose(-2, -1)


def measure(name, rows, kernels, other, milliseconds, until):
    """Prints the rates of the products of one model: of each variant, of torch._grouped_mm, of a dense product."""
    experts, hidden, inner = MODELS[name]
    x, h, dy, do = random(rows, hidden), random(rows, inner), random(rows, 2 * inner), random(rows, hidden)
    up, down = random(experts, 2 * inner, hidden) * 0.02, random(experts, hidden, inner) * 0.02
    pre, p = random(rows, 2 * inner), torch.rand(rows, device=DEVICE)
    outs = {columns: torch.empty(rows, columns, dtype=torch.bfloat16, device=DEVICE)
            for columns in (hidden, inner, 2 * inner)}
    dw = torch.zeros(up.numel(), device=DEVICE)
    dw_up, dw_down = dw.view(up.shape), dw[:down.numel()].view(down.shape)
    parts = torch.empty(rows, (inner + 127) // 128, device=DEVICE)
    grouped, flops = torch._grouped_mm, 2.0 * rows * hidden * inner
    # Name: form, FLOPs, ours of (kernels, variant, offsets), PyTorch's of offsets, dense.
    products = {
        "up fwd": ("forward", 2 * flops, lambda ks, v, o: ks.forward(v, o, x, up, outs[2 * inner]),
                   lambda o: grouped(x, transposed(up), offs=o), lambda: x @ transposed(up[0])),
        "up+act": ("forward_swiglu", 2 * flops,
                   lambda ks, v, o: ks.forward_swiglu(v, o, x, up, outs[2 * inner], outs[inner], p), None, None),
        "dn fwd": ("forward", flops, lambda ks, v, o: ks.forward(v, o, h, down, outs[hidden]),
                   lambda o: grouped(h, transposed(down), offs=o), lambda: h @ transposed(down[0])),
        "dn dx": ("input", flops, lambda ks, v, o: ks.input(v, o, do, down, outs[inner]),
                  lambda o: grouped(do, down, offs=o), lambda: do @ down[0]),
        "dn dx+act": ("input_swiglu", flops,
                      lambda ks, v, o: ks.input_swiglu(v, o, do, down, pre, p, outs[2 * inner], outs[inner], parts),
                      None, None),
        "up dx": ("input", 2 * flops, lambda ks, v, o: ks.input(v, o, dy, up, outs[hidden]),
                  lambda o: grouped(dy, up, offs=o), lambda: dy @ up[0]),
        "up dw": ("weight_write", 2 * flops, lambda ks, v, o: ks.weight("weight_write", v, o, dy, x, dw_up),
                  lambda o: grouped(transposed(dy), x, offs=o), lambda: transposed(dy) @ x),
        "up dw+=": ("weight_add", 2 * flops, lambda ks, v, o: ks.weight("weight_add", v, o, dy, x, dw_up), None, None),
        "dn dw": ("weight_write", flops, lambda ks, v, o: ks.weight("weight_write", v, o, do, h, dw_down),
                  lambda o: grouped(transposed(do), h, offs=o), lambda: transposed(do) @ h),
        "dn dw+=": ("weight_add", flops, lambda ks, v, o: ks.weight("weight_add", v, o, do, h, dw_down), None, None),
    }
    segments_of = {kind: offsets_of(counts_of(rows, experts, kind == "skew")) for kind in ("even", "skew")}
    totals = {}
    for product, (form, work, ours, theirs, dense) in products.items():
        if form not in FORMS:
            continue
        line, found = f"{name:7s} {rows // 1024:3d}k {product:9s}", {}
        for kind, offsets in segments_of.items():
            if time.time() > until:
                print("out of time")
                return
            rates = {}
            now(f"{name} {rows} {product} {kind}")
            for variant in FORMS[form]:
                rates[variant] = rate(ours(kernels, variant, offsets), work, milliseconds)
            best = max(rates, key=rates.get)
            line += f" | {kind} " + " ".join(f"{rates[v]:4.0f}" for v in FORMS[form])
            line += "     " * (4 - len(FORMS[form]))
            if other is not None:
                line += f" other {rate(ours(other, best, offsets), work, milliseconds):4.0f}"
            if theirs is not None:
                # PyTorch's offsets are the segments' ends.
                ends = offsets[1:].contiguous()
                found[kind] = rates[best], rate(lambda: theirs(ends), work, milliseconds)
                line += f" torch {found[kind][1]:4.0f}"
                for who, speed in zip(("ours", "torch"), found[kind]):
                    totals[kind, who] = totals.get((kind, who), 0) + work / speed
            else:
                line += "           "
        if dense is not None:
            speed = rate(dense, work, milliseconds)
            totals["even", "dense"] = totals.get(("even", "dense"), 0) + work / speed
            line += f" | dense {speed:4.0f}"
        print(line.rstrip(), flush=True)
    if len(FORMS) < 6:
        return
    speeds = {key: 9 * flops / total for key, total in totals.items()}
    print(f"{name:7s} {rows // 1024:3d}k ALL SIX   " + ", ".join(f"{k} {w} {s:.0f}" for (k, w), s in speeds.items()))


def main():
    global driver
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--probe", action="store_true", help="nothing but the probe")
    parser.add_argument("--rows", default="16384,65536")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--forms", default=",".join(FORMS))
    arguments = parser.parse_args()
    begun = time.time()
    if not arguments.probe:
        # Processes of their own compile, because NVRTC takes one source at a time; and the probe may break its context.
        probing = subprocess.Popen([sys.executable, __file__, "--probe"])
        with concurrent.futures.ProcessPoolExecutor(4) as pool:
            jobs = {key: pool.submit(compiled, "grouped.cu", key) for key in ((1, 1), (1, 0), (0, 1), (0, 0))}
            cubins = {key: job.result() for key, job in jobs.items()}
        works = max(0, probing.wait() - 10)
        works = (works & 1, works >> 1) if works <= 3 else (0, 0)
    driver = ctypes.CDLL("libcuda.so.1")
    torch.cuda.init()
    torch.manual_seed(1)
    torch.zeros(1, device=DEVICE)
    now("probe")
    sys.excepthook = report
    threading.Thread(target=watch, daemon=True).start()
    if arguments.probe:
        probe()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; compiled in {time.time() - begun:.0f} s")
    print(f"probe: ragged loads {'work' if works[0] else 'FAIL'}, ragged stores {'work' if works[1] else 'FAIL'}")
    for form in set(FORMS) - set(arguments.forms.split(",")):
        del FORMS[form]
    kernels, other = Kernels(cubins[works], works), None
    right = verify(kernels, arguments.quick)
    if any(works):
        other = Kernels(cubins[0, 0], (0, 0))
        right = verify(other, arguments.quick) and right
    print(f"checked after {time.time() - begun:.0f} s: {'all right' if right else 'SOME ARE WRONG'}", flush=True)
    print(f"\nTFLOP/s with {kernels.name}. Tiles and pairs in order: 256 alone, 256 rows, 256 columns, 128 columns;")
    print("of weights: 256 alone, 256 rows, 256 rows boxed.")
    print("other: the best of them with loads zeroed, stores masked. dense: one matrix of as many rows.")
    for rows in [int(rows) for rows in arguments.rows.split(",")][-1 if arguments.quick else 0:]:
        for name in arguments.models.split(","):
            measure(name, rows, kernels, other, 20 if arguments.quick else 50, begun + 140)
            torch.cuda.empty_cache()
    print(f"{time.time() - begun:.0f} s")
    if not right:
        sys.exit("a result is wrong")


if __name__ == "__main__":
    main()
