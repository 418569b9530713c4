#!/usr/bin/env python3
"""Holds decode_row and uniform_row to PyPI gguf, bit for bit, over random and hostile blocks of every format.

  formats_test.py PROBE            PROBE is the built argent_format_probe
  formats_test.py --write-golden   rewrites golden.txt, which the C++ test reads, from gguf

NaNs count as equal whatever their sign and payload: which operand's payload survives is the compiler's choice.
Exit status 77: no gguf or numpy in this Python, nothing was tested.
"""
import argparse
import pathlib
import re
import subprocess
import sys

try:
    import gguf
    import numpy as np
    from gguf.quants import dequantize
except ImportError as error:
    print(f"formats_test: skipped, nothing was tested: {error}", file=sys.stderr)
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
DEF = HERE.parent.parent / "src/quant/formats.def"

# Byte offsets of the half-precision fields of a block.
HALVES = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "F32": [], "BF16": []}
# Zeros, subnormals, the borders of normals, one, infinities, NaNs.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF]


def formats():
    rows = re.findall(r"^FORMAT\(\w+,\s*(\w+),\s*(\d+),\s*(\d+),\s*(\d+)\)", DEF.read_text(), re.M)
    return [(name, gguf.GGMLQuantizationType(int(id)), int(block), int(size)) for name, id, block, size in rows]


def put_halves(blocks, name, values):
    for offset in HALVES[name]:
        blocks[:, offset:offset + 2] = values(len(blocks)).astype(np.uint16).view(np.uint8).reshape(-1, 2)


def cases(name, size, rng):
    """Yields (label, blocks as uint8[n, size])."""
    yield "random bytes", rng.integers(0, 256, (4096, size), np.uint8)
    if size <= 4:  # scalars: all 16-bit values; for F32 as upper and as lower half
        every = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
        if size == 2:
            yield "every value", every
        else:
            low = rng.integers(0, 256, (65536, 2), np.uint8)
            yield "every upper half", np.ascontiguousarray(np.hstack([low, every]))
        return
    sane = rng.integers(0, 256, (1024, size), np.uint8)
    put_halves(sane, name, lambda n: rng.normal(0, 0.05, n).astype(np.float16).view(np.uint16))
    yield "finite scales", sane
    yield "one byte value", np.repeat(np.arange(256, dtype=np.uint8)[:, None], size, 1)
    bits = np.zeros((size * 8, size), np.uint8)
    bits[np.arange(size * 8), np.arange(size * 8) // 8] = 1 << (np.arange(size * 8) % 8)
    yield "one bit set, scales zero", bits
    for field, fill in (("zeros", 0), ("ones", 255)):
        lit = bits ^ np.uint8(fill)
        put_halves(lit, name, lambda n: np.full(n, 0x3C00))
        yield f"one bit of {field} flipped, scales one", lit
    for first in SPECIAL if HALVES[name] else []:
        blocks = rng.integers(0, 256, (len(SPECIAL) * 2, size), np.uint8)
        put_halves(blocks, name, lambda n: np.resize(np.array(SPECIAL), n))
        offset = HALVES[name][0]
        blocks[:, offset:offset + 2] = np.array([first], np.uint16).view(np.uint8)
        blocks[len(SPECIAL):, [i for i in range(size) if not any(h <= i < h + 2 for h in HALVES[name])]] = 0
        yield f"special halves, the first {first:04x}", blocks
    if name == "MXFP4":
        blocks = rng.integers(0, 256, (256, size), np.uint8)
        blocks[:, 0] = np.arange(256)
        yield "every exponent", blocks


def want(blocks, kind):
    with np.errstate(all="ignore"):
        return dequantize(blocks, kind).reshape(-1).astype(np.float32, copy=False)


def difference(name, got, expect, block):
    """None when equal bit for bit, or a line that names the first difference."""
    if got.size != expect.size:
        return f"{got.size} elements, not {expect.size}"
    same = (got.view(np.uint32) == expect.view(np.uint32)) | (np.isnan(got) & np.isnan(expect))
    if same.all():
        return None
    i = int(np.argmin(same))
    return (f"{int((~same).sum())} of {same.size} elements differ; the first is element {i % block} of block {i // block}: "
            f"{got[i]!r} ({got.view(np.uint32)[i]:08x}), gguf has {expect[i]!r} ({expect.view(np.uint32)[i]:08x})")


def probe(path, name, mode, blocks):
    run = subprocess.run([path, name, *mode], input=blocks.tobytes(), capture_output=True, check=False)
    if run.returncode:
        raise SystemExit(f"{path} {name}: exit {run.returncode}: {run.stderr.decode(errors='replace')}")
    return np.frombuffer(run.stdout, np.float32)


def check(path):
    failures = 0
    for name, kind, block, size in formats():
        rng = np.random.default_rng(int(kind))
        labels, sets = zip(*cases(name, size, rng))
        blocks = np.concatenate(sets)
        labels = np.repeat(np.arange(len(sets)), [len(s) for s in sets]), labels
        expect = want(blocks, kind)
        for mode in [()] + ([("uniform",)] if block > 1 else []):
            got = probe(path, name, mode, blocks)
            text = difference(name, got, expect, block)
            if text:
                failures += 1
                at = re.search(r"of block (\d+)", text)
                where = f" ({labels[1][labels[0][int(at[1])]]})" if at else ""
                print(f"FAIL {name} {' '.join(mode)}: {text}{where}")
        print(f"{name}: {len(blocks)} blocks")
    print("FAILED" if failures else "all formats agree with gguf bit for bit")
    return 1 if failures else 0


def write_golden():
    """A few blocks a format: random ones with finite scales, one of random bytes, one of ones, special halves."""
    lines = ["# Golden vectors from PyPI gguf (tests/quant/formats_test.py --write-golden).",
             "# name, a block as hex, FNV-1a 64 of its floats' bits (NaN as 7fc00000), the first 8 floats' bits"]
    for name, kind, block, size in formats():
        rng = np.random.default_rng(1000 + int(kind))
        blocks = rng.integers(0, 256, (8, size), np.uint8)
        put_halves(blocks[:4], name, lambda n: rng.normal(0, 0.05, n).astype(np.float16).view(np.uint16))
        put_halves(blocks[5:], name, lambda n: np.array([0x0001, 0x7C00, 0xFBFF]))
        blocks[7, 4:] = 255
        if name == "MXFP4":
            blocks[5:, 0] = [0, 1, 255]  # the two subnormal scales, the largest
        values = want(blocks, kind)
        bits = np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32)).reshape(8, block)
        for i in range(8):
            digest = 0xCBF29CE484222325
            for byte in bits[i].tobytes():
                digest = (digest ^ byte) * 0x100000001B3 % 2**64
            lines.append(f"{name} {blocks[i].tobytes().hex()} {digest:016x} " + " ".join(f"{b:08x}" for b in bits[i][:8]))
    (HERE / "golden.txt").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe", nargs="?")
    parser.add_argument("--write-golden", action="store_true")
    arguments = parser.parse_args()
    if not arguments.write_golden and not arguments.probe:
        parser.error("the path of argent_format_probe is needed")
    sys.exit(write_golden() if arguments.write_golden else check(arguments.probe))
