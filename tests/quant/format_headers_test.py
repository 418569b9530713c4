#!/usr/bin/env python3
"""Compiles every format header as what it must be: CUDA C++ (nvcc) and, with a shim, as MSL (clang, C++14, address spaces).

  format_headers_test.py [--require cuda,msl]

A compiler that is missing is named; it is a failure only for a language that --require names. Nothing is run.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SRC = HERE.parent.parent / "src"
MSL_FLAGS = ["-x", "c++", "-std=c++14", "-target", "aarch64-linux-gnu", "-nostdinc", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             "-Wno-unused-const-variable", "-D__METAL_VERSION__=240", "-I", str(HERE / "msl_shim"), "-I", str(SRC)]


def names():
    return re.findall(r"^FORMAT\((\w+),", (SRC / "quant/formats.def").read_text(), re.M)


def nvcc_command(folder):
    return ["nvcc", "-std=c++20", "-arch=sm_90", "-Werror", "all-warnings", "-I", str(SRC), "-c", str(HERE / "format_headers.cu"), "-o",
            str(folder / "format_headers.o")]


def msl_command(folder):
    text = "".join(f'#include "quant/{name}.h"\n' for name in names())
    # Blocks come to a kernel by pointers with an address space; the decoders take values loaded through them.
    text += """
float one(const __attribute__((address_space(1))) argent::block_q4_k* blocks, unsigned i) {
  return argent::q4_k_value(argent::qk_half(blocks[i].d), argent::qk_half(blocks[i].dmin), argent::q4_k_quants(blocks[i].qs[0], 1));
}
"""
    (folder / "all.metal").write_text(text)
    return ["clang++", *MSL_FLAGS, str(folder / "all.metal")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--require", default="", help="languages whose compiler must be there: cuda, msl")
    required = set(filter(None, parser.parse_args().require.split(",")))
    if required - {"cuda", "msl"}:
        parser.error("--require takes cuda and msl")
    used = (HERE / "format_headers.cu").read_text()
    failed = False
    for name in names():
        text = (SRC / f"quant/{name}.h").read_text()
        unused = [f for f in re.findall(r"^QK_FN \w+ (\w+)\(", text, re.M) if f + "(" not in used]
        if unused:
            failed = True
            print(f"FAIL cuda: format_headers.cu does not use {', '.join(unused)} of {name}.h")
    with tempfile.TemporaryDirectory() as folder:
        for language, compiler, command in (("cuda", "nvcc", nvcc_command), ("msl", "clang++", msl_command)):
            if not shutil.which(compiler):
                failed |= language in required
                print(f"{'FAIL' if language in required else 'NOT COMPILED'} {language}: no {compiler} on this machine")
                continue
            run = subprocess.run(command(pathlib.Path(folder)), capture_output=True, text=True, check=False)
            failed |= run.returncode != 0
            print(f"{'FAIL' if run.returncode else 'ok'} {language}: {len(names())} headers with {compiler}")
            print(run.stdout + run.stderr, end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
