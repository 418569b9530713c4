#!/usr/bin/env python3
"""`argent serve --deterministic`: a request has the same bits whatever runs beside it, however its prompt is cut, whatever
is cached, whoever takes its KV blocks, with any number of threads, wherever the weights lie, and on AVX2 as on AVX-512.

    python deterministic_test.py BINARY
"""

import functools
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness_server as harness
from harness_server import TEXT, Server, tiny, together

CONTEXT = 256
SEEDED = {"temperature": 1.2, "top_p": 0.95, "repeat_penalty": 1.1}


def ids(n, which):
    return [1 + (i * 7 + which * 13 + i * i * which) % 300 for i in range(n)]


def requests():
    """Greedy and seeded ones, short and long, some with the same beginning, some of four answers."""
    out = []
    for i, length in enumerate((1, 5, 31, 32, 33, 64, 100, 150, 199)):
        out.append({"prompt": ids(length, i), "temperature": 0})
        out.append({"prompt": ids(length, 20)[: length - 1] + [i + 1], "seed": i, **SEEDED})
    out += [{**request, "n": 4} for request in (out[5], out[13])]
    return [{**r, "max_tokens": 40, "ignore_eos": True, "logprobs": 3} for r in out]


def bits(answer):
    """Of each answer to a request: its tokens, and all the log-probabilities that it has."""
    assert answer.status == 200, answer.raw[:300]
    return [(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]) for c in answer.json["choices"]]


class Bits(unittest.TestCase):
    arch = ("llama", "--quant", "Q4_K,Q6_K,Q8_0,F16")

    def serve(self, *flags):
        server = Server(self.model, "--deterministic", "--ctx", CONTEXT, *flags)
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0))
        return server

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = tiny(cls.folder.name, *cls.arch)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_every_way(self):
        bodies = requests()
        # One after another, on one thread, each prompt in one piece, from the file's mapping, with the oldest instructions
        # that share the arithmetic.
        isa = ("--isa", "avx2") if {"avx2", "fma"} <= set(Path("/proc/cpuinfo").read_text().split()) else ()
        server = self.serve("--threads", 1, "--weights", "mapped", "--parallel", 4, *isa)
        wanted = [bits(server.post(TEXT, b)) for b in bodies]
        for single, four in zip((bodies[5], bodies[13]), bodies[-2:]):
            self.assertEqual(wanted[bodies.index(four)][0], wanted[bodies.index(single)][0], "the first of four answers")
        self.assertEqual(server.metrics()["preemptions_total"], 0)

        def same(server, order, how):
            answers = together([functools.partial(server.post, TEXT, bodies[i]) for i in order])
            for i, answer in zip(order, answers):
                self.assertEqual(bits(answer), wanted[i], f"{how}, request {i}")

        everyone = list(range(len(bodies)))
        many = self.serve("--threads", 2, "--weights", "resident", "--parallel", 16)
        same(many, everyone, "among others, nothing cached")
        same(many, everyone[::-1], "among others, cached")
        self.assertGreater(many.metrics()["cached_tokens_total"], 1000)
        short = self.serve("--threads", 2, "--parallel", 6, "--pool-tokens", CONTEXT)
        same(short, everyone + everyone, "after others took its blocks")
        self.assertGreater(short.metrics()["preemptions_total"], 10)

    def test_requests_without_a_seed(self):
        body = {"prompt": ids(9, 1), "temperature": 1.5, "max_tokens": 20, "ignore_eos": True, "logprobs": 0}
        for flags, n in (((), 1), (("--seed", 7), 1)):
            server = self.serve(*flags)
            self.assertEqual(len({str(bits(server.post(TEXT, body))) for _ in range(4)}), n)
            again = bits(server.post(TEXT, {**body, "seed": 7}))
            self.assertEqual(again == bits(server.post(TEXT, body)), flags != ())
        free = Server(self.model, "--ctx", CONTEXT)
        self.assertGreater(len({str(bits(free.post(TEXT, body))) for _ in range(4)}), 1)
        self.assertEqual(free.stop(), 0)

    def test_a_device_that_cannot(self):
        done = subprocess.run([harness.PROGRAM, "serve", self.model, "--port", "0", "--deterministic", "--device", "null"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (3, 1), done.stderr)
        self.assertIn("null", done.stderr)


class Windows(Bits):
    """Where layers forget."""

    arch = ("gemma3",)
    test_requests_without_a_seed = test_a_device_that_cannot = None


if __name__ == "__main__":
    sys.exit(harness.main())
