#!/usr/bin/env python3
"""A server under mixed traffic for as long as is wanted: its memory stays flat, nothing is lost, answers stay the same.

    ARGENT_MODELS=FOLDER python long_test.py BINARY [--minutes N] [--share S]     default: a third of a minute

The clients pause every few seconds, so that what is measured is measured at rest: resident memory, open files, threads,
blocks of the KV cache, counters. --share: of one CPU, for server and clients together (0: all they can get).
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness_server as harness
import traffic

# What a server at rest may grow by once it is warm. Threads have heaps of their own in glibc's malloc (arenas), each of
# which grows to the most that its thread ever held at once; who gets which request is chance, so the last of the growth
# comes late. In the first minutes that is most of what is seen: a short run can only find leaks that are large.
GROWTH_MB_AN_HOUR = 4.0
GROWTH_MB_AT_ONCE = 12.0
WARM = 1 / 3  # the part of a run that is not judged


class Watch:
    """A process's memory, files and threads."""

    def __init__(self, pid):
        self.proc = Path(f"/proc/{pid}")

    def anonymous_mb(self):
        return int(re.search(r"RssAnon:\s+(\d+) kB", (self.proc / "status").read_text())[1]) / 1024

    def n_files(self):
        return len(os.listdir(self.proc / "fd"))

    def n_threads(self):
        return len(os.listdir(self.proc / "task"))


def settle(read, wanted, seconds=20):
    """What `read` gives once that is `wanted`, or after the time."""
    end = time.monotonic() + seconds
    while (seen := read()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return seen


def slope(samples):
    """MB an hour, by least squares."""
    return statistics.linear_regression([t / 3600 for t, _ in samples], [mb for _, mb in samples]).slope


def run(server, seconds, share):
    load = traffic.Traffic(server, share=share)
    watch = Watch(server.process.pid)
    load.check_rest()
    time.sleep(1)  # until the last connections are closed, and the other models' threads have ended
    n_files, n_threads = watch.n_files(), watch.n_threads()
    clock, samples, told = load.clock, [], 0.0
    began = clock.now()
    pause = max(2.0, min(15.0, seconds / 40))
    try:
        while (now := clock.now() - began) < seconds and not load.over:
            load.resume()
            time.sleep(pause)
            load.pause()
            if load.over:
                break
            m = load.check_rest()
            assert (seen := settle(watch.n_files, n_files)) == n_files, f"{seen} open files, there were {n_files}"
            assert (seen := settle(watch.n_threads, n_threads)) == n_threads, f"{seen} threads, there were {n_threads}"
            samples.append((clock.now() - began, watch.anonymous_mb()))
            if now - told > 60 or len(samples) == 1:
                told = now
                print(f"{now:6.0f} s  {samples[-1][1]:7.2f} MB  {sum(load.counts.values()):6d} acts  "
                      f"{m['requests_total']:6.0f} requests  {m['generated_tokens_total']:8.0f} tokens  "
                      f"{m['preemptions_total']:5.0f} preemptions", flush=True)
    finally:
        load.stop()
    if load.errors:
        print(*load.errors, *server.lines[-20:], sep="\n")
        sys.exit("FAILED: a client saw what it must not")
    for name, (path, body) in traffic.KNOWN.items():
        assert load.read(path, load.ask("POST", path, body)) == load.known[name], f"{name} is not what it was at first"
    m, cpus = load.check_rest(), load.pace.mean()
    assert m["preemptions_total"] > 0 and m["requests_cancelled_total"] > 0, m
    assert min(load.counts.values()) > 0, load.counts
    assert server.stop() == 0, server.lines[-20:]
    warm = [s for s in samples if s[0] > seconds * WARM]
    growth, an_hour = max(mb for _, mb in warm) - warm[0][1], slope(warm)
    print(f"{sum(load.counts.values())} acts: {load.counts}\n{m['requests_total']:.0f} requests of the chat model, "
          f"{m['requests_cancelled_total']:.0f} cancelled, {m['preemptions_total']:.0f} preemptions; {cpus:.2f} CPUs\n"
          f"memory: {warm[0][1]:.2f} MB when warm, {samples[-1][1]:.2f} MB at the end, at most {growth:+.2f} MB; "
          f"fit {an_hour:+.2f} MB an hour")
    assert growth < GROWTH_MB_AT_ONCE, "memory grows"
    assert seconds < 1200 or an_hour < GROWTH_MB_AN_HOUR, "memory grows"
    print("ok")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--minutes", type=float, default=1 / 3)
    parser.add_argument("--share", type=float, default=0.0)
    args = parser.parse_args()
    harness.PROGRAM = args.binary.resolve()
    with tempfile.TemporaryDirectory() as folder:
        server = traffic.serve(folder)
        try:
            run(server, args.minutes * 60, args.share)
        finally:
            server.process.kill()


if __name__ == "__main__":
    main()
