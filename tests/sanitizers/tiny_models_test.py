#!/usr/bin/env python3
"""Tiny models of every architecture and format through a binary built with a sanitizer: nothing may be found.

    tiny_models_test.py BINARY
"""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import make_tiny_gguf  # noqa: E402

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3", "muse-glimmer"]
# Each architecture gets some of the formats, so that every one is there.
FORMATS = [f for f in make_tiny_gguf.FILE_TYPES]
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1:exitcode=66",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def found(log):
    """Whether a sanitizer has reported something."""
    return "Sanitizer" in log or "runtime error" in log


def main():
    if len(sys.argv) != 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit("usage: tiny_models_test.py BINARY")
    binary, passed, failed = os.path.abspath(sys.argv[1]), 0, 0

    def run(*args, **more):
        nonlocal passed, failed
        done = subprocess.run([binary, *map(str, args)], capture_output=True, text=True, env={**os.environ, **OPTIONS, **more}, timeout=300)
        if done.returncode == 0 and not found(done.stderr):
            passed += 1
            return
        failed += 1
        print(f"FAILED ({done.returncode}): {' '.join(map(str, args))}\n{done.stderr[-4000:]}")

    with tempfile.TemporaryDirectory() as folder:
        model, out = Path(folder, "tiny.gguf"), Path(folder, "logits.f32")
        isas = itertools.cycle(["baseline", "avx2", "avxvnni", "avx512"])
        caches = itertools.cycle(["f16", "f32", "q8_0", "bf16"])
        tokens = ",".join(str(7 * i % 250) for i in range(60))
        for i, architecture in enumerate(ARCHITECTURES):
            for quants in itertools.batched(FORMATS[i:] + FORMATS[:i], 4) if hasattr(itertools, "batched") else [
                (FORMATS[i:] + FORMATS[:i])[k : k + 4] for k in range(0, len(FORMATS), 4)
            ]:
                make_tiny_gguf.write(model, architecture, quant=",".join(quants), seed=i)
                run("logits", model, "--tokens", tokens, "--all", "--out", out, "--passes", "9,1,2,1,6,1,33", "-t", 2,
                    "--cache-type", next(caches), "--weights", "mapped" if "Q4_K" in quants else "resident",
                    ARGENT_ISA=supported(binary, next(isas)))
            # The sampling tail, a long context over several splits, profiles.
            run("bench", model, "-p", "70", "-n", "6", "-d", "0,600", "-r", 1, "-t", 2, "--profile")
        run("bench", model, "-p", "70", "-n", "6", "-r", 1, "-t", 2, ARGENT_FUSE="0", ARGENT_PIN="0")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


def supported(binary, isa):
    """The name, or none where this machine does not run it."""
    done = subprocess.run([binary, "inspect", "/nowhere", "--isa", isa], capture_output=True, text=True)
    return "" if "does not run it" in done.stderr else isa


if __name__ == "__main__":
    sys.exit(main())
