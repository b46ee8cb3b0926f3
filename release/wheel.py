"""Makes a Python wheel of the trainer in this folder: python3 release/wheel.py NAME VERSION REPOSITORY PROGRAM LIBRARY...

pip puts the program into the environment's `bin`, and its libraries for MPI into `lib` next to it, where the program looks
for them. The tag names the oldest glibc that has all symbols that the files need.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

# What a system has, by the standard for manylinux. The rest is loaded when it is needed.
SYSTEM = r"(libc|libm|libgcc_s|libpthread|libdl|librt|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d"

# NVIDIA's wheels by the driver's CUDA, as `trainer doctor` and its errors name them.
EXTRAS = {
    "cuda12": ["nvidia-cublas-cu12>=12.8", "nvidia-cuda-nvrtc-cu12>=12.8", "nvidia-cudnn-cu12>=9.10.2",
               "nvidia-nccl-cu12>=2.9", "nvidia-cuda-cupti-cu12>=12.8"],
    "cuda13": ["nvidia-cublas>=13,<14", "nvidia-cuda-nvrtc>=13,<14", "nvidia-cudnn-cu13>=9.10.2",
               "nvidia-nccl-cu13>=2.9", "nvidia-cuda-cupti>=13,<14"],
}


def fail(problem):
    sys.exit(f"wheel: {problem}")


def readelf(option, path):
    return subprocess.run(["readelf", "--wide", option, path], check=True, capture_output=True, text=True).stdout


def glibc(path):
    """The minor version of the glibc 2 that a program or library needs: at least 17, the oldest of manylinux."""
    needed = re.findall(r"Name: GLIBC_2\.(\d+)", readelf("--version-info", path))
    return max(17, *map(int, needed))


def check_libraries(path, allowed):
    """Fails if a file needs a library that systems may lack."""
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic", path)):
        if not re.fullmatch(allowed, needed):
            fail(f"{path} needs {needed}. Rule: systems have all that it is linked to. Fix: load it when it is needed")


def metadata(name, version, folder):
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", "License-Expression: Apache-2.0",
             "License-File: LICENSE", "Summary: A distributed trainer for GPT-class models",
             "Description-Content-Type: text/markdown"]
    for extra, wheels in EXTRAS.items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {wheel} ; extra == "{extra}"' for wheel in wheels]
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
        return "\n".join(lines) + "\n\n" + file.read()


def write(path, files):
    """Writes a wheel. `files` are names, contents and whether they are run."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content, runs in files:
            # All times are alike: the same files make the same wheel.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            wheel.writestr(entry, content)


def main(name, version, folder, program, *libraries):
    check_libraries(program, SYSTEM)
    for library in libraries:
        check_libraries(library, SYSTEM + r"|libmpi.*\.so\.\d+")
    minor = max(map(glibc, (program, *libraries)))
    tag = f"py3-none-manylinux_2_{minor}_{os.uname().machine}"
    base = f"{name}-{version}"
    info = f"{base}.dist-info"

    def read(path):
        with open(path, "rb") as file:
            return file.read()

    files = [(f"{base}.data/scripts/{name}", read(program), True)]
    files += [(f"{base}.data/data/lib/{os.path.basename(library)}", read(library), True) for library in libraries]
    files += [
        (f"{info}/licenses/LICENSE", read(os.path.join(folder, "LICENSE")), False),
        (f"{info}/METADATA", metadata(name, version, folder).encode(), False),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: trainer\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False),
    ]
    record = ""
    for path, content, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), False))
    path = f"{base}-{tag}.whl"
    write(path, files)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) < 6:
        fail(__doc__.strip())
    main(*sys.argv[1:])
