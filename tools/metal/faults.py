#!/usr/bin/env python3
"""Puts known faults back, one at a time, and asks whether the tests notice: slips that Metal backends of other programs have made.

  faults.py BUILD               those in kernels; BUILD holds test_metal_checked and compile_commands.json
  faults.py BUILD --host        also those in host code: their files are compiled anew and test_metal_backend linked with them
  faults.py BUILD --only WORD   those whose name contains the word
  faults.py BUILD --list        what there is, without running anything

Nothing in the source tree is touched. A fault whose text is no longer there is an error: it then needs the text that stands there now.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import gen
import mutate

ROOT = mutate.ROOT
HOST = "src/backends/metal/"
TIMEOUT_S = 300  # of a test of host code


@dataclasses.dataclass
class KernelFault:
    name: str
    file: str     # of src/backends/metal/kernels
    of: str       # what stands there, however the lines are broken
    to: str       # what the slip makes of it
    kernels: str  # whose cases must fail, every one
    how: str      # the findings that they may fail by, as a pattern


WRONG = "wrong results|out of bounds|misaligned|uninitialised"
KERNEL_FAULTS = [
    KernelFault("a SIMD reduction in a divergent partial tile, of a norm", "rms_norm.metal",
                "sum = simd_sum(sum); if (lane == 0) {", "if (index < args.group) { sum = simd_sum(sum); } if (lane == 0) {",
                "rms_norm", "divergence"),
    KernelFault("a SIMD reduction in a divergent partial tile, of the last keys", "attention_any.metal",
                "const float grown = max(maximum, simd_max(score));",
                "float grown = maximum; if (mine == seen) { grown = max(maximum, simd_max(score)); }",
                "attention_any", "divergence"),
    KernelFault("a race on a partial tile of a product: no barrier", "mul_mm.metal",
                "simdgroup_barrier(mem_flags::mem_threadgroup); for (uint e = lane;", "for (uint e = lane;",
                "mul_mm_q4_k mul_mm_f16", "race"),
    KernelFault("a race on a partial tile of a product: SIMD-groups share the scratch", "mul_mm.metal",
                "+ 128 * simdgroup; // 8 tokens of 16 rows", ";", "mul_mm_q8_0", "race"),
    KernelFault("32 floats written to 8 allocated", "rms_norm.metal",
                "if (lane == 0) { partial[simdgroup] = sum; }", "partial[lane] = sum;", "rms_norm", "out of bounds"),
    KernelFault("wrong index of high bits, Q5_0", "weights.h", "qh, 4 * first + 4, side)); } }; struct Q5_1Reader",
                "qh, 4 * first, side)); } }; struct Q5_1Reader", "get_rows_q5_0 mul_mv_q5_0 mul_mm_q5_0", WRONG),
    KernelFault("wrong index of high bits, Q5_1", "weights.h", "q5_1_quants(words.y, qh, 4 * first + 4, side)",
                "q5_1_quants(words.y, qh, 4 * first, side)", "get_rows_q5_1 mul_mv_q5_1 mul_mm_q5_1", WRONG),
    KernelFault("wrong index of high bits, Q5_K", "weights.h", "q5_k_quants(bytes.x, top.x, group)", "q5_k_quants(bytes.x, top.x, group / 2)",
                "get_rows_q5_k mul_mv_q5_k mul_mm_q5_k", WRONG),
    KernelFault("wrong index of high bits, Q6_K", "weights.h", "const uint hi = 8 * h + first;", "const uint hi = 4 * h + first;",
                "get_rows_q6_k mul_mv_q6_k mul_mm_q6_k", WRONG),
    KernelFault("wrong index of high bits, Q3_K", "weights.h", "const uint near = load_word_2(block->hmask, first);",
                "const uint near = load_word_2(block->hmask, first + 1);", "get_rows_q3_k mul_mv_q3_k mul_mm_q3_k", WRONG),
    KernelFault("k stored as v", "kv_store.metal", "(is_k ? k : v) +", "k +", "kv_store", WRONG),
    KernelFault("k projected as v, of one token", "qkv_rope.metal", "sums = dots_of(kFormatV, w_v,", "sums = dots_of(kFormatK, w_k,", "qkv_rope", WRONG),
    KernelFault("k projected as v, of a few tokens", "qkv_rope.metal", "token_dots(kFormatV, w_v,", "token_dots(kFormatK, w_k,", "qkv_rope_tokens", WRONG),
    KernelFault("an f16 cache read as f32, one element", "kv.h",
                "return float(reinterpret_cast<device const half*>(block)[i]); } if (type == kKvBf16) { return as_type<float>(uint(",
                "return reinterpret_cast<device const float*>(block)[i]; } if (type == kKvBf16) { return as_type<float>(uint(", "attention_any", WRONG),
    KernelFault("an f16 cache read as f32, four elements", "kv.h", "return float4(reinterpret_cast<device const half4*>(block)[i / 4]);",
                "return reinterpret_cast<device const float4*>(block)[i / 4];",
                "attention_decode_64 attention_decode_80 attention_prefill_64", WRONG),
    KernelFault("a softmax whose maximum starts at 0, any heads", "attention_any.metal", "float maximum = lowest;", "float maximum = 0.0f;",
                "attention_any", WRONG),
    KernelFault("a softmax whose maximum starts at 0, decode", "attention_decode.metal", "maximum[h] = lowest;", "maximum[h] = 0.0f;",
                "attention_decode_128", WRONG),
    KernelFault("a softmax whose maximum starts at 0, prompts", "attention_prefill.metal", "float maximum = lowest;", "float maximum = 0.0f;",
                "attention_prefill_128", WRONG),
    KernelFault("a return before a barrier where heads do not divide", "attention_decode.metal",
                "threadgroup float4* queries = reinterpret_cast<threadgroup float4*>(shared);",
                "if (simdgroup % Sets * Heads >= n_heads) { return; } threadgroup float4* queries = reinterpret_cast<threadgroup float4*>(shared);",
                "attention_decode_80", "divergence"),
    KernelFault("a return before a barrier where a head's rows do not divide", "qkv_rope.metal",
                "for (uint row = 2 * simdgroup; row < part.d; row += 2 * simdgroups) { const uint2 rows = uint2(first + row, first + row + 1); float2 sums;",
                "if (2 * simdgroup >= part.d) { return; } "
                "for (uint row = 2 * simdgroup; row < part.d; row += 2 * simdgroups) { const uint2 rows = uint2(first + row, first + row + 1); float2 sums;",
                "qkv_rope", "divergence"),
]


@dataclasses.dataclass
class HostFault:
    name: str
    file: str
    of: str
    to: str
    sources: str  # compiled anew
    program: str
    tests: str    # every one of which must fail


HOST_FAULTS = [
    HostFault("no barrier between what writes and what reads", HOST + "hazards.cc", "any_overlap(reads, written) ||", "",
              HOST + "hazards.cc", "test_metal_backend_checked", "TamperedLists.EveryBarrierIsNeeded Hazards.ReadAfterWrite"),
    HostFault("no barrier between what reads and what writes", HOST + "hazards.cc", "|| any_overlap(writes, read);", ";",
              HOST + "hazards.cc", "test_metal_backend_checked", "Hazards.WriteAfterReadAndWrite"),
    HostFault("a barrier where nobody needs one", HOST + "hazards.cc", "d.barrier = any_overlap(reads, written)", "d.barrier = &d != &list.dispatches[0]",
              HOST + "hazards.cc", "test_metal_backend_checked", "TamperedLists.EveryBarrierIsNeeded Hazards.NothingSharedNoBarrier"),
    HostFault("all ranges are parts of one", HOST + "hazards.cc", "parts && parts == o.parts", "parts == o.parts",
              HOST + "hazards.cc", "test_metal_backend_checked", "TamperedLists.EveryBarrierIsNeeded Hazards.PartsOfARange"),
    HostFault("RoPE's frequency scale dropped, the kernel", "src/graph/rope_frequencies.h", "a.freq_scale * extrapolated;", "extrapolated;",
              "tests/metal/rope_cases.cc", "test_metal", "All/Kernels.Right/ascending_rope_table_linear All/Kernels.Right/ascending_rope_table_yarn"),
    HostFault("RoPE's frequency scale dropped, the backend", "src/graph/rope_frequencies.h", "a.freq_scale * extrapolated;", "extrapolated;",
              HOST + "encode_rows.cc", "test_metal_backend", "All/MetalOps.AgreeWithTheReference/ascending_f16"),
    HostFault("the bias dropped on the output projection", HOST + "encode_rows.cc", "void encode_row_vector(Encoder& e, const Node& node, size_t) {",
              "void encode_row_vector(Encoder& e, const Node& node, size_t) { if (node.op == Op::add_bias && node.in_place) return;",
              HOST + "encode_rows.cc", "test_metal_backend", "MetalModels.BiasOfEveryProjection"),
    HostFault("k stored as v", HOST + "encode_fused.cc", "bind(d, 2, v);", "bind(d, 2, k);", HOST + "encode_fused.cc", "test_metal_backend",
              "MetalModels.APromptIsItsTokensOneByOne MetalModels.BiasOfEveryProjection"),
    HostFault("a gate that shares its place with the query", "src/graph/passes/memory.cc", "for (ValueId id : node.inputs) if (storage[id] != SIZE_MAX)",
              "for (ValueId id : node.inputs) if (storage[id] != SIZE_MAX && node.op != Op::mul_sigmoid)",
              "src/graph/passes/memory.cc", "test_metal_backend", "MetalModels.BiasOfEveryProjection"),
    HostFault("logits computed for all rows", "src/graph/passes/rows.cc", "const Demand results = all_rows ? kTokens : kOutputs;",
              "const Demand results = kTokens;", "src/graph/passes/rows.cc", "test_metal_backend", "MetalRows.OneRowOfLogits"),
    HostFault("another norm for prompts than for tokens", HOST + "encode_rows.cc", "RmsNormArgs{group, n_groups, eps}",
              "RmsNormArgs{group, n_groups, n_groups > 8 ? 1e-1f : eps}", HOST + "encode_rows.cc", "test_metal_backend",
              "MetalModels.APromptIsItsTokensOneByOne"),
]


def put_in(fault, path):
    """The file's text with the fault."""
    text = path.read_text()
    pattern = r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", fault.of)))
    found = len(re.findall(pattern, text))
    if found != 1:
        sys.exit(f"{fault.name}: {path.relative_to(ROOT)} has {found} times: {fault.of}")
    return re.sub(pattern, lambda _: fault.to, text, count=1)


def kernel_results(build, faults, jobs):
    """(fault, kernel, how it was noticed or None)"""
    of_kernel = {k.name: path for path in mutate.KERNELS.glob("*.metal") for k in gen.read(path.read_text(), path.name).kernels}
    of_mutant, chosen = {}, []
    for fault in faults:
        path = mutate.KERNELS / fault.file
        text = put_in(fault, path)
        for kernel in fault.kernels.split():
            mutant = mutate.Mutant(path, 0, "fault", fault.name, text, kernel, of_kernel[kernel])
            chosen.append(mutant)
            of_mutant[id(mutant)] = fault
    return [(of_mutant[id(m)], m.kernel, how) for m, how in mutate.judge(build, chosen, jobs)]


def host_results(build, fault, folder):
    """(test, what was said of it) of a fault in host code; "failed" is what is wanted."""
    commands = json.loads(gen.load(build / "compile_commands.json"))
    # The link's command, with objects of the faulty sources before all libraries, or in place of those that it names.
    links = subprocess.run(["ninja", "-C", str(build), "-t", "commands", fault.program], capture_output=True, text=True, check=False)
    link = links.stdout.rstrip().split("\n")[-1]
    if links.returncode or f" -o {fault.program} " not in link:
        sys.exit(f"{build}: ninja knows no way to link {fault.program}")
    overlay = folder / "overlay"
    broken = overlay / fault.file
    broken.parent.mkdir(parents=True)
    broken.write_text(put_in(fault, ROOT / fault.file))
    objects = []
    for source in fault.sources.split():
        entry = next((e for e in commands if e["file"] == str(ROOT / source)), None)
        if entry is None:
            sys.exit(f"{build}: {source} is not compiled by itself; --host wants a build without ARGENT_UNITY (preset release)")
        words = shlex.split(entry["command"])
        old, new = words[words.index("-o") + 1], str(folder / (pathlib.Path(source).stem + ".o"))
        words = [str(overlay / source) if w == entry["file"] and source == fault.file else new if w == old else w for w in words]
        at = 2 if "ccache" in words[0] else 1
        words[at:at] = ["-I", str(overlay / "src"), "-I", str(ROOT / source.split("/")[0])]
        made = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(f"{fault.name}: {source} does not compile:\n{made.stderr[:2000]}")
        objects.append(f"{old} -> {new}")
        link = link.replace(f" {old} ", f" {new} ") if f" {old} " in link else link.replace(f" -o {fault.program} ", f" {new} -o {fault.program} ")
    program = folder / "test"
    made = subprocess.run(link.replace(f" -o {fault.program} ", f" -o {program} "), shell=True, cwd=build, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(f"{fault.name}: does not link:\n{made.stderr[:2000]}")
    for test in fault.tests.split():
        result = subprocess.run([str(program), f"--gtest_filter={test}"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if "[ RUN      ] " + test not in result.stdout:
            sys.exit(f"{fault.name}: {fault.program} has no test {test}")
        yield test, "failed" if f"[  FAILED  ] {test}" in result.stdout else f"exit {result.returncode}" if result.returncode else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    kernel_faults = [f for f in KERNEL_FAULTS if options.only in f.name]
    host_faults = [f for f in HOST_FAULTS if options.only in f.name and options.host]
    if not kernel_faults and not host_faults:
        parser.error(f"--only {options.only}: no fault is called so")
    if options.list:
        for f in kernel_faults + host_faults:
            print(f"{f.name} [{f.kernels if isinstance(f, KernelFault) else f.tests}]")
        return
    missed = 0
    ways = {}
    for fault, kernel, how in kernel_results(options.build, kernel_faults, options.jobs):
        right = how is not None and re.fullmatch(fault.how, how)
        if not right:
            print(f"NOT NOTICED {fault.name} [{kernel}]" + (f": failed by {how}, wanted {fault.how}" if how else ""))
        missed += not right
        ways[how] = ways.get(how, 0) + 1
    build = options.build.resolve()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda i: list(host_results(build, host_faults[i], pathlib.Path(folder) / str(i))), range(len(host_faults)))
        for fault, tests in zip(host_faults, results):
            for test, how in tests:
                if how != "failed":
                    print(f"NOT NOTICED {fault.name} [{test}]" + (f": {how}" if how else ""))
                missed += how != "failed"
                ways["tests of host code"] = ways.get("tests of host code", 0) + 1
    n = sum(ways.values())
    text = ", ".join(f"{count} by {way}" for way, count in sorted(ways.items(), key=lambda item: -item[1]) if way)
    print(f"{len(kernel_faults) + len(host_faults)} faults, noticed {n - missed} of {n} times: {text}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
