#!/usr/bin/env python3
"""Write a tiny GGUF model with random weights: the layout of a real architecture at a size for tests.

    make_tiny_gguf.py ARCH OUT.gguf [options]        ARCH: llama, qwen2, qwen3, gemma3, muse-glimmer

    --quant TYPES     matrix types, taken in turn (Q4_K or Q4_K,Q6_K,F16); where one does not divide the row, the
                      fall-back of llama-quantize
    --seed N          the same seed and options give the same bytes
    --layers N        and --shape NAME=N for n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab
    --set KEY=JSON    a metadata key, under the architecture's prefix unless it has a known owner; KEY:u64=5 says
                      the type
    --unset KEY       leave a key out
    --tied, --untied  with or without output.weight (default: as the real models of the architecture)
    --bias            biases on q, k, v (always there for qwen2)
    --fused-qkv       one attn_qkv tensor a layer
    --rope-factors    rope_freqs.weight, as Llama 3.1 files have
    --drop GLOB       leave tensors out; --add NAME=TYPE:N0xN1 adds one: for files that must be refused

Blocks are random bits whose scales are random too, around the value that gives a matrix of n columns entries of size
1/sqrt(n). Needs numpy and gguf. The tokenizer is "none", so such a file takes token ids only.
"""

import argparse
import functools
import json
import struct
import sys
from fnmatch import fnmatch

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGML_QUANT_SIZES
from gguf.quants import dequantize

ALIGNMENT = 32
FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
    "MXFP4": 38,
}
SCALES = {  # byte offsets of a block's f16 scale and, where it has one, its f16 minimum
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
FALL_BACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
SHAPES = {
    "llama": dict(n_layer=2, n_embd=256, n_ff=512, n_head=4, n_head_kv=2, head_dim=64, n_vocab=320, tied=False),
    "qwen2": dict(
        n_layer=3, n_embd=256, n_ff=512, n_head=4, n_head_kv=2, head_dim=64, n_vocab=320, tied=True, bias=True
    ),
    "qwen3": dict(
        n_layer=3, n_embd=256, n_ff=768, n_head=4, n_head_kv=2, head_dim=128, n_vocab=320, tied=True, qk_norm=True
    ),
    "gemma3": dict(
        n_layer=7,
        n_embd=256,
        n_ff=768,
        n_head=4,
        n_head_kv=1,
        head_dim=256,
        n_vocab=320,
        tied=True,
        qk_norm=True,
        post_norm=True,
    ),
    "muse-glimmer": dict(
        n_layer=5,
        n_embd=256,
        n_ff=768,
        n_head=4,
        n_head_kv=2,
        head_dim=128,
        n_vocab=320,
        tied=False,
        qk_norm=True,
        post_norm=True,
        gate=True,
    ),
}
KEYS = {
    "llama": {"rope.freq_base": 10000.0},
    "qwen2": {"rope.freq_base": 1e6},
    "qwen3": {"rope.freq_base": 1e6},
    "gemma3": {"rope.freq_base": 1e6, "attention.sliding_window": 16},
    "muse-glimmer": {"rope.freq_base": 5e5, "attention.sliding_window": 16, "logit_scale": 0.25},
}
VALUE_TYPES = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "str": (8, None),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value_type(value):
    for kind, name in (
        (bool, "bool"),
        (int, "u32" if isinstance(value, int) and value >= 0 else "i32"),
        (float, "f32"),
        (str, "str"),
    ):
        if isinstance(value, kind):
            return name
    raise ValueError(f"no GGUF type for {value!r}")


def bare(value, kind):
    return string(value) if kind == "str" else struct.pack("<" + VALUE_TYPES[kind][1], value)


def key_value(key, value):
    """The bytes of a key, its type and its value; "key:u64" forces the type."""
    key, _, kind = key.partition(":")
    if isinstance(value, list):
        kind = kind or value_type(value[0])
        body = struct.pack("<IIQ", 9, VALUE_TYPES[kind][0], len(value)) + b"".join(bare(v, kind) for v in value)
    else:
        kind = kind or value_type(value)
        body = struct.pack("<I", VALUE_TYPES[kind][0]) + bare(value, kind)
    return string(key) + body


@functools.cache
def unit(kind):
    """(minimum for a scale of 1 that centres the values, their standard deviation): measured on random blocks."""
    raw = np.random.default_rng(0).integers(0, 256, (4096, GGML_QUANT_SIZES[Type[kind]][1]), np.uint8)

    def decode(*fields):
        for offset, value in zip(SCALES.get(kind, ()), fields):
            raw[:, offset : offset + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
        if kind == "MXFP4":
            raw[:, 0] = 127
        return dequantize(raw, Type[kind])

    if len(SCALES.get(kind, ())) < 2:
        return 0.0, float(decode(1).std())
    minimum = -float(decode(1, 0).mean() / decode(0, 1).mean())
    return minimum, float(decode(1, minimum).std())


def random_matrix(rng, kind, n_in, rows, std):
    """The bytes of a matrix of `rows` rows of n_in values of about that standard deviation."""
    if kind in ("F32", "F16", "BF16"):
        x = rng.standard_normal((rows, n_in), np.float32) * np.float32(std)
        return (
            (x.view(np.uint32) >> 16).astype("<u2") if kind == "BF16" else x.astype("<f4" if kind == "F32" else "<f2")
        ).tobytes()
    per, size = GGML_QUANT_SIZES[Type[kind]]
    raw = rng.integers(0, 256, (rows * (n_in // per), size), np.uint8)
    minimum, one = unit(kind)
    if kind == "MXFP4":
        raw[:, 0] = 127 + np.round(np.log2(std / one)) + rng.integers(-1, 2, len(raw))
    else:
        scale = std / one * rng.uniform(0.5, 1.5, len(raw))
        if not minimum:  # codes such as -8..7 have a mean; both signs of the scale keep it out of the matrix
            scale *= rng.choice((-1.0, 1.0), len(raw))
        for offset, factor in zip(SCALES[kind], (1.0, minimum)):
            raw[:, offset : offset + 2] = (scale * factor).astype("<f2")[:, None].view(np.uint8)
    return raw.tobytes()


def tensors_of(shape, rope_factors, fused_qkv):
    """(name, dims in ggml order, what): what is "norm", "bias", "rope" or a deviation times sqrt(row length)."""
    e, f, d = shape["n_embd"], shape["n_ff"], shape["head_dim"]
    q, kv = shape["n_head"] * d, shape["n_head_kv"] * d
    # Queries and keys a little larger than the rest make attention peaked, so that a wrong angle or mask shows.
    sharp = 1.0 if shape.get("qk_norm") else 1.5
    out = [
        ("token_embd.weight", (e, shape["n_vocab"]), 1.0 if shape["tied"] else np.sqrt(e)),
        ("output_norm.weight", (e,), "norm"),
    ]
    if not shape["tied"]:
        out.append(("output.weight", (e, shape["n_vocab"]), 1.0))
    if rope_factors:
        out.append(("rope_freqs.weight", (d // 2,), "rope"))
    for i in range(shape["n_layer"]):
        layer = [("attn_norm.weight", (e,), "norm")]
        if fused_qkv:
            layer.append(("attn_qkv.weight", (e, q + 2 * kv), 1.0))
        else:
            layer += [
                ("attn_q.weight", (e, q), sharp),
                ("attn_k.weight", (e, kv), sharp),
                ("attn_v.weight", (e, kv), 1.0),
            ]
        if shape.get("bias"):
            layer += (
                [("attn_qkv.bias", (q + 2 * kv,), "bias")]
                if fused_qkv
                else [(f"attn_{n}.bias", (m,), "bias") for n, m in (("q", q), ("k", kv), ("v", kv))]
            )
        if shape.get("qk_norm"):
            layer += [("attn_q_norm.weight", (d,), "norm"), ("attn_k_norm.weight", (d,), "norm")]
        if shape.get("gate"):
            layer.append(("attn_gate.weight", (e, q), 1.0))
        layer.append(("attn_output.weight", (q, e), 1.0))
        if shape.get("post_norm"):
            layer.append(("post_attention_norm.weight", (e,), "norm"))
        layer += [
            ("ffn_norm.weight", (e,), "norm"),
            ("ffn_gate.weight", (e, f), 1.0),
            ("ffn_up.weight", (e, f), 1.0),
            ("ffn_down.weight", (f, e), 1.0),
        ]
        if shape.get("post_norm"):
            layer.append(("post_ffw_norm.weight", (e,), "norm"))
        out += [(f"blk.{i}.{name}", dims, what) for name, dims, what in layer]
    return out


def write(
    path,
    arch,
    *,
    seed=1,
    quant="Q8_0",
    layers=None,
    shape=None,
    keys=None,
    unset=(),
    tied=None,
    bias=False,
    fused_qkv=False,
    rope_factors=False,
    drop=(),
    add=None,
):
    """Write the file; `shape` and `keys` override SHAPES and KEYS, `add` maps tensor names to (type, dims)."""
    rng = np.random.default_rng(seed)
    s = dict(SHAPES[arch], **(shape or {}))
    s.update(
        {"n_layer": layers} if layers else {},
        **({} if tied is None else {"tied": tied}),
        **({"bias": True} if bias else {}),
    )
    types = quant.upper().split(",")
    unknown = [t for t in types if t not in FILE_TYPES]
    if unknown:
        raise ValueError(f"no type {unknown[0]}: one of {', '.join(FILE_TYPES)}")
    own = {
        "block_count": s["n_layer"],
        "embedding_length": s["n_embd"],
        "feed_forward_length": s["n_ff"],
        "attention.head_count": s["n_head"],
        "attention.head_count_kv": s["n_head_kv"],
        "attention.key_length": s["head_dim"],
        "attention.value_length": s["head_dim"],
        "rope.dimension_count": s["head_dim"],
        "context_length": 4096,
        "vocab_size": s["n_vocab"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        **KEYS[arch],
    }
    if arch == "gemma3":
        del own["rope.dimension_count"]  # real files have none: the key length says it
    metadata = {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        "general.file_type": FILE_TYPES[types[0]],
        "tokenizer.ggml.model": "none",
        **{f"{arch}.{k}": v for k, v in own.items()},
    }

    def full(key):
        return key if key.startswith(("general.", "tokenizer.", f"{arch}.")) else f"{arch}.{key}"

    for key, value in (keys or {}).items():
        metadata.pop(full(key).partition(":")[0], None)
        metadata[full(key)] = value
    for key in unset:
        metadata.pop(full(key), None)
    head, body, n_tensors, turn = b"", [], 0, 0
    plan = [
        (name, dims, what)
        for name, dims, what in tensors_of(s, rope_factors, fused_qkv)
        if not any(fnmatch(name, g) for g in drop)
    ]
    plan += [(name, dims, kind) for name, (kind, dims) in (add or {}).items()]
    offset = 0
    for name, dims, what in plan:
        kind, n = "F32", int(np.prod(dims))
        if what == "norm":
            data = (1 + 0.2 * rng.standard_normal(n)).astype("<f4").tobytes()
        elif what == "bias":
            data = (0.3 * rng.standard_normal(n)).astype("<f4").tobytes()
        elif what == "rope":  # Llama 3.1: high frequencies stay, low ones are divided, with a ramp between
            data = np.interp(np.arange(n), [n / 4, n / 2], [1.0, 8.0]).astype("<f4").tobytes()
        else:
            if isinstance(what, str):
                kind, std = what, 1 / np.sqrt(dims[0])
            else:
                kind, std = types[turn % len(types)], what / np.sqrt(dims[0])
                turn += 1
                while dims[0] % GGML_QUANT_SIZES[Type[kind]][0]:
                    kind = FALL_BACK.get(kind, "F16")
            data = random_matrix(rng, kind, dims[0], n // dims[0], std)
        head += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, Type[kind], offset)
        body.append(data + bytes(-len(data) % ALIGNMENT))
        offset += len(body[-1])
        n_tensors += 1
    start = (
        struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, len(metadata))
        + b"".join(key_value(k, v) for k, v in metadata.items())
        + head
    )
    with open(path, "wb") as out:
        out.write(start + bytes(-len(start) % ALIGNMENT) + b"".join(body))


def main():
    def pair(text):
        key, sep, value = text.partition("=")
        if not sep:
            raise argparse.ArgumentTypeError(f"{text}: wanted NAME=VALUE")
        return key, value

    def setting(text):
        key, value = pair(text)
        try:
            return key, json.loads(value)
        except json.JSONDecodeError:
            return key, value

    def extra(text):
        name, value = pair(text)
        kind, _, dims = value.partition(":")
        return name, (kind, tuple(int(d) for d in dims.split("x")))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", choices=SHAPES)
    parser.add_argument("out")
    parser.add_argument("--quant", default="Q8_0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--shape", type=pair, action="append", default=[])
    parser.add_argument("--set", type=setting, action="append", default=[])
    parser.add_argument("--unset", action="append", default=[])
    parser.add_argument("--tied", action="store_true", default=None)
    parser.add_argument("--untied", action="store_false", dest="tied")
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--fused-qkv", action="store_true")
    parser.add_argument("--rope-factors", action="store_true")
    parser.add_argument("--drop", action="append", default=[])
    parser.add_argument("--add", type=extra, action="append", default=[])
    args = parser.parse_args()
    try:
        write(
            args.out,
            args.arch,
            seed=args.seed,
            quant=args.quant,
            layers=args.layers,
            shape={k: int(v) for k, v in args.shape},
            keys=dict(args.set),
            unset=args.unset,
            tied=args.tied,
            bias=args.bias,
            fused_qkv=args.fused_qkv,
            rope_factors=args.rope_factors,
            drop=args.drop,
            add=dict(args.add),
        )
    except (ValueError, KeyError) as error:
        sys.exit(f"make_tiny_gguf: {error}")


if __name__ == "__main__":
    main()
