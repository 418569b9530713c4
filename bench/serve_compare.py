#!/usr/bin/env python3
"""Alternates argent serve with llama-server on one file under the same load, and prints the ratios run by run.

    serve_compare.py build/argent PATH/llama-server MODEL.gguf --clients 16 --prompt-tokens 128 --new-tokens 32
    serve_compare.py build/argent PATH/llama-server MODEL.gguf --rate 4 --requests 40 --shared-prefix 96 --json runs.jsonl

Each round starts one server, waits until it is ready, measures it with `argent bench serve` and ends it; then the other.
Rounds begin with the other one in turns: a machine's speed changes from minute to minute, the ratio of neighbouring runs
does not. A ratio above 1 is to argent's favour, of times and of rates. --argent-flags and --llama-flags go to the servers.
Exit codes: 1 a server failed or answered with errors, 2 wrong arguments.
"""
import argparse
import json
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# name, how it is read from a run, whether more is better
FIGURES = [
    ("generated tokens/s", lambda r: r["generated_tokens_per_second"], True),
    ("total tokens/s", lambda r: r["total_tokens_per_second"], True),
    ("ttft p50 ms", lambda r: r["ttft_ms"]["p50"], False),
    ("ttft p95 ms", lambda r: r["ttft_ms"]["p95"], False),
    ("token p50 ms", lambda r: r["time_per_output_token_ms"]["p50"], False),
    ("gap p99 ms", lambda r: r["inter_token_ms"]["p99"], False),
    ("answer p50 ms", lambda r: r["end_to_end_ms"]["p50"], False),
]


class Failed(Exception):
    pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command, seconds):
        self.name, self.seconds = name, seconds
        self.port = free_port()
        self.command = [*command, "--port", str(self.port)]

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        except OSError as error:
            raise Failed(f"{self.name}: {error}")
        try:
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return f"http://127.0.0.1:{self.port}"

    def wait(self):
        """Until it lists its model: llama-server listens while it loads."""
        end = time.time() + self.seconds
        while time.time() < end:
            if self.process.poll() is not None:
                self.log.seek(0)
                last = self.log.read().decode(errors="replace").strip().splitlines()[-3:]
                raise Failed(f"{self.name} ended with {self.process.returncode}: {' | '.join(last)}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        raise Failed(f"{self.name} is not ready after {self.seconds} s")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def measure(o, server, flags):
    with server as url:
        try:
            done = subprocess.run([o.argent, "bench", "serve", url, "-o", "json", *flags], capture_output=True, text=True, timeout=o.seconds,
                                  stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise Failed(f"{server.name}: no figures after {o.seconds} s")
    if done.returncode:
        details = json.loads(done.stdout)["error_details"] if done.stdout.startswith("{") else ""
        raise Failed(f"{server.name}: {done.stderr.strip()} {details}")
    run = json.loads(done.stdout)
    if run["failed"] or run["short_answers"]:
        raise Failed(f"{server.name}: {run['failed']} requests failed {run['errors']}, {run['short_answers']} answers were short")
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("argent")
    parser.add_argument("llama_server")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--shared-prefix", type=int, default=0)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--token-ids", type=int, help="prompts of ids below this, for files without a tokenizer")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--argent-flags", default="")
    parser.add_argument("--llama-flags", default="")
    parser.add_argument("--seconds", type=float, default=600, help="at most, for a start and for a run")
    parser.add_argument("--json", metavar="FILE", help="a line a run and one of the medians")
    o = parser.parse_args()
    if min(o.rounds, o.slots, o.threads, o.clients, o.prompt_tokens, o.new_tokens) < 1:
        parser.error("counts are at least 1")

    # Both get the same room for each slot; a template's tokens and a bit come on top. llama-server's -c is of all slots.
    ctx = -(-(o.prompt_tokens + o.new_tokens + 64) // 256) * 256
    def server_of(name):
        if name == "argent":
            command = [o.argent, "serve", o.model, "--parallel", o.slots, "-t", o.threads, "-c", ctx, "--log", "none", *shlex.split(o.argent_flags)]
        else:
            command = [o.llama_server, "-m", o.model, "-np", o.slots, "-c", ctx * o.slots, "--no-webui", "-t", o.threads, "-fa", "on",
                       *shlex.split(o.llama_flags)]
        return Server(name, [str(word) for word in command], o.seconds)

    out = open(o.json, "w") if o.json else None
    ratios = {name: [] for name, _, _ in FIGURES}
    values = {(server, name): [] for server in ("argent", "llama-server") for name, _, _ in FIGURES}
    try:
        for round_ in range(o.rounds):
            # each round has prompts of its own: no cache on disk or in memory is of use to the next
            flags = ["--prompt-tokens", o.prompt_tokens, "--new-tokens", o.new_tokens, "--shared-prefix", o.shared_prefix, "--warmup", o.warmup,
                     "--seed", 1 + round_, "--clients", o.clients if o.rate is None else 1024]
            flags += ["--rate", o.rate] if o.rate is not None else []
            flags += ["--token-ids", o.token_ids] if o.token_ids else []
            flags += ["--requests", o.requests] if o.requests else []
            flags = [str(f) for f in flags + (["--chat"] if o.chat else [])]
            names = ["argent", "llama-server"] if round_ % 2 == 0 else ["llama-server", "argent"]
            runs = {}
            for name in names:
                runs[name] = measure(o, server_of(name), flags)
                if out:
                    print(json.dumps({"round": round_ + 1, "server": name, **runs[name]}), file=out, flush=True)
            print(f"round {round_ + 1:<18} {'argent':>12} {'llama-server':>12} {'ratio':>8}")
            for name, read, more_is_better in FIGURES:
                try:
                    ours, theirs = read(runs["argent"]), read(runs["llama-server"])
                except TypeError:  # one token: nothing lies between tokens
                    continue
                ratio = ours / theirs if more_is_better else theirs / ours
                ratios[name].append(ratio)
                values["argent", name].append(ours)
                values["llama-server", name].append(theirs)
                print(f"{name:<24} {ours:>12.2f} {theirs:>12.2f} {ratio:>8.3f}", flush=True)
    except Failed as error:
        sys.exit(f"serve_compare.py: {error}")
    print(f"{'median of rounds':<24} {'argent':>12} {'llama-server':>12} {'ratio':>8}")
    median = statistics.median
    for name, list_ in ratios.items():
        if list_:
            print(f"{name:<24} {median(values['argent', name]):>12.2f} {median(values['llama-server', name]):>12.2f} {median(list_):>8.3f}")
    if out:
        print(json.dumps({"rounds": o.rounds, "ratios": {name: median(list_) for name, list_ in ratios.items() if list_}}), file=out)
        out.close()


if __name__ == "__main__":
    main()
