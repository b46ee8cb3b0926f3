"""Checks product.cu against f64 and times it beside PyTorch's cuBLAS. Fails if a result is wrong.

    python bench/trials/hopper_product/measure.py

It needs one GPU of compute capability 9.0, PyTorch with CUDA 13, and NVRTC. Each kernel runs for half a second in each
of three rounds in turn, so all run at the clock of the power limit. The medians are printed.
"""

import ctypes
import struct
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[2] / "device/kernels"
SHARED_BYTES = 1024 + 3 * 49152 + 65536 + 1024 + 256
SHAPES = [(65536, 3072, 768), (4096, 3072, 768), (16384, 8192, 2048)]
driver = ctypes.CDLL("libcuda.so.1")


def check(call, status):
    if status != 0:
        raise RuntimeError(f"{call} failed with {status}")


def compiled():
    """The machine code of product.cu."""
    nvrtc = ctypes.CDLL("libnvrtc.so.13")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = (HERE / "product.cu").read_bytes()
    check("nvrtcCreateProgram", nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"product.cu", 0, None, None))
    options = [b"--std=c++17", b"-default-device", b"--gpu-architecture=sm_90a", b"-I" + str(KERNELS).encode()]
    status = nvrtc.nvrtcCompileProgram(program, 4, (ctypes.c_char_p * 4)(*options))
    if status != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode())
    check("nvrtcGetCUBINSize", nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    check("nvrtcGetCUBIN", nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def aligned(content):
    """A copy of bytes at an address that is a multiple of 64, and what keeps it there."""
    memory = ctypes.create_string_buffer(len(content) + 64)
    address = (ctypes.addressof(memory) + 63) & ~63
    ctypes.memmove(address, content, len(content))
    return address, memory


def tensor_map(matrix, columns, rows):
    """A CUtensorMap of bf16 with boxes of that size, swizzled over 128 bytes."""
    address, _memory = aligned(bytes(128))
    sizes = (ctypes.c_uint64 * 2)(matrix.shape[1], matrix.shape[0])
    stride, box, steps = (ctypes.c_uint64 * 1)(matrix.shape[1] * 2), (ctypes.c_uint32 * 2)(columns, rows), (1, 1)
    status = driver.cuTensorMapEncodeTiled(ctypes.c_void_p(address), 9, 2, ctypes.c_void_p(matrix.data_ptr()), sizes,
                                           stride, box, (ctypes.c_uint32 * 2)(*steps), 0, 3, 2, 0)
    check("cuTensorMapEncodeTiled", status)
    return ctypes.string_at(address, 128)


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class Config(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


def launcher(module, name, a, b, out, pre, sums):
    """A function that launches a kernel on these matrices."""
    function = ctypes.c_void_p()
    check("cuModuleGetFunction", driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    check("cuFuncSetAttribute", driver.cuFuncSetAttribute(function, 8, SHARED_BYTES))
    maps = (tensor_map(a, 64, 128), tensor_map(b, 64, 128 if name == "plain_nt" else 64), tensor_map(out, 64, 64),
            tensor_map(pre, 64, 128))
    (m, k), n = a.shape, out.shape[1]
    block = struct.pack("<QQIII36x", pre.data_ptr(), sums.data_ptr(), m // 256, n // 256, k // 64)
    address, memory = aligned(b"".join(maps) + block)
    arguments, cluster = (ctypes.c_void_p * 1)(address), Attribute(4, 0, (2, 1, 1))
    blocks = torch.cuda.get_device_properties(0).multi_processor_count // 2 * 2
    stream = torch.cuda.current_stream().cuda_stream
    config = Config(blocks, 1, 1, 384, 1, 1, SHARED_BYTES, stream, ctypes.pointer(cluster), 1)
    kept = (memory, a, b, out, pre, sums)
    return lambda: (kept, check(name, driver.cuLaunchKernelEx(ctypes.byref(config), function, arguments, None)))


def gelu_derivative(x):
    x = x.double().requires_grad_()
    return torch.autograd.grad(torch.nn.functional.gelu(x, approximate="tanh").sum(), x)[0]


def verify(module, m, n, k):
    """Prints the largest error of each kernel. Half a unit of the last place of bf16 is 2^-9, or 0.002."""
    a, weight, pre = [torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (k, n), (m, n))]
    out, sums = torch.empty_like(pre), torch.empty(m // 64, n, device="cuda")
    plain = a.double() @ weight.double()
    for name in ("plain_nn", "plain_nt", "gelu_backward", "gelu_backward_sums"):
        b = weight.t().contiguous() if name == "plain_nt" else weight
        launcher(module, name, a, b, out.fill_(float("nan")), pre, sums)()
        torch.cuda.synchronize()
        expected = plain if name.startswith("plain") else plain * gelu_derivative(pre)
        error = ((out.double() - expected).abs() / (expected.abs() + 0.1)).max().item()
        print(f"{m}x{n}x{k} {name}: relative error {error:.1e}")
        if not error < 0.005:
            raise RuntimeError(f"{name} is wrong")
        if name.endswith("sums"):
            error = (sums.double().sum(0) - out.double().sum(0)).abs().max() / expected.abs().sum(0).max()
            if not error < 1e-5:
                raise RuntimeError(f"column sums are wrong by {error.item():.1e}")


def microseconds(run, seconds=0.5):
    """At a clock that has settled."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    until, count = time.time() + seconds / 2, 0
    while time.time() < until:
        for _ in range(10):
            run()
        torch.cuda.synchronize()
        count += 10
    start.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count * 1e3


def measure(module, m, n, k):
    a, weight, pre = [torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (k, n), (m, n))]
    out, sums = torch.empty_like(pre), torch.empty(m // 64, n, device="cuda")
    runs = {"torch, plain": lambda: torch.matmul(a, weight, out=out), "torch, column sums": lambda: torch.sum(pre, 0)}
    for name in ("plain_nn", "gelu_backward", "gelu_backward_sums"):
        runs[name] = launcher(module, name, a, weight, out, pre, sums)
    times = {name: [] for name in runs}
    for _ in range(3):
        for name, run in runs.items():
            times[name].append(microseconds(run))
    for name, found in times.items():
        print(f"{m}x{n}x{k} {name}: {sorted(found)[1]:.1f} us")


def main():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    module, cubin = ctypes.c_void_p(), compiled()
    check("cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), cubin))
    verify(module, 512, 512, 256)
    verify(module, 4096, 3072, 768)
    for shape in SHAPES:
        measure(module, *shape)


if __name__ == "__main__":
    main()
