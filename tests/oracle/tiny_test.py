#!/usr/bin/env python3
"""Tiny random models of every architecture and format against llama.cpp.

    tiny_test.py BINARY [--full] [--only TEXT] [--seed N]
    tiny_test.py BINARY --file MODEL.gguf...     the same comparisons on files from elsewhere
    tiny_test.py --self [...]     llama.cpp against float64 NumPy, without argent: is the oracle right?

Each model is computed by llama.cpp exactly (weights as F32, f32 cache), and by argent
 - with f32 activations and an f32 cache: in one pass, one token a pass (decode), and in uneven chunks, NMSE at most
   1e-5 both before and after the edge of the sliding window;
 - as it runs: no further from exact than NATIVE_NOISE times llama.cpp's own distance, and the same bits however the
   tokens are split.
Then come files that must be refused: an exit code, one line on stderr, the offending key or tensor named in it.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFReader

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import llama  # noqa: E402
import make_tiny_gguf  # noqa: E402
import numpy_ref  # noqa: E402
from harness import Argent, ArgentError, Oracle, Report, compare  # noqa: E402
from llama import EXACT, NATIVE, NATIVE_FLASH  # noqa: E402

F32_NMSE, NATIVE_NOISE = 1e-5, 1.5
CHUNKS = (7, 1, 13, 2, 5)
TYPES = tuple(make_tiny_gguf.FILE_TYPES)


@dataclass
class Case:
    name: str
    arch: str
    options: dict = field(default_factory=dict)  # of make_tiny_gguf.write
    n_tokens: int = 48
    window: int = 0  # where the first token falls out of sight


EPS = {"attention.layer_norm_rms_epsilon": 0.05}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 512}
NARROW = {"n_embd": 288, "n_ff": 416, "n_vocab": 259}  # no multiple of 256: fall-back formats, odd row counts


def cases():
    def keys(*parts, **more):
        return dict(keys={k: v for part in parts for k, v in part.items()}, **more)

    swa, soft = {"attention.sliding_window": 5}, {"final_logit_softcapping": 0.25}
    yield Case("plain", "llama")
    yield Case("epsilon 0.05", "llama", keys(EPS, quant="Q4_K,Q6_K"))
    yield Case("rope factors", "llama", dict(rope_factors=True, quant="Q4_0"), 96)
    yield Case("linear rope", "llama", keys(LINEAR, quant="Q5_0"))
    yield Case("factor without a type", "llama", keys({"rope.scaling.factor": 3.0}))
    yield Case("scaling none", "llama", keys(LINEAR, {"rope.scaling.type": "none"}))
    yield Case("YaRN", "llama", keys(YARN, quant="Q5_1"), 96)
    yield Case("YaRN, attention factor", "llama", keys(YARN, {"rope.scaling.attn_factor": 1.3}))
    yield Case("biases, tied", "llama", dict(bias=True, tied=True, quant="Q4_1"))
    yield Case(
        "one head of keys, head 96", "llama", dict(shape={"n_head": 3, "n_head_kv": 1, "head_dim": 96}, quant="F16")
    )
    yield Case("as many keys as queries, head 80", "llama", dict(shape={"n_head": 3, "n_head_kv": 3, "head_dim": 80}))
    yield Case("narrow rows", "llama", dict(shape={**NARROW, "head_dim": 72}, quant="Q4_K,Q6_K,Q2_K"))
    yield Case(
        "head counts by layer", "llama", keys({"attention.head_count": [4, 4], "attention.head_count_kv": [2, 2]})
    )
    yield Case("no head_count_kv", "llama", dict(shape={"n_head_kv": 4}, unset=["attention.head_count_kv"]))
    yield Case("long", "llama", dict(quant="IQ4_NL"), 600)
    yield Case("one layer", "llama", dict(layers=1))
    yield Case("plain", "qwen2", dict(quant="Q4_K,Q6_K"))
    yield Case("untied, epsilon 0.05", "qwen2", keys(EPS, tied=False, quant="Q3_K"))
    yield Case("YaRN", "qwen2", keys(YARN, quant="Q8_0"))
    yield Case("narrow rows", "qwen2", dict(shape={**NARROW, "head_dim": 72}, quant="Q5_K,Q3_K"))
    yield Case("long", "qwen2", dict(quant="Q5_K"), 300)
    yield Case("plain", "qwen3", dict(quant="Q4_K,Q6_K"))
    yield Case("untied, epsilon 0.05", "qwen3", keys(EPS, tied=False, quant="MXFP4"))
    yield Case("YaRN", "qwen3", keys(YARN, quant="IQ4_XS"))
    yield Case("linear rope", "qwen3", keys(LINEAR))
    yield Case("six layers", "qwen3", dict(layers=6, quant="Q2_K"), 300)
    yield Case("plain", "gemma3", dict(quant="Q4_K,Q6_K,Q5_0"), 64, 16)
    yield Case("epsilon 0.05, softcap 0.25, window 5", "gemma3", keys(EPS, soft, swa), 40, 5)
    yield Case("own base of sliding layers", "gemma3", keys({"rope.freq_base_swa": 500.0}), 64, 16)
    yield Case("linear rope on full layers", "gemma3", keys(LINEAR), 64, 16)
    yield Case("pattern of 3", "gemma3", keys(swa, {"attention.sliding_window_pattern": 3}), 40, 5)
    yield Case("no window", "gemma3", dict(unset=["attention.sliding_window"]), 64)
    yield Case("window 1", "gemma3", keys({"attention.sliding_window": 1}), 24, 1)
    yield Case("window 260, long", "gemma3", keys({"attention.sliding_window": 260}), 600, 260)
    yield Case("untied, 13 layers", "gemma3", dict(layers=13, tied=False, quant="Q6_K"), 40, 16)
    yield Case("plain", "muse-glimmer", dict(quant="Q4_K,Q6_K,Q5_K"), 64, 16)
    yield Case("softcap 30", "muse-glimmer", keys({"final_logit_softcapping": 30.0}), 64, 16)
    yield Case("epsilon 0.05, softcap 0.25, window 5", "muse-glimmer", keys(EPS, soft, swa), 40, 5)
    yield Case("own base of sliding layers", "muse-glimmer", keys({"rope.freq_base_swa": 500.0}), 64, 16)
    yield Case(
        "pattern by layer",
        "muse-glimmer",
        keys({"attention.sliding_window_pattern": [True, False, False, True, True]}),
        64,
        16,
    )
    yield Case(
        "pattern of 2, logit scale 3",
        "muse-glimmer",
        keys(swa, {"attention.sliding_window_pattern": 2, "logit_scale": 3.0, "final_logit_softcapping": 0.0}),
        40,
        5,
    )
    yield Case("fused qkv", "muse-glimmer", dict(fused_qkv=True), 64, 16)
    yield Case("window 260, long", "muse-glimmer", keys({"attention.sliding_window": 260}), 600, 260)
    for i, quant in enumerate(TYPES):
        arch = tuple(make_tiny_gguf.SHAPES)[i % 5]
        yield Case(
            f"all {quant}", arch, dict(quant=quant), 48, 16 if "sliding" in str(make_tiny_gguf.KEYS[arch]) else 0
        )


def full_cases(seeds):
    yield from cases()
    for arch in make_tiny_gguf.SHAPES:
        window = make_tiny_gguf.KEYS[arch].get("attention.sliding_window", 0)
        for quant in TYPES:
            for seed in seeds:
                yield Case(
                    f"all {quant}, seed {seed}", arch, dict(quant=quant, seed=seed, layers=1 + seed % 5), 48, window
                )


def file_case(path):
    keys = {f.name: f.contents() for f in GGUFReader(path).fields.values()}
    arch = keys["general.architecture"]
    window = keys.get(f"{arch}.attention.sliding_window", 0)
    return Case(path.name, arch, n_tokens=max(64, min(3 * window, 600)), window=window)


REFUSED = (  # what is wrong, the architecture, options of make_tiny_gguf.write, what the message must name
    ("a missing tensor", "llama", dict(drop=["blk.1.attn_k.weight"]), "blk.1.attn_k.weight"),
    ("a missing norm", "qwen3", dict(drop=["blk.0.attn_q_norm.weight"]), "blk.0.attn_q_norm.weight"),
    ("a missing gate", "muse-glimmer", dict(drop=["blk.2.attn_gate.weight"]), "blk.2.attn_gate.weight"),
    (
        "a misshapen tensor",
        "llama",
        dict(drop=["blk.0.ffn_up.weight"], add={"blk.0.ffn_up.weight": ("F32", (512, 256))}),
        "blk.0.ffn_up.weight",
    ),
    (
        "a norm of the wrong length",
        "gemma3",
        dict(drop=["output_norm.weight"], add={"output_norm.weight": ("F32", (128,))}),
        "output_norm.weight",
    ),
    ("no layer count", "llama", dict(unset=["block_count"]), "block_count"),
    ("no logit scale", "muse-glimmer", dict(unset=["logit_scale"]), "logit_scale"),
    ("a layer count of another type", "llama", dict(keys={"block_count": "two"}), "block_count"),
    ("more layers than tensors", "qwen2", dict(keys={"block_count": 9}), "blk.3."),
    ("no heads", "llama", dict(keys={"attention.head_count": 0}), "head_count"),
    ("heads that key heads do not divide", "llama", dict(keys={"attention.head_count_kv": 3}), "head_count_kv"),
    ("experts", "llama", dict(keys={"expert_count": 8, "expert_used_count": 2}), "expert"),
    ("an unknown rope scaling", "llama", dict(keys={"rope.scaling.type": "longrope"}), "longrope"),
    ("a key nobody knows", "qwen3", dict(keys={"attention.sink_count": 4}), "attention.sink_count"),
    ("an unknown architecture", "llama", dict(keys={"general.architecture": "frobnicate"}), "frobnicate"),
    (
        "an epsilon that is not a number",
        "llama",
        dict(keys={"attention.layer_norm_rms_epsilon": float("nan")}),
        "epsilon",
    ),
)


def random_tokens(seed, n, n_vocab):
    return [int(t) for t in np.random.default_rng(seed).integers(0, n_vocab, n)]


def check_case(report, argent, case, oracle, tokens):
    name, edge = f"{case.arch}, {case.name}", case.window if 0 < case.window < len(tokens) else len(tokens)
    exact = oracle.logits(tokens, EXACT)

    def f32(label, passes):
        ours = argent.logits(oracle.path, tokens, oracle.n_vocab, activations="f32", cache_type="f32", passes=passes)
        parts = [compare(ours[a:b], exact[a:b]).nmse for a, b in ((0, edge), (edge, len(tokens))) if b > a]
        report.at_most(f"{name}: f32, {label}, NMSE", max(parts, key=lambda x: (np.isnan(x), x)), F32_NMSE)

    f32("one pass", None)
    f32("decode", (1,))
    f32("chunks", CHUNKS)
    own = max(compare(oracle.logits(tokens, mode), exact).nmse for mode in (NATIVE, NATIVE_FLASH))
    ours = np.array(argent.logits(oracle.path, tokens, oracle.n_vocab))
    report.at_most(f"{name}: native, NMSE", compare(ours, exact).nmse, NATIVE_NOISE * own)
    for label, passes in (("decode", (1,)), ("chunks", CHUNKS)):
        again = argent.logits(oracle.path, tokens, oracle.n_vocab, passes=passes)
        rows = int((ours.view(np.uint32) != np.asarray(again).view(np.uint32)).any(1).sum())
        report.check(
            f"{name}: native, {label} as in one pass, bit for bit", rows == 0, f"{rows} of {len(tokens)} rows differ"
        )


def check_oracle(report, case, oracle, tokens):
    reference = numpy_ref.logits(oracle.file(EXACT), tokens)
    bound = 1e-6 if case.arch == "gemma3" else 1e-7  # llama.cpp takes GELU from a table of f16 values
    report.at_most(
        f"{case.arch}, {case.name}: llama.cpp exact against NumPy, NMSE",
        compare(oracle.logits(tokens, EXACT), reference).nmse,
        bound,
    )
    own = [compare(oracle.logits(tokens, mode), reference).nmse for mode in (NATIVE, NATIVE_FLASH)]
    report.note("native {:.1e}, with flash attention {:.1e}".format(*own))


def check_refused(report, binary, folder, what, arch, options, named):
    path = folder / "refused.gguf"
    make_tiny_gguf.write(path, arch, **options)
    try:
        done = subprocess.run(
            [binary, "logits", path, "--tokens", "1,2,3", "--out", folder / "refused.logits"],
            capture_output=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        report.check(f"refused: {what}", False, "still running after a minute")
        return
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    report.check(
        f"refused: {what}",
        0 < done.returncode < 128 and len(lines) == 1 and named in lines[0],
        f"exit code {done.returncode}, wanted one line with {named!r}: {lines[-1] if lines else '(nothing)'}",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?")
    parser.add_argument("--self", action="store_true", dest="itself")
    parser.add_argument("--full", action="store_true", help="every type with every architecture and three more seeds")
    parser.add_argument("--file", type=Path, nargs="+", default=[], help="compare these files, and nothing else")
    parser.add_argument("--only", default="", help="cases whose line contains this")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if bool(args.binary) == args.itself:
        parser.error("give --self or BINARY")
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argent = None if args.itself else Argent(args.binary, folder, timeout=120)
        if args.file:
            chosen = [file_case(path) for path in args.file]
        else:
            chosen = full_cases((args.seed, args.seed + 1, args.seed + 2)) if args.full else cases()
        for i, case in enumerate(chosen):
            if args.only not in f"{case.arch}, {case.name}":
                continue
            path = args.file[i] if args.file else folder / f"case{i}.gguf"
            if not args.file:
                make_tiny_gguf.write(path, case.arch, **{"seed": args.seed + i, **case.options})
            oracle = Oracle(path, threads=1, folder=folder / f"case{i}")
            tokens = random_tokens(args.seed + i, case.n_tokens, oracle.n_vocab)
            try:
                if args.itself:
                    check_oracle(report, case, oracle, tokens)
                else:
                    check_case(report, argent, case, oracle, tokens)
            except (ArgentError, llama.OracleError) as error:
                report.check(f"{case.arch}, {case.name}", False, str(error))
        if not (args.itself or args.file):
            for what, arch, options, named in REFUSED:
                if args.only in f"refused: {what}":
                    check_refused(report, args.binary, folder, what, arch, options, named)
    return report.finish()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except llama.OracleError as error:
        sys.exit(f"oracle: {error}")
