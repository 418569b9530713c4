#!/usr/bin/env python3
"""What somebody else's long prompt does to a stream, and what the stream does to the prompt.

    bench/serve_gap.py build/argent MODEL [--prompt-tokens 4096] [--rounds 5] [--argent-flags FLAGS] [--json]

Each round: a stream runs alone, then beside a request with a long prompt, then the same long prompt (other tokens) runs
alone. Printed: the stream's gap between tokens before (median) and beside the prompt (median, p99, maximum), and the
prompt's time to its first token beside the stream and alone. Exit codes: 1 the server failed, 2 wrong arguments.
"""
import argparse
import http.client
import json
import random
import shlex
import statistics
import subprocess
import sys
import threading
import time

from serve_compare import Failed, Server


class Stream(threading.Thread):
    """A completion of token ids; the time of each event with text."""

    def __init__(self, url, prompt, max_tokens):
        super().__init__(daemon=True)
        self.url, self.body = url, {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True, "temperature": 0}
        self.times, self.error, self.enough = [], None, False
        self.begin = time.perf_counter()
        self.start()

    def run(self):
        try:
            connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=120)
            connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise Failed(f"{answer.status} {answer.read()[:200]}")
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    self.times.append(time.perf_counter())
                if self.enough:
                    break
            connection.close()
        except (OSError, Failed, http.client.HTTPException) as error:
            self.error = error

    def first(self):
        """Seconds to the first token; waits until the stream's end."""
        self.join()
        if self.error or not self.times:
            raise Failed(f"a request failed: {self.error}")
        return self.times[0] - self.begin


def one_round(url, o, rng):
    def prompt(n):
        return [rng.randrange(1000, 20000) for _ in range(n)]
    stream = Stream(url, prompt(32), 4096)
    time.sleep(o.before)
    start = time.perf_counter()
    beside = Stream(url, prompt(o.prompt_tokens), 1).first()
    end = time.perf_counter()
    time.sleep(0.1)
    stream.enough = True
    stream.first()
    alone = Stream(url, prompt(o.prompt_tokens), 1).first()
    times = stream.times
    gaps = list(zip(times[1:], (b - a for a, b in zip(times, times[1:]))))
    before = [g for at, g in gaps if times[0] + 0.2 < at < start]
    during = sorted(g for at, g in gaps if start < at < end)
    if len(before) < 20 or len(during) < 20:
        raise Failed(f"{len(before)} tokens before the prompt and {len(during)} beside it are too few")
    return {"before_ms": statistics.median(before) * 1e3, "before_p99_ms": sorted(before)[int(len(before) * 0.99)] * 1e3,
            "during_ms": statistics.median(during) * 1e3, "during_p99_ms": during[int(len(during) * 0.99)] * 1e3,
            "during_max_ms": during[-1] * 1e3, "tokens_during": len(during), "prompt_beside_s": beside, "prompt_alone_s": alone}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("argent")
    parser.add_argument("model")
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=float, default=1.5, help="seconds that the stream runs alone")
    parser.add_argument("--argent-flags", default="")
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()
    if min(o.rounds, o.prompt_tokens) < 1:
        parser.error("counts are at least 1")
    rng = random.Random(1)
    runs = []
    try:
        command = [o.argent, "serve", o.model, "--log", "none", "-c", str(o.prompt_tokens + 64 if o.prompt_tokens > 4096 else 8192),
                   *shlex.split(o.argent_flags)]
        with Server("argent", command, 120) as url:
            Stream(url, [rng.randrange(1000, 20000) for _ in range(512)], 32).first()
            for i in range(o.rounds):
                time.sleep(1)  # so that what a server does when it rests is done
                runs.append(one_round(url, o, rng))
                r = runs[-1]
                if not o.json:
                    print(f"round {i + 1}: gap {r['before_ms']:.2f} ms before (p99 {r['before_p99_ms']:.2f}), {r['during_ms']:.2f} beside "
                          f"(p99 {r['during_p99_ms']:.2f}, max {r['during_max_ms']:.1f}; {r['tokens_during']} tokens): p99 "
                          f"{r['during_p99_ms'] / r['before_ms']:.2f}x; prompt {r['prompt_beside_s']:.2f} s beside, {r['prompt_alone_s']:.2f} s "
                          f"alone: {r['prompt_beside_s'] / r['prompt_alone_s']:.2f}x", flush=True)
    except Failed as error:
        print(f"serve_gap.py: {error}", file=sys.stderr)
        return 1
    gap = statistics.median(r["during_p99_ms"] / r["before_ms"] for r in runs)
    prompt = statistics.median(r["prompt_beside_s"] / r["prompt_alone_s"] for r in runs)
    if o.json:
        print(json.dumps({"model": o.model, "prompt_tokens": o.prompt_tokens, "rounds": runs, "gap_ratio": gap, "prompt_ratio": prompt}))
    else:
        print(f"medians: p99 gap {gap:.2f}x of the median before; the prompt {prompt:.2f}x of alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
