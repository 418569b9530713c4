#!/usr/bin/env python3
"""Alternates argent bench with other engines on one file and prints the ratio of speeds, run by run.

    compare.py build/argent MODEL.gguf --peer 'llama.cpp=PATH/llama-bench'
    compare.py build/argent MODEL.gguf --peer 'ik=PATH/llama-bench' --peer 'ik repacked=PATH/llama-bench -rtr 1' -p 512 -n 64
    compare.py build/argent MODEL.gguf --peer ... -p 1,2,4,8 -n 0          passes of few tokens
    compare.py build/argent MODEL.gguf --peer ... -p 0 -n 64 -d 8192       decode at a depth
    compare.py build/argent MODEL.gguf --other 'mine=./mine {model} -n {n}' --pattern '([0-9.]+) tokens/s' -p 0 -n 64

A test is one value of -p or -n at one of -d. Each round runs every engine once on it, in turns (another one begins each
time); what counts is the median of the rounds' ratios argent / the best of the others, for a machine's speed changes from
minute to minute, the ratio of neighbouring runs does not. Beside it stands what argent's run took of the machine's read
bandwidth and operations, measured around it: an engine at the limit cannot be much faster than another. --peer is a llama-bench (llama.cpp's or ik_llama.cpp's) with
flags of its own; --other is any command, run by the shell, with {model}, {p}, {n}, {d}, {t} and {r} filled in, and the first group of
its --pattern is its speed in tokens/s. Exit codes: 1 an engine failed, 2 wrong arguments.
"""
import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys


class Failed(Exception):
    pass


def run(command, name, shell=False):
    try:
        done = subprocess.run(command, shell=shell, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Failed(f"{name}: {error}")
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise Failed(f"{name} ended with {done.returncode}: {' | '.join(last)}")
    return done


def bench_rows(output, name):
    """The array of objects that argent bench and llama-bench print, whatever stands around it."""
    start = output.find("[\n")
    try:
        return json.JSONDecoder().raw_decode(output[start:])[0] if start >= 0 else []
    except json.JSONDecodeError:
        raise Failed(f"{name} printed no JSON rows: {output.strip()[-200:]}")


class Test:
    def __init__(self, p, n, d):
        self.p, self.n, self.d = p, n, d

    def __str__(self):
        return (f"pp{self.p}" if self.p else f"tg{self.n}") + (f" @ d{self.d}" if self.d else "")

    def flags(self, options):
        return ["-p", self.p, "-n", self.n, *(["-d", self.d] if self.d else []), "-t", options.t, "-r", options.r, "-o", "json"]


class Bench:
    """argent bench, or a llama-bench with flags of its own."""

    def __init__(self, name, command, is_argent=False):
        self.name, self.command, self.is_argent, self.knows_depth = name, command, is_argent, None
        self.shares = None  # of the last run: read bandwidth and operations

    def depth_by_gp(self):
        # ik_llama.cpp's has no -d, but times tokens after a prompt: -gp DEPTH,N.
        if self.knows_depth is None:
            try:
                text = subprocess.run([self.command[0], "--help"], capture_output=True, text=True, errors="replace")
            except OSError as error:
                raise Failed(f"{self.name}: {error}")
            self.knows_depth = "--n-depth" in text.stdout + text.stderr
        return not self.knows_depth

    def speed(self, test, options):
        flags = test.flags(options)
        if self.is_argent:
            command = [self.command[0], "bench", options.model, *flags, *self.command[1:]]
        else:
            if test.d and self.depth_by_gp():
                if test.p:
                    raise Failed(f"{self.name}: its llama-bench times no prompts at a depth")
                flags = ["-p", "0", "-n", "0", "-gp", f"{test.d},{test.n}", *flags[6:]]
            own = self.command[1:]
            attention = [] if "-fa" in own or "--flash-attn" in own else ["-fa", "1"]
            command = [self.command[0], "-m", options.model, *flags, *attention, *own]
        rows = bench_rows(run([str(word) for word in command], self.name).stdout, self.name)
        if len(rows) != 1:
            raise Failed(f"{self.name}: {len(rows)} rows for {test}, wanted one")
        if self.is_argent:
            self.shares = {name: rows[0].get(f"{name}_share", 0) for name in ("read", "ops")}
        return float(rows[0]["avg_ts"])


class Other:
    def __init__(self, name, command, pattern):
        self.name, self.command, self.pattern = name, command, pattern

    def speed(self, test, options):
        values = {"model": shlex.quote(options.model), "p": test.p, "n": test.n, "d": test.d, "t": options.t, "r": options.r}
        command = re.sub(r"\{(model|[pndtr])\}", lambda m: str(values[m.group(1)]), self.command)
        done = run(command, self.name, shell=True)
        found = self.pattern.search(done.stdout) or self.pattern.search(done.stderr)
        if not found:
            raise Failed(f"{self.name}: its --pattern is not in what it printed: {done.stdout.strip()[-200:]}")
        try:
            speed = float(found.group(1).replace(",", ""))
        except ValueError:
            speed = 0
        if not speed > 0:
            raise Failed(f"{self.name}: '{found.group(1)}' is no speed")
        return speed


def named(text, number):
    """'NAME=COMMAND', the name being free of slashes; without one the command's number."""
    found = re.match(r"([^=/]+)=(.+)$", text, re.S)
    return (found.group(1), found.group(2)) if found else (f"peer {number}", text)


def numbers(text):
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: wanted numbers with commas")
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text}: wanted no number below 0")
    return values


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("argent")
    parser.add_argument("model")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=LLAMA_BENCH [FLAGS]")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--pattern", action="append", default=[], metavar="REGEX", help="one for all --other, or one for each")
    parser.add_argument("--argent-flags", default="", help="as '--cache-type f32'")
    parser.add_argument("-p", type=numbers, default=[512], help="prompt tokens, a list")
    parser.add_argument("-n", type=numbers, default=[64], help="tokens to decode, a list")
    parser.add_argument("-d", type=numbers, default=[0], help="positions in the cache before, a list")
    parser.add_argument("-t", default="2", help="threads")
    parser.add_argument("-r", default="3", help="repetitions in each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="a line for each round and one for each test's medians")
    options = parser.parse_args()
    options.tests = [test for d in options.d for test in [Test(p, 0, d) for p in options.p if p] + [Test(0, n, d) for n in options.n if n]]
    if not options.tests or options.rounds < 1:
        parser.error("nothing to measure: -p and -n are 0, or no rounds")
    if options.other and len(options.pattern) not in (1, len(options.other)):
        parser.error(f"{len(options.pattern)} --pattern for {len(options.other)} --other: wanted one, or one for each")
    if not options.peer and not options.other:
        parser.error("nobody to compare with: --peer or --other")
    try:
        engines = [Bench("argent", [options.argent, *shlex.split(options.argent_flags)], is_argent=True)]
    except ValueError as error:
        raise Failed(f"--argent-flags {options.argent_flags}: {error}")
    for i, text in enumerate(options.peer):
        name, command = named(text, i + 1)
        engines.append(Bench(name, shlex.split(command)))
    for i, text in enumerate(options.other):
        try:
            pattern = re.compile(options.pattern[i if len(options.pattern) > 1 else 0])
        except re.error as error:
            parser.error(f"--pattern: {error}")
        if pattern.groups < 1:
            parser.error(f"--pattern {pattern.pattern}: wanted a group around the figure")
        engines.append(Other(*named(text, len(options.peer) + i + 1), pattern))
    names = [engine.name for engine in engines]
    if len(set(names)) < len(names):
        parser.error(f"two engines have one name: {', '.join(names)}")
    return options, engines


def measure(options, engines, test):
    """The speeds of all engines in each round, and argent's shares of the machine."""
    for i in range(options.rounds):
        turn = i % len(engines)
        yield {engine.name: engine.speed(test, options) for engine in engines[turn:] + engines[:turn]}, engines[0].shares


def percent(shares):
    return f"({shares['read']:.0%} of read, {shares['ops']:.0%} of ops)"


def main():
    options, engines = arguments()
    others = [engine.name for engine in engines[1:]]
    for test in options.tests:
        rounds = []
        for speeds, shares in measure(options, engines, test):
            best = max(others, key=lambda name: speeds[name])
            ratio = speeds["argent"] / speeds[best]
            rounds.append((speeds, ratio, shares))
            if options.json:
                print(json.dumps({"test": str(test), "model": options.model, "round": len(rounds), "speeds": speeds, "best_other": best, "ratio": ratio,
                                  "shares": shares}))
            else:
                print(f"{test} round {len(rounds)}: " + "  ".join(f"{name} {speeds[name]:.1f}" for name in ["argent", *others]) +
                      f"  ratio {ratio:.2f}  {percent(shares)}")
            sys.stdout.flush()
        speeds = {name: statistics.median(speeds[name] for speeds, _, _ in rounds) for name in ["argent", *others]}
        ratios = {name: statistics.median(speeds["argent"] / speeds[name] for speeds, _, _ in rounds) for name in others}
        ratio = statistics.median(ratio for _, ratio, _ in rounds)
        shares = {name: statistics.median(shares[name] for _, _, shares in rounds) for name in rounds[0][2]}
        if options.json:
            print(json.dumps({"test": str(test), "model": options.model, "rounds": len(rounds), "median_speeds": speeds, "median_ratios": ratios,
                              "median_ratio": ratio, "median_shares": shares}))
        else:
            print(f"{test} medians: argent {speeds['argent']:.1f}  " + "  ".join(f"{name} {speeds[name]:.1f} ({ratios[name]:.2f})" for name in others) +
                  f"  ratio {ratio:.2f}  {percent(shares)}")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"compare.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
