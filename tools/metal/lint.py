#!/usr/bin/env python3
"""Lints kernels with clang, which knows address spaces as Apple's compiler does and g++ does not. Nothing is compiled to code.

  lint.py [FILE...]    all kernels of src/backends/metal/kernels without files
  lint.py --selftest   shows that faults put into the kernels are refused
  lint.py --require    a missing clang++ is a failure

Two passes: C++17 with address_space attributes and clang's vectors (spaces of pointers, const, mixed vector types), and C++ for
OpenCL (casts between address spaces). Both read the text as Apple's compiler would, with __METAL_VERSION__ defined.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import gen

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "src/backends/metal/kernels"
SHIM = ROOT / "src/backends/metal/shim"
COMMON = ["-fsyntax-only", "-D__METAL_VERSION__=310", "-I", str(ROOT / "src"), "-Werror", "-Wno-unknown-attributes", "-Wno-unused-function",
          "-Wno-unused-parameter", "-Wno-undefined-internal", "-Wno-undefined-inline"]
PASSES = {
    "address spaces": ["clang++", "-x", "c++", "-std=c++17", "-target", "aarch64-linux-gnu", "-nostdinc", "-Wall", "-Wextra", "-Wdouble-promotion",
                       "-Wno-unused-variable", "-Wno-unused-const-variable", *COMMON, "-I", str(SHIM / "lint")],
    "casts": ["clang", "-x", "cl", "-cl-std=clc++2021", "-target", "spir64", "-Xclang", "-finclude-default-header", "-Wno-pragma-once-outside-header",
              *COMMON, "-I", str(SHIM / "lintcl")],
}


def lint(path):
    """(pass, first lines of what it says) for every pass that refuses the file."""
    errors = gen.read(gen.load(path), str(path)).errors
    if errors:
        yield "dialect", "\n".join(f"{path}:{line}: {message}" for line, message in errors)
    for name, command in PASSES.items():
        run = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
        if run.returncode:
            yield name, "\n".join(run.stderr.splitlines()[:12])


# (file, what stands there, what a slip makes of it)
FAULTS = [
    ("mul_mv.metal", "device const float* row_x = x", "const float* row_x = x"),
    ("get_rows.metal", "device float4* to = reinterpret_cast<device float4*>", "device float4* to = reinterpret_cast<threadgroup float4*>"),
    ("mul_mm.metal", "device const float4* from = reinterpret_cast<device const float4*>(", "constant float4* from = (constant float4*)("),
    ("mul_mv.metal", "device float* y, uint token", "float* y, uint token"),
    ("mul_mv.metal", "device float* y [[buffer(3)]]", "float* y [[buffer(3)]]"),
    ("mul_mm.metal", "const uint blocks = args.cols / Reader::kElements;", "args.cols = 32; const uint blocks = 1;"),
    ("mul_mv.metal", "y[ulong(token) * args.y_stride + first + r] = total;", "row_x[first + r] = total;"),
    ("get_rows.metal", "to[0] = low;", "to[0] = half4(low);"),
    ("rms_norm.metal", "float sum = 0.0f;", "float sum = 0.0;"),
    ("rms_norm.metal", "float total = 0.0f;", "threadgroup float total;"),
    ("mul_mm.metal", "threadgroup half* tile_x = tiles", "half* tile_x = tiles"),
    ("mul_mm.metal", "threadgroup half4* to = reinterpret_cast<threadgroup half4*>(tile_x", "device half4* to = (device half4*)(tile_x"),
    ("mul_mm.metal", "to[0] = half4(low * staged.scale);", "to[0] = low * staged.scale;"),
    ("mul_mm.metal", "threadgroup const half* tile_x, uint first_row", "device const half* tile_x, uint first_row"),
    ("mul_mm.metal", "threadgroup float* scratch = reinterpret_cast<threadgroup float*>(tiles) + 128", "threadgroup float* scratch = tiles + 128"),
    ("mul_mm.metal", "threadgroup half* tiles, uint3 group", "device half* tiles, uint3 group"),
    ("attention_decode.metal", "const float4 query = my_queries[", "const half4 query = my_queries["),
    ("attention_decode.metal", "const float lowest = -1.0e30f;", "const float lowest = -INFINITY;"),
]


def selftest():
    missed = []
    caught = dict.fromkeys(["dialect", *PASSES], 0)
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, of, to) in enumerate(FAULTS):
            text = (KERNELS / name).read_text()
            pattern = r"\s+".join(map(re.escape, of.split()))  # however the line is broken
            assert re.search(pattern, text), f"{name} has no longer: {of}"
            path = pathlib.Path(folder) / f"{i}_{name}"
            path.write_text(re.sub(pattern, lambda _: to, text, count=1))
            refused = [p for p, _ in lint(path)]
            if not refused:
                missed.append(f"{name}: {to}")
            elif len(refused) == 1:
                caught[refused[0]] += 1
    alone = ", ".join(f"{n} by {p} alone" for p, n in caught.items())
    print(f"{len(FAULTS) - len(missed)} of {len(FAULTS)} faults refused: {alone}")
    print("".join(f"missed: {m}\n" for m in missed), end="")
    return not missed


def main():
    arguments = sys.argv[1:]
    if any(a.startswith("-") and a not in ("--selftest", "--require") for a in arguments):
        sys.exit(__doc__)
    if not shutil.which("clang++") or not shutil.which("clang"):
        print("NOT LINTED: no clang++ on this machine")
        sys.exit("--require" in arguments)
    if "--selftest" in arguments:
        sys.exit(0 if selftest() else 1)
    files = [pathlib.Path(a) for a in arguments if a != "--require"] or sorted(KERNELS.glob("*.metal"))
    wrong = [(path, name, text) for path in files for name, text in lint(path)]
    for path, name, text in wrong:
        print(f"{path}: {name}\n{text}")
    print(f"{len(files)} files, {len(wrong)} refused")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
