#!/usr/bin/env python3
"""Tests of `argent bench serve` against a server that a script plays, well or badly:

    bench_serve_test.py BINARY

With ARGENT_MODELS set, `argent serve` is measured too. The last line is "N passed, M failed".
"""
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

from server_process import Server

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import make_tiny_gguf  # noqa: E402

BINARY = None
SMOL = "smollm2-135m-instruct-q4_1.gguf"


class Script:
    """An OpenAI server whose behaviour the model's name chooses: "slow", "drop", ... A word is two tokens."""

    def __init__(self, tokenizes=True):
        self.tokenizes = tokenizes
        self.seen = []          # bodies of completions
        self.n_connections = self.n_open = self.most_open = 0
        self.arrivals = []
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()

        def serve():
            asyncio.set_event_loop(self.loop)
            self.server = self.loop.run_until_complete(asyncio.start_server(self.connection, "127.0.0.1", 0, backlog=1024))
            self.port = self.server.sockets[0].getsockname()[1]
            ready.set()
            self.loop.run_forever()

        threading.Thread(target=serve, daemon=True).start()
        ready.wait()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.server.close)

    async def connection(self, reader, writer):
        self.n_connections += 1
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        try:
            while await self.request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        self.n_open -= 1
        writer.close()

    async def request(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        target = head.split(" ")[1]
        length = re.search(r"(?i)content-length: (\d+)", head)
        body = json.loads(await reader.readexactly(int(length[1]))) if length else {}
        if target.endswith("/v1/models"):
            return self.answer(writer, 200, {"data": [{"id": "plain"}]})
        if target.endswith("/tokenize"):
            if not self.tokenizes:
                return self.answer(writer, 404, {"error": {"message": "no such route"}})
            return self.answer(writer, 200, {"tokens": list(range(self.count(body["content"])))})
        self.seen.append((target, head, body))
        chat = "/chat/" in target
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        usage = {"prompt_tokens": self.count(prompt) + (10 if chat else 0), "completion_tokens": body["max_tokens"],
                 "prompt_tokens_details": {"cached_tokens": 3}}
        if not body.get("stream"):
            return self.answer(writer, 200, {"choices": [{"text": "x"}], "usage": usage})
        self.arrivals.append(time.time())
        return await self.stream(writer, body, chat, usage)

    @staticmethod
    def count(text):
        return len(text) if isinstance(text, list) else 2 * len(text.split()) + 1

    def answer(self, writer, status, value, headers=""):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n{headers}\r\n".encode() + text)
        return True

    async def stream(self, writer, body, chat, usage):
        mode = body["model"]
        if mode == "mixed":
            mode = ("plain", "full", "drop")[len(self.arrivals) % 3]
        if mode == "full":
            return self.answer(writer, 503, {"error": {"message": "all\x1b slots are taken"}})
        if mode == "json":
            return self.answer(writer, 200, {"choices": [{"text": "x"}]})
        if mode == "closing":
            self.answer(writer, 500, b"oh", "Connection: close\r\n")
            return False
        if mode == "garbage":
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            return False
        if mode == "nothing":
            return False
        if mode == "hang":
            await asyncio.sleep(20)
        if mode == "late":
            await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")

        async def send(text):
            raw = text.encode()
            raw = b"%x\r\n%s\r\n" % (len(raw), raw)
            for piece in [raw[i:i + 1] for i in range(len(raw))] if mode == "bytes" else [raw]:
                writer.write(piece)
                if mode == "bytes":
                    await writer.drain()
                    await asyncio.sleep(0)
            await writer.drain()

        def event(value):
            return f"data: {json.dumps(value)}\n\n"

        if chat:
            await send(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        for i in range(body["max_tokens"]):
            if mode in ("slow", "late"):
                await asyncio.sleep(0.02)
            if i == 2 and mode == "drop":
                return False
            if i == 2 and mode == "stall":
                await asyncio.sleep(20)
            if i == 2 and mode == "wrong":
                await send("data: {\"choices\": [{\"te\n\n")
            if i == 2 and mode == "fails":
                await send("event: error\n" + event({"error": {"message": "out of memory"}}))
            choice = {"delta": {"content": " w"}} if chat else {"text": " w"}
            await send(": a comment\n" + event({"choices": [{**choice, "index": 0, "finish_reason": None}]}))
        if mode == "no usage":
            usage = None
        await send(event({"choices": [], "usage": usage}))
        if mode != "undone":
            await send("data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return True


def bench(*args, timeout=30):
    done = subprocess.run([BINARY, "bench", "serve", *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)
    return done


class Base(unittest.TestCase):
    def json(self, *args, rc=0, **more):
        done = bench(*args, "-o", "json", **more)
        self.assertEqual(done.returncode, rc, done.stderr)
        return json.loads(done.stdout)


class Load(Base):
    def test_figures_of_a_closed_loop(self):
        with Script() as s:
            got = self.json(s.url, "--model", "slow", "--clients", 4, "--prompt-tokens", 41, "--new-tokens", 5, "--warmup", 2)
            self.assertEqual((got["requests"], got["succeeded"], got["failed"]), (16, 16, 0))
            self.assertEqual((got["prompt_tokens_least"], got["prompt_tokens_most"]), (41, 41))
            self.assertEqual((got["prompt_tokens"], got["generated_tokens"], got["cached_tokens"]), (16 * 41, 16 * 5, 16 * 3))
            self.assertGreaterEqual(got["inter_token_ms"]["p50"], 19)
            self.assertLess(got["inter_token_ms"]["p50"], 60)
            self.assertGreaterEqual(got["ttft_ms"]["p50"], 19)
            self.assertGreaterEqual(got["end_to_end_ms"]["p50"], 99)
            self.assertGreaterEqual(got["time_per_output_token_ms"]["mean"], 19)
            self.assertAlmostEqual(got["generated_tokens_per_second"], 80 / got["seconds"], 3)
            self.assertAlmostEqual(got["requests_per_second"], 16 / got["seconds"], 3)
            self.assertEqual(got["client"]["events"], 16 * 7)
            self.assertEqual(s.n_connections, 4, "connections are kept")
            streams = [body for _, _, body in s.seen if body.get("stream")]
            self.assertEqual(len(streams), 18)
            self.assertEqual(len({body["prompt"] for body in streams}), 18)
            for body in streams:
                self.assertEqual((body["max_tokens"], body["ignore_eos"], body["stream_options"]), (5, True, {"include_usage": True}))

    def test_percentiles_ascend_and_the_table_has_them(self):
        with Script() as s:
            got = self.json(s.url, "--requests", 9, "--new-tokens", 3)
            for name in ("ttft_ms", "inter_token_ms", "end_to_end_ms"):
                q = got[name]
                self.assertEqual(sorted([q["p50"], q["p90"], q["p95"], q["p99"], q["max"]]), [q["p50"], q["p90"], q["p95"], q["p99"], q["max"]])
            done = bench(s.url, "--requests", 3)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("time to first token", done.stdout)
            self.assertIn("3 of 3 requests", done.stdout)

    def test_open_loop(self):
        with Script() as s:
            args = [s.url, "--model", "late", "--rate", 40, "--new-tokens", 2, "--prompt-tokens", 5, "--warmup", 0]
            got = self.json(*args, "--requests", 40)
            self.assertEqual(got["succeeded"], 40)
            self.assertGreater(s.most_open, 4, "arrivals do not wait for answers")
            span = s.arrivals[-1] - s.arrivals[0]
            self.assertTrue(0.5 < span < 2, span)
            # the same arrivals on one connection: each waits for those before it, and that is told
            s.arrivals.clear()
            waited = self.json(*args, "--clients", 1, "--requests", 6)
            self.assertGreater(waited["ttft_ms"]["max"], 1200)

    def test_same_seed_same_prompts(self):
        with Script() as s:
            for seed in (5, 5, 6):
                self.json(s.url, "--seed", seed, "--requests", 2, "--warmup", 0)
            prompts = [body["prompt"] for _, _, body in s.seen if body.get("stream")]
            self.assertEqual(prompts[:2], prompts[2:4])
            self.assertFalse(set(prompts[:2]) & set(prompts[4:]))

    def test_shared_prefix(self):
        with Script() as s:
            self.json(s.url, "--prompt-tokens", 61, "--shared-prefix", 41, "--requests", 6, "--clients", 2)
            words = [body["prompt"].split() for _, _, body in s.seen if body.get("stream")]
            self.assertEqual({len(w) for w in words}, {30})
            self.assertEqual(len({tuple(w[:20]) for w in words}), 1)
            self.assertEqual(len({tuple(w[20:]) for w in words}), 7)

    def test_token_ids(self):
        with Script() as s:
            got = self.json(s.url, "--token-ids", 9, "--prompt-tokens", 60, "--shared-prefix", 20, "--requests", 3)
            self.assertEqual((got["prompt_tokens_least"], got["prompt_tokens_most"]), (60, 60))
            ids = [body["prompt"] for _, _, body in s.seen]
            self.assertEqual((len(ids), len({tuple(i[:20]) for i in ids}), len({tuple(i) for i in ids})), (4, 1, 4))
            self.assertEqual({i for prompt in ids for i in prompt}, set(range(9)))

    def test_chat_counts_the_template(self):
        for tokenizes in (True, False):
            with Script(tokenizes) as s:
                got = self.json(s.url + "/v1/", "--chat", "--prompt-tokens", 51, "--requests", 2, "--new-tokens", 3, "--api-key", "sk-1")
                self.assertEqual((got["prompt_tokens_least"], got["prompt_tokens_most"]), (51, 51), tokenizes)
                self.assertEqual(got["inter_token_ms"] is not None and got["succeeded"], 2)
                target, head, _ = s.seen[-1]
                self.assertEqual(target, "/v1/chat/completions")
                self.assertIn("Authorization: Bearer sk-1", head)

    def test_without_usage_events_count(self):
        with Script() as s:
            got = self.json(s.url, "--model", "no usage", "--requests", 2, "--new-tokens", 3)
            self.assertEqual((got["generated_tokens"], got["answers_without_usage"]), (6, 2))

    def test_many_connections_cost_little(self):
        with Script() as s:
            got = self.json(s.url, "--clients", 1024, "--requests", 1024, "--new-tokens", 8, "--prompt-tokens", 9, "--warmup", 0, timeout=60)
            self.assertEqual(got["succeeded"], 1024)
            self.assertLess(got["client"]["cpu_seconds_per_1000_events"], 0.25)

    def test_bytes_one_at_a_time(self):
        with Script() as s:
            got = self.json(s.url, "--model", "bytes", "--requests", 2, "--new-tokens", 3)
            self.assertEqual((got["succeeded"], got["generated_tokens"]), (2, 6))


class Faults(Base):
    def test_each_kind_is_told(self):
        kinds = {"full": ("HTTP 503", "slots"), "closing": ("HTTP 500", "oh"), "json": ("no stream", "choices"),
                 "garbage": ("not HTTP", "SSH"), "nothing": ("connection lost", "before"), "drop": ("connection lost", "within"),
                 "wrong": ("wrong event", "no JSON"), "fails": ("error of the server", "out of memory"),
                 "undone": ("cut off", "[DONE]"), "hang": ("timeout", "time"), "stall": ("timeout", "time")}
        with Script() as s:
            for mode, (kind, word) in kinds.items():
                with self.subTest(mode):
                    args = [s.url, "--model", mode, "--requests", 3, "--timeout", 0.5, "--warmup", 0]
                    got = self.json(*args, rc=5)
                    self.assertEqual(got["errors"], {kind: 3})
                    self.assertIn(word, got["error_details"][kind])
                    self.assertIsNone(got["ttft_ms"])
                    done = bench(*args)
                    self.assertEqual(done.returncode, 5)
                    self.assertIn(f"3 x {kind}", done.stdout)
                    self.assertNotIn("\x1b", done.stdout + done.stderr)
                    self.assertEqual(done.stderr.count("\n"), 1)

    def test_some_fail(self):
        with Script() as s:
            got = self.json(s.url, "--model", "mixed", "--clients", 3, "--requests", 30, "--new-tokens", 4, "--warmup", 0)
            self.assertEqual((got["succeeded"], got["errors"]), (10, {"HTTP 503": 10, "connection lost": 10}))
            self.assertEqual(got["generated_tokens"], 40)

    def test_nobody_listens(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            done = bench(f"http://127.0.0.1:{s.getsockname()[1]}")
            self.assertEqual((done.returncode, done.stdout), (5, ""))
            self.assertIn("refused", done.stderr)

    def test_arguments(self):
        for args in ([], ["x"], ["http://"], ["http://h", "--clients", 0], ["http://h", "--clients", 1025], ["http://h", "--rate", 0],
                     ["http://h", "--prompt-tokens", 8, "--shared-prefix", 9], ["http://h", "-o", "xml"], ["http://h", "--chat", "--token-ids", 9], ["http://h", "--rate", "nan"],
                     ["http://h", "--timeout", "inf"]):
            with self.subTest(args):
                done = bench(*args)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
        done = subprocess.run([BINARY, "bench", "-p", "4", "serve", "http://h"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("does not go with", done.stderr)

    def test_control_c(self):
        with Script() as s:
            run = subprocess.Popen([BINARY, "bench", "serve", s.url, "--model", "stall", "--warmup", "0", "-o", "json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
            while not s.arrivals:
                time.sleep(0.02)
            time.sleep(0.1)
            run.send_signal(2)
            out, err = run.communicate(timeout=10)
            self.assertEqual((run.returncode, err), (130, "argent: stopped\n"))
            self.assertEqual(json.loads(out)["errors"], {"stopped": 1})


class Tls(Base):
    """`argent serve` with a certificate that an authority of one's own has signed."""

    def test_who_is_trusted(self):
        with tempfile.TemporaryDirectory() as folder:
            at = lambda name: os.path.join(folder, name)
            openssl = lambda *args: subprocess.run(["openssl", *args], check=True, capture_output=True)
            for ca in ("ca", "other"):
                openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={ca}", "-keyout", at(f"{ca}.key"), "-out",
                        at(f"{ca}.pem"))
            openssl("req", "-x509", "-CA", at("ca.pem"), "-CAkey", at("ca.key"), "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=server",
                    "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE", "-keyout", at("key.pem"), "-out", at("cert.pem"))
            make_tiny_gguf.write(at("tiny.gguf"), "llama")
            with Server(BINARY, at("tiny.gguf"), "--ctx", "256", "--tls-cert", at("cert.pem"), "--tls-key", at("key.pem")) as server:
                port = server.url.rsplit(":", 1)[1]
                load = ["--token-ids", 300, "--clients", 3, "--requests", 6, "--prompt-tokens", 20, "--new-tokens", 5]
                for more in (["--cacert", at("ca.pem")], ["--insecure"]):
                    self.assertEqual(self.json(f"https://localhost:{port}", *load, *more)["generated_tokens"], 30)
                for url, more, rc, words in [
                        (f"https://localhost:{port}", [], 5, "not trusted for localhost: unable to get local issuer certificate"),
                        (f"https://localhost:{port}", ["--cacert", at("other.pem")], 5, "not trusted for localhost: unable to get local issuer"),
                        (f"https://127.0.0.1:{port}", ["--cacert", at("ca.pem")], 5, "not trusted for 127.0.0.1: IP address mismatch"),
                        (f"https://localhost:{port}", ["--cacert", at("none.pem")], 2, "none.pem"),
                        (f"http://localhost:{port}", [], 5, f"http://localhost:{port}"),
                        (f"https://localhost:{port}", ["--cacert", at("ca.pem"), "--insecure"], 2, "--cacert")]:
                    done = bench(url, *load, *more)
                    self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (rc, "", 1), done.stderr)
                    self.assertIn(words, done.stderr)


class Real(Base):
    def test_argent_serve(self):
        models = os.environ.get("ARGENT_MODELS")
        if not models:
            self.skipTest("ARGENT_MODELS is not set")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        with tempfile.TemporaryFile() as log:
            server = subprocess.Popen([BINARY, "serve", os.path.join(models, SMOL), "--port", str(port), "--parallel", "4"], stdout=log,
                                      stderr=log, stdin=subprocess.DEVNULL)
            try:
                for _ in range(300):
                    if server.poll() is not None:
                        log.seek(0)
                        self.fail(log.read().decode())
                    with socket.socket() as s:
                        if s.connect_ex(("127.0.0.1", port)) == 0:
                            break
                    time.sleep(0.1)
                url = f"http://127.0.0.1:{port}"
                got = self.json(url, "--clients", 4, "--requests", 8, "--prompt-tokens", 48, "--shared-prefix", 24, "--new-tokens", 8, timeout=120)
                self.assertEqual((got["succeeded"], got["generated_tokens"]), (8, 64), got)
                self.assertTrue(abs(got["prompt_tokens_least"] - 48) <= 1 and abs(got["prompt_tokens_most"] - 48) <= 1, got)
                chat = self.json(url, "--chat", "--requests", 2, "--prompt-tokens", 64, "--new-tokens", 4, timeout=120)
                self.assertEqual((chat["succeeded"], chat["generated_tokens"]), (2, 8), chat)
            finally:
                server.terminate()
                server.wait(20)


def main():
    global BINARY
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit("usage: bench_serve_test.py BINARY [TEST ...]")
    BINARY = os.path.abspath(sys.argv[1])
    names = sys.argv[2:] or ["Load", "Faults", "Tls", "Real"]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names, sys.modules[__name__])
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    failed = len({getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
