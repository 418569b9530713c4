#!/usr/bin/env python3
"""Measures models on a CUDA device with argent bench: prompts, decode at depths, steps of several rows.

    bench.py FOLDER MODEL.gguf... [-p 512,2048] [-n 128] [-d 0,4096] [-b 1,2,4,8,16] [-r 5] [--device cuda:0] [-o OUT.json]

FOLDER has argent: a build, or what tools/cuda/pack.sh made. Each model is opened once a kind of test: prompts of -p tokens
and -n decoded at each depth of -d, then passes of -b rows. One JSON object: the machine, and one row a test with the
median and all samples in tokens/s, milliseconds a pass, and the share of the device's read bandwidth that argent bench
tells. A table is on stderr. Exit code 1: a test failed; the others' rows are there.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path


def environment(folder):
    env = dict(os.environ)
    if (folder / "lib").is_dir():
        env["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(folder / "lib"), env.get("LD_LIBRARY_PATH")]))
    return env


def run(folder, *args):
    command = [str(folder / "argent"), *map(str, args)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment(folder), stdin=subprocess.DEVNULL, timeout=550)
    except subprocess.TimeoutExpired:
        return None, "ran for 550 s"
    if done.returncode:
        return None, (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return json.loads(done.stdout), None


def rows_of(model, bench_rows):
    for row in bench_rows:
        samples = row["samples_ts"]
        rate = statistics.median(samples)
        tokens = row["n_prompt"] or 1
        yield {"model": Path(model).name, "test": row["test"], "backend": row["backend"], "cache_type": row["cache_type"], "n_prompt": row["n_prompt"],
               "n_gen": row["n_gen"], "n_depth": row["n_depth"], "tokens_per_second": rate, "samples": samples,
               "milliseconds": 1e3 * tokens / rate if rate else None, "bytes_per_token": row.get("bytes_per_token"),
               "gigabytes_per_second": row.get("bytes_per_token", 0) * rate / 1e9, "read_share": row.get("read_share"), "load_seconds": row.get("load_seconds")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-p", default="512,2048", help="prompt tokens, a list; 0: none")
    parser.add_argument("-n", default="128", help="tokens decoded, a list; 0: none")
    parser.add_argument("-d", default="0,4096", help="positions in the cache before, a list")
    parser.add_argument("-b", default="1,2,4,8,16", help="rows of a pass, a list; empty: none")
    parser.add_argument("-r", default=5, type=int, help="runs of each test")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("-o", help="file for the JSON (default: stdout)")
    options = parser.parse_args()
    folder = options.folder.resolve()
    devices, wrong = run(folder, "devices", "--json")
    if wrong:
        sys.exit(f"bench.py: {wrong}")
    result = {"machine": platform.node(), "devices": devices, "device": options.device, "runs": options.r, "rows": [], "failures": []}
    depth = max(int(d) for d in options.d.split(","))
    longest = max(int(x) for x in (options.p + "," + options.n).split(","))
    for model in options.models:
        tests = [["-p", options.p, "-n", options.n, "-d", options.d]]
        if options.b:
            tests.append(["-p", options.b, "-n", "0"])
        for test in tests:
            rows, wrong = run(folder, "bench", "-m", model, "--device", options.device, "-c", depth + longest + 64, *test, "-r", options.r, "-o", "json")
            if wrong:
                result["failures"].append({"model": model, "test": " ".join(test), "why": wrong})
                print(f"{Path(model).name} {' '.join(test)}: {wrong}", file=sys.stderr)
                continue
            for row in rows_of(model, rows):
                result["rows"].append(row)
                print(f"{row['model']:<32} {row['test']:<16} {row['tokens_per_second']:>12.1f} tokens/s {row['milliseconds'] or 0:>9.3f} ms {row['gigabytes_per_second']:>9.1f} GB/s",
                      file=sys.stderr, flush=True)
    text = json.dumps(result, indent=1) + "\n"
    if options.o:
        Path(options.o).write_text(text)
    else:
        sys.stdout.write(text)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
