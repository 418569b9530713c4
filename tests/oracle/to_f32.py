#!/usr/bin/env python3
"""Rewrite a GGUF file with every tensor as F32: the weights that `llama-quantize --allow-requantize IN OUT F32` writes.

    to_f32.py IN.gguf OUT.gguf

Keys are copied byte for byte, only general.file_type becomes 0 (F32). Tensors are decoded a slab at a time by the
PyPI package gguf.
"""

import hashlib
import os
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGML_QUANT_SIZES
from gguf.quants import dequantize

SLAB = 1 << 22  # elements decoded at once
SCALAR_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


@dataclass
class Tensor:
    name: bytes
    dims: tuple  # ggml order: the row length first
    type: GGMLQuantizationType
    offset: int  # from the start of the file

    @property
    def elements(self):
        return int(np.prod(self.dims, dtype=np.uint64))


class Header:
    """The raw keys and the tensor table of a well-formed little-endian GGUF file."""

    def __init__(self, data):
        self.data = data
        magic, version, n_tensors, n_keys = struct.unpack_from("<4sIQQ", data, 0)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"not a GGUF file of version 2 or 3: {bytes(magic)!r}, {version}")
        self.keys, self.key_at, at, alignment = [], {}, 24, 32
        for _ in range(n_keys):
            start, key, at = at, *self.string(at)
            (kind,) = struct.unpack_from("<I", data, at)
            self.key_at[key] = (len(self.keys), at - start)
            if key == b"general.alignment":
                (alignment,) = struct.unpack_from("<I", data, at + 4)
            at = self.skip(kind, at + 4)
            self.keys.append(bytes(data[start:at]))
        tensors = []
        for _ in range(n_tensors):
            name, at = self.string(at)
            (n_dims,) = struct.unpack_from("<I", data, at)
            dims = struct.unpack_from(f"<{n_dims}Q", data, at + 4)
            kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * n_dims)
            tensors.append((name, dims, kind, offset))
            at += 16 + 8 * n_dims
        start = -(-at // alignment) * alignment
        self.tensors = [
            Tensor(name, dims, GGMLQuantizationType(kind), start + offset) for name, dims, kind, offset in tensors
        ]

    def string(self, at):
        (length,) = struct.unpack_from("<Q", self.data, at)
        return bytes(self.data[at + 8 : at + 8 + length]), at + 8 + length

    def skip(self, kind, at):
        if kind == STRING:
            return at + 8 + struct.unpack_from("<Q", self.data, at)[0]
        if kind != ARRAY:
            return at + SCALAR_SIZES[kind]
        item, count = struct.unpack_from("<IQ", self.data, at)
        at += 12
        if item in SCALAR_SIZES:
            return at + SCALAR_SIZES[item] * count
        for _ in range(count):
            at = self.skip(item, at)
        return at

    def file_type_zero(self):
        if b"general.file_type" in self.key_at:
            index, length = self.key_at[b"general.file_type"]
            self.keys[index] = self.keys[index][:length] + struct.pack("<II", 4, 0)
        return b"".join(self.keys)


def decode(data, tensor):
    """Yield the tensor's values as flat little-endian float32 arrays, in order."""
    per, size = GGML_QUANT_SIZES[tensor.type]
    blocks, at = tensor.elements // per, tensor.offset
    step = max(1, SLAB // per)
    for first in range(0, blocks, step):
        n = min(step, blocks - first)
        raw = np.frombuffer(data, np.uint8, n * size, at + first * size)
        if tensor.type == GGMLQuantizationType.F32:
            yield raw.view("<f4")
        elif tensor.type == GGMLQuantizationType.F16:
            yield raw.view("<f2").astype("<f4")
        else:
            yield dequantize(raw.reshape(n, size), tensor.type).astype("<f4", copy=False).reshape(-1)


def convert(source, target):
    data = np.memmap(source, np.uint8, "r")
    view = memoryview(data)
    header = Header(view)
    alignment, infos, offset = 32, [], 0
    keys = header.file_type_zero()
    if b"general.alignment" in header.key_at:
        index, length = header.key_at[b"general.alignment"]
        (alignment,) = struct.unpack_from("<I", header.keys[index], length + 4)
    for t in header.tensors:
        infos.append(
            struct.pack("<Q", len(t.name))
            + t.name
            + struct.pack(f"<I{len(t.dims)}QIQ", len(t.dims), *t.dims, 0, offset)
        )
        offset += -(-4 * t.elements // alignment) * alignment
    with open(target, "wb") as out:
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(header.tensors), len(header.keys)) + keys + b"".join(infos))
        for t in header.tensors:
            out.write(bytes(-out.tell() % alignment))
            for slab in decode(view, t):
                out.write(slab.data)
        out.write(bytes(-out.tell() % alignment))


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def cached(source, folder, digest=None):
    """The path of the F32 form of `source` in `folder`, written if it is not there yet."""
    target = Path(folder) / f"{digest or sha256(source)}-f32.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=folder, suffix=".part")
        os.close(handle)
        try:
            convert(source, part)
            os.replace(part, target)
        finally:
            Path(part).unlink(missing_ok=True)
    return target


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(sys.argv[1], sys.argv[2])
