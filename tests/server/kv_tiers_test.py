#!/usr/bin/env python3
"""Prefixes that left the KV cache: found again in host memory, and on disk by the next server, whatever the folder holds.

    ARGENT_MODELS=FOLDER python kv_tiers_test.py BINARY
"""

import functools
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import harness_server as harness
from harness_server import TEXT, Server, together

N_PROMPT, N_FOUND = 170, 160  # whole blocks of 32 that leave a token to compute
N_PROMPTS = 5
SMALL = ("--ctx", 256, "--pool-tokens", 256, "--parallel", 2)  # a pool for one prompt and a half


def prompt(which):
    return [1 + (i * 7 + which * 131 + i * i * which) % 40000 for i in range(N_PROMPT)]


def body(which):
    return {"prompt": prompt(which), "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 3}


def cached(answer):
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def bits(answer):
    """Text and probabilities: equal only if every number behind them is."""
    return [(c["text"], c["logprobs"]) for c in answer.json["choices"]]


class KvTiers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = Server(harness.SMOL, *SMALL, "--kv-host-bytes", 0)
        cls.cold = [bits(cls.ask(server, i)) for i in range(N_PROMPTS)]
        assert cached(cls.ask(server, 0)) == 0
        assert server.metrics()["kv_host_bytes"] == 0
        assert server.stop() == 0

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "kv"
        self.servers = []

    def tearDown(self):
        for server in self.servers:
            server.stop()
        self.folder.cleanup()

    @staticmethod
    def ask(server, which):
        answer = server.post(TEXT, body(which))
        assert answer.status == 200, answer.raw
        return answer

    def serve(self, *flags, disk=True):
        server = Server(harness.SMOL, *SMALL, *(("--kv-disk", self.path) if disk else ()), *flags)
        self.servers.append(server)
        return server

    def right(self, server, which):
        """The answer that a server without tiers gives; returns how many tokens were found."""
        answer = self.ask(server, which)
        self.assertEqual(bits(answer), self.cold[which])
        return cached(answer)

    def files(self):
        return sorted(self.path.rglob("*.kv"))

    def left_on_disk(self):
        server = self.serve()
        for i in range(N_PROMPTS):
            self.assertEqual(self.right(server, i), 0)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(len(self.files()), N_PROMPTS * N_FOUND // 32)

    def test_host_memory(self):
        server = self.serve("--kv-host-bytes", "256MiB", disk=False)
        self.assertEqual([self.right(server, i) for i in range(N_PROMPTS)], [0] * N_PROMPTS)
        self.assertEqual([self.right(server, i) for i in range(N_PROMPTS)], [N_FOUND] * N_PROMPTS)
        seen = server.metrics()
        self.assertGreater(seen["kv_host_bytes"], 0)
        self.assertLessEqual(seen["kv_host_bytes"], 256 << 20)
        self.assertGreater(seen["kv_host_restored_tokens_total"], N_FOUND * (N_PROMPTS - 2))
        self.assertEqual(seen["kv_disk_restored_tokens_total"], 0)
        # Two at a time, which the pool cannot hold both: they wait and are preempted, and none gets the other's.
        for _ in range(3):
            together([functools.partial(self.right, server, i) for i in range(N_PROMPTS)])

    def test_small_host_memory(self):
        """Less than one prompt: blocks come and go all the time."""
        server = self.serve("--kv-host-bytes", "2MB", disk=False)
        for _ in range(2):
            for i in range(N_PROMPTS):
                self.right(server, i)
        self.assertLessEqual(server.metrics()["kv_host_bytes"], 2_000_000)

    def test_the_next_server_finds_it(self):
        self.left_on_disk()
        server = self.serve()
        self.assertGreater(server.metrics()["kv_disk_bytes"], 0)
        self.assertEqual([self.right(server, i) for i in range(N_PROMPTS)], [N_FOUND] * N_PROMPTS)
        self.assertEqual(server.metrics()["kv_disk_restored_tokens_total"], N_FOUND * N_PROMPTS)
        # Another cache type is another folder.
        other = self.serve("--cache-type", "q8_0")
        self.assertEqual(cached(self.ask(other, 0)), 0)

    def test_out_of_host_memory_to_disk(self):
        """Host memory for two prompts: what is pushed out of it is read again while the server runs."""
        server = self.serve("--kv-host-bytes", "9MB")
        for i in range(N_PROMPTS):
            self.right(server, i)
            time.sleep(0.2)
        found = [self.right(server, i) for i in range(N_PROMPTS)]
        self.assertGreater(server.metrics()["kv_disk_restored_tokens_total"], 0, found)

    def test_disk_bytes(self):
        server = self.serve("--kv-disk-bytes", "6MB")
        for i in range(N_PROMPTS):
            self.right(server, i)
        self.assertEqual(server.stop(), 0)
        size = sum(f.stat().st_size for f in self.files())
        self.assertTrue(4_000_000 < size <= 6_000_000, size)

    def test_damaged_files(self):
        self.left_on_disk()
        rng = random.Random(1)
        for file in self.files():
            data = bytearray(file.read_bytes())
            how = rng.randrange(4)
            if how == 0:
                data = data[:rng.randrange(len(data))]
            elif how == 1:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            elif how == 2:
                data += b"x"
            else:
                data[rng.randrange(72)] ^= 1 << rng.randrange(8)
            if rng.randrange(3) == 0:
                file.write_bytes(data)
        (self.path / "notes.txt").write_text("mine")
        (self.files()[0].parent / "notes.txt").write_text("mine")
        server = self.serve()
        for i in range(N_PROMPTS):
            self.right(server, i)
        lines = [line for line in server.lines if "KV disk tier" in line]
        self.assertTrue(1 <= len(lines) <= 3, server.lines)

    def full(self, server):
        """Requests go on while nothing can be written; one line tells."""
        together([functools.partial(self.right, server, i) for i in range(N_PROMPTS)])
        for i in range(N_PROMPTS):
            self.right(server, i)
        server.wait_line("nothing is written to disk", 20)
        self.assertEqual(len([line for line in server.lines if "KV disk tier" in line]), 1, server.lines)
        self.assertEqual(server.metrics()["requests_failed_total"], 0)

    def test_disk_full_by_limit(self):
        """A limit on the size of files, which needs no rights to set."""
        server = self.serve("--kv-host-bytes", "9MB")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        self.full(server)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(self.files(), [])

    def test_disk_full(self):
        """A file system of 2 MB, where that can be mounted."""
        self.path.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", self.path], capture_output=True)
        if mounted.returncode:
            self.skipTest("no right to mount")
        try:
            server = self.serve("--kv-host-bytes", "9MB")
            self.full(server)
            self.assertEqual(server.stop(), 0)
            self.assertTrue(self.files())  # what had room
            server = self.serve()
            self.assertGreaterEqual(max(self.right(server, i) for i in range(N_PROMPTS)), 0)
            self.assertEqual(server.stop(), 0)
        finally:
            subprocess.run(["umount", "-l", self.path], check=True)

    def test_folder_vanishes(self):
        server = self.serve("--kv-host-bytes", "9MB")
        self.right(server, 0)
        shutil.rmtree(self.path)
        self.full(server)
        self.assertEqual(server.stop(), 0)

    def test_no_folder_can_be(self):
        self.path.write_text("a file")
        server = self.serve("--kv-host-bytes", "9MB")
        self.full(server)

    def test_refused_flags(self):
        for flags, text in [(("--kv-host-bytes", "0"), "more than 0"), (("--kv-host-bytes", "1000TB"), "are free"),
                            *[((f, w), f"{f} {w}: wanted a number of bytes")
                              for f in ("--kv-host-bytes", "--kv-disk-bytes") for w in ("much", "-1", "1XB", "1e3", "GB")]]:
            done = subprocess.run([str(harness.PROGRAM), "serve", str(harness.SMOL), "--port", "0", "--ctx", "512",
                                   "--kv-disk", str(self.path), *flags], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    sys.exit(harness.main())
