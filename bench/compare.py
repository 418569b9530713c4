#!/usr/bin/env python3
"""Alternates argent bench and llama-bench (of llama.cpp or ik_llama.cpp) on one file and prints the ratio run by run.

    compare.py ARGENT LLAMA_BENCH MODEL.gguf [-p 512] [-n 64] [-t 2] [-r 3] [--rounds 3] [--json] [--peer-flags "-rtr 1"]

Both read the same file with the same parameters; a round is one run of each. The median of the rounds' ratios is what
counts: this machine's speed changes from minute to minute, the ratio of neighbouring runs does not.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys


def rates(command, name):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{name} ended with {result.returncode}: {result.stderr.strip()[-300:]}")
    rows = json.loads(result.stdout[result.stdout.index("["):])
    return {("pp" if row["n_prompt"] else "tg"): row["avg_ts"] for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("argent")
    parser.add_argument("peer")
    parser.add_argument("model")
    parser.add_argument("-p", default="512")
    parser.add_argument("-n", default="64")
    parser.add_argument("-t", default="2")
    parser.add_argument("-r", default="3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-flags", default="-fa 1")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    common = ["-p", options.p, "-n", options.n, "-t", options.t, "-r", options.r, "-o", "json"]
    rounds = []
    for _ in range(options.rounds):
        ours = rates([options.argent, "bench", options.model, *common], "argent")
        theirs = rates([options.peer, "-m", options.model, *common, *shlex.split(options.peer_flags)], "peer")
        rounds.append({test: {"argent": ours[test], "peer": theirs[test], "ratio": ours[test] / theirs[test]} for test in ours if test in theirs})
    if options.json:
        for row in rounds:
            print(json.dumps({"model": options.model, **row}))
        return
    for test in rounds[0]:
        for i, row in enumerate(rounds):
            print(f"{test} round {i + 1}: argent {row[test]['argent']:9.1f}  peer {row[test]['peer']:9.1f}  ratio {row[test]['ratio']:.2f}")
        print(f"{test} median ratio {statistics.median(row[test]['ratio'] for row in rounds):.2f}")


if __name__ == "__main__":
    main()
