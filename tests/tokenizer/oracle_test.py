#!/usr/bin/env python3
"""Compares `argent tokenize` with llama.cpp on random strings.

Usage: oracle_test.py ARGENT MODEL.gguf... [--strings 2000] [--seed 1]

Several strings go into one run of the program, joined, since starting it is what takes the time.
"""

import argparse
import random
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))
import llama
import samples

PER_RUN = 10


def argent_ids(argent, model, text, special, bos):
    command = [argent, "tokenize", model, "--stdin", "--ids"]
    command += [] if special else ["--no-special"]
    command += [] if bos else ["--no-bos"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.decode(errors='replace')}")
    return [int(i) for i in done.stdout.decode().replace(",", " ").replace("[", " ").replace("]", " ").split()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("argent")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--strings", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failed = 0
    for path in args.models:
        rng = random.Random(args.seed)
        n = max(1, args.strings // PER_RUN // len(args.models))
        with llama.Model(path, vocab_only=True) as model:
            for run in range(n):
                text = "".join(samples.random_text(rng) for _ in range(PER_RUN))
                special, bos = rng.random() < 0.5, rng.random() < 0.3
                want = list(model.tokenize(text, bos, special))
                got = argent_ids(args.argent, path, text, special, bos)
                if want == got:
                    continue
                failed += 1
                at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
                print(f"{path}: run {run}, special {special}, bos {bos}, id {at}: wanted {want[at:at + 6]}, got {got[at:at + 6]}\n"
                      f"  after {[model.piece(i) for i in want[max(0, at - 3):at]]} in {text!r}")
        print(f"{path}: {n} runs of {PER_RUN} strings")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
