#!/usr/bin/env python3
"""Clients that die, crawl or crowd, and a server that is asked to stop.

    ARGENT_MODELS=FOLDER python faults_test.py BINARY [--long]
"""

import functools
import http.client
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import gguf
import harness_server as harness
import traffic
from harness_server import CHAT, EMBED, TEXT, Server, ServerTest, Stream, joined, text_of, tiny, together, user

LONG = "--long" in sys.argv
STEP = 1.0  # seconds within which a step on any machine ends


def ids(n, seed=0):
    return [1 + (i * 7 + seed * 13 + i * i * seed) % 300 for i in range(n)]


def greedy(n_prompt, which, max_tokens, **more):
    return {"prompt": ids(n_prompt, which), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0,
            **more}


def print_of(answer):
    """What tells two answers of a model without texts apart."""
    return [c["logprobs"]["token_logprobs"] for c in answer.json["choices"]]


class Disconnects(ServerTest):
    flags = ("--ctx", 2048, "--parallel", 2)

    def cancelled(self, request, when, others=0):
        """Runs `request` until `when` holds, kills its client, and waits for the slot."""
        before = self.server.metrics()["requests_cancelled_total"]
        stream = Stream(self.server.port, TEXT, request)
        when(stream)
        stream.kill()
        took = self.server.wait_for(lambda m: m["requests_cancelled_total"] == before + 1
                                    and m["answers_running"] == others and m["requests_queued"] == 0)
        self.assertLess(took, STEP)

    def running(self, n):
        return lambda _: self.server.wait_for(lambda m: m["answers_running"] == n)

    def test_in_decode(self):
        body = {"prompt": "Tell me", "max_tokens": 2000, "ignore_eos": True}
        two_chunks = lambda stream: (stream.frame(), stream.frame())
        self.cancelled({**body, "stream": True}, two_chunks)
        self.cancelled(body, lambda _: self.server.wait_for(lambda m: m["answers_running"] == 1))
        self.cancelled({**body, "n": 2, "stream": True}, two_chunks)

    def test_in_prefill(self):
        for stream in (True, False):
            before = self.server.metrics()["generated_tokens_total"]
            body = {"prompt": f"{stream} lighthouse " * 400, "max_tokens": 200, "ignore_eos": True, "stream": stream}
            self.cancelled(body, self.running(1))
            self.assertLess(self.server.metrics()["generated_tokens_total"], before + 200)

    def test_in_the_queue(self):
        """The others' texts stay what they are."""
        bodies = [{"prompt": p, "max_tokens": 60, "temperature": 0, "ignore_eos": True} for p in ("One", "Two")]
        alone = [text_of(self.good(TEXT, b)) for b in bodies]
        answers = []
        threads = [threading.Thread(target=lambda b=b: answers.append((b["prompt"], self.good(TEXT, b)))) for b in bodies]
        for t in threads:
            t.start()
        self.running(2)(None)
        prompts = self.server.metrics()["prompt_tokens_total"]
        for stream in (True, False):
            before = self.server.metrics()["requests_cancelled_total"]
            waiting = Stream(self.server.port, TEXT, {"prompt": "never read " * 20, "stream": stream})
            self.server.wait_for(lambda m: m["requests_total"] == m["requests_finished_total"]
                                 + m["requests_cancelled_total"] + 3)
            waiting.kill()
            self.server.wait_for(lambda m: m["requests_cancelled_total"] == before + 1)
        self.assertEqual(self.server.metrics()["prompt_tokens_total"], prompts, "a dead client's prompt was begun")
        for t in threads:
            t.join()
        self.assertEqual([text_of(a) for _, a in sorted(answers, key=lambda x: x[0])], alone)

    def test_half_closed_and_pipelined(self):
        before = self.server.metrics()["requests_cancelled_total"]
        stream = Stream(self.server.port, TEXT, {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True})
        stream.frame()
        stream.socket.shutdown(1)
        self.server.wait_for(lambda m: m["requests_cancelled_total"] == before + 1)
        stream.close()

    def test_stop_under_load(self):
        server = Server(harness.SMOL, "--ctx", 512, "--parallel", 2, "--drain", 30)
        body = {"prompt": "One", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        expected = text_of(server.post(TEXT, body))
        streams = [Stream(server.port, TEXT, {**body, "stream": stream}) for stream in (True, True, False, False)]
        server.wait_for(lambda m: m["answers_running"] == 2)
        server.process.send_signal(signal.SIGTERM)
        server.wait_line("shutting down", 5)
        time.sleep(0.1)
        with self.assertRaises(OSError):
            server.post(TEXT, body, timeout=5)
        for s in streams[:2]:
            self.assertEqual(joined(s.frames()), (expected, "length"))
        for s in streams[2:]:
            self.assertEqual(text_of(s.body()), expected)
        self.assertEqual(server.stop(), 0)

    def test_stop_beyond_patience(self):
        server = Server(harness.SMOL, "--ctx", 2048, "--drain", 1)
        stream = Stream(server.port, TEXT, {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True})
        stream.frame()
        start = time.time()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.time() - start, 10)
        stream.close()


    def test_second_signal_ends_the_wait(self):
        server = Server(harness.SMOL, "--ctx", 8192, "--drain", 60)
        stream = Stream(server.port, TEXT, {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True})
        stream.frame()
        server.process.send_signal(signal.SIGTERM)
        server.wait_line("shutting down", 5)
        start = time.time()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.time() - start, 5)
        stream.close()


class Pool(ServerTest):
    """Requests whose positions are more than the pool has."""

    make_tiny = ("llama",)
    flags = ("--ctx", 256, "--pool-tokens", 256, "--parallel", 6)

    def test_all_finish_as_if_alone(self):
        bodies = [greedy(100, i, 60) for i in range(6)]
        alone = [print_of(self.good(TEXT, b)) for b in bodies]
        before = self.server.metrics()["preemptions_total"]
        shared = together([functools.partial(self.good, TEXT, b) for b in bodies])
        for a, b in zip(alone, shared):
            self.assertEqual(a, print_of(b))
            self.assertEqual(b.json["usage"]["completion_tokens"], 60)
        self.assertGreater(self.server.metrics()["preemptions_total"], before)

    def test_a_bad_request_is_its_own(self):
        """What one request does wrong is not the others' error."""
        good = greedy(20, 1, 200)
        alone = print_of(self.good(TEXT, good))
        bad = [{"stop_token_ids": [2**31 - 1], "min_tokens": 2}, {"stop_token_ids": [320], "min_tokens": 2},
               {"logit_bias": {"320": 1}}, {"prompt": [320]}, {"prompt": ids(256)}, {"n": 129},
               {"logit_bias": {str(i): -100 for i in range(320)}}]
        calls = [functools.partial(self.good, TEXT, good) for _ in range(3)]
        calls += [functools.partial(self.server.post, TEXT, {**greedy(5, 2, 5), **b}) for b in bad * 3]
        for answer in together(calls)[:3]:
            self.assertEqual(print_of(answer), alone)


class Windows(Pool):
    """The same where layers forget."""

    make_tiny = ("gemma3",)


class NotFiniteModel(ServerTest):
    """A model in which one token's embedding is NaN. The pool is so small that the blocks it leaves NaNs in are the next
    requests'."""

    arch = ("llama",)
    flags = ("--ctx", 256, "--pool-tokens", 512, "--parallel", 6)
    BAD = 310  # no prompt of ids() has it

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = tiny(cls.folder.name, *cls.arch, "--untied", "--quant", "F32")
        (table,) = [t for t in gguf.GGUFReader(model).tensors if t.name == "token_embd.weight"]
        row = int(table.n_bytes) // 320
        with open(model, "r+b") as file:
            file.seek(int(table.data_offset) + cls.BAD * row)
            file.write(b"\xff" * row)
        cls.server = Server(model, *cls.flags)

    def fails(self, body):
        answer = self.server.post(TEXT, body)
        self.assertEqual(answer.status, 500, f"{str(body)[-200:]} -> {answer.raw[:300]!r}")
        self.assertEqual(answer.json["error"]["type"], "server_error")
        self.assertIn("not finite", answer.error)


class NotFinite(NotFiniteModel):
    """Who meets it fails, and nobody else notices."""

    def goods(self):
        """Requests that never draw it, with and without rules, log-probabilities and several answers."""
        never = {"logit_bias": {str(self.BAD): -100}}
        drawn = dict(temperature=1, top_p=0.9, presence_penalty=0.5, **never)
        return [greedy(100, 1, 40, **never), greedy(5, 2, 40, seed=4, n=3, **drawn), greedy(37, 3, 40, seed=5, **drawn),
                greedy(3, 4, 2, echo=True, **{**never, "logprobs": 3})]

    def bads(self):
        """It is the prompt, ends one, begins one, lies deep in one that others share, or is drawn: what the error says
        is all that comes, or all that follows a token."""
        within = ids(60, 1) + [self.BAD] + ids(100, 1)[60:]
        for prompt in ([self.BAD], ids(20, 1) + [self.BAD], [self.BAD] + ids(30, 1), within):
            for more in ({}, {"temperature": 0}, {"logprobs": 5}, {"n": 3, "top_k": 5}, {"logit_bias": {"3": 2}},
                         {"echo": True, "logprobs": 2, "max_tokens": 1}):
                yield {"prompt": prompt, "max_tokens": 20, **more}, 0
        for more in ({}, {"logprobs": 2}, {"temperature": 0}):
            yield {"prompt": ids(100, 1), "max_tokens": 20, "logit_bias": {str(self.BAD): 100}, **more}, 1

    def fails_streaming(self, body, n_tokens):
        stream = self.server.stream(TEXT, body)
        if stream.head() != 200:
            answer = stream.body()
            self.assertEqual(answer.status, 500, answer.raw)
            self.assertIn("not finite", answer.error)
            self.assertTrue(n_tokens == 0 or "logprobs" not in body, "the token was lost")
            return stream.close()
        frames = []
        while (frame := stream.frame()) is not None:
            frames.append(frame)
        stream.close()
        self.assertEqual([f for f in frames if f == "[DONE]"], frames[len(frames) - frames.count("[DONE]"):])
        frames = [f for f in frames if f != "[DONE]"]
        self.assertIn("not finite", frames[-1]["error"]["message"], str(body)[-200:])
        choices = [c for f in frames[:-1] for c in f["choices"]]
        self.assertEqual([c["finish_reason"] for c in choices], [None] * len(choices))
        if "logprobs" in body:
            self.assertEqual(len([t for c in choices for t in c["logprobs"]["tokens"]]), n_tokens)

    def test_fails_alone(self):
        goods = self.goods()
        alone = [print_of(self.good(TEXT, b)) for b in goods]
        failed = self.server.metrics()["requests_failed_total"]
        calls = []
        for i, (body, n_tokens) in enumerate(self.bads()):
            calls.append(functools.partial(self.fails, body))
            calls.append(functools.partial(self.good, TEXT, goods[i % len(goods)]))
            calls.append(functools.partial(self.fails_streaming, body, n_tokens))
        for i, answer in enumerate(together(calls)[1::3]):
            self.assertEqual(print_of(answer), alone[i % len(goods)], f"beside others, {goods[i % len(goods)]}")
        self.assertEqual(self.server.metrics()["requests_failed_total"] - failed, len(calls) // 3 * 2)
        for body, before in zip(goods, alone):
            self.assertEqual(print_of(self.good(TEXT, body)), before, f"behind others, {body}")

    def test_blocks_that_held_it(self):
        """All of the pool, then requests whose rows fill those blocks one by one."""
        goods = self.goods()
        alone = [print_of(self.good(TEXT, b)) for b in goods]
        for size in (255, 17, 100):
            filled = [[self.BAD, i] + ids(size - 2, i) for i in range(6)]
            together([functools.partial(self.fails, {"prompt": prompt, "max_tokens": 1}) for prompt in filled])
            answers = together([functools.partial(self.good, TEXT, {**b, "cache_prompt": False}) for b in goods])
            self.assertEqual([print_of(a) for a in answers], alone)

    def test_embeddings(self):
        good = {"input": ids(40, 1)}
        vector = self.good(EMBED, good).json["data"]
        for prompt in ([self.BAD], ids(40, 1) + [self.BAD], [self.BAD] + ids(40, 1)):
            self.refused(EMBED, {"input": prompt}, 500, has="not finite")
            self.assertEqual(self.good(EMBED, good).json["data"], vector)


    def test_what_failed_is_not_found_again(self):
        """Not even the rows before it: they were computed beside what can not be trusted."""
        for i, (route, body) in enumerate(((TEXT, {"max_tokens": 1}), (TEXT, {"max_tokens": 1, "echo": True, "logprobs": 1}),
                                           (EMBED, {}))):
            head = ids(64, 20 + i)
            bad = {"input" if route == EMBED else "prompt": head + [self.BAD], **body}
            self.refused(route, bad, 500, has="not finite")
            good = {"prompt": head, "max_tokens": 1, "logit_bias": {"3": 100}}
            first, again = (self.good(TEXT, good).json["usage"]["prompt_tokens_details"] for _ in range(2))
            self.assertEqual(first["cached_tokens"], 0)
            self.assertGreater(again["cached_tokens"], 0)


class NotFiniteForgotten(NotFiniteModel):
    """All layers forget it: what it left of a prompt's rows is still an error for who asks for those rows."""

    arch = ("gemma3", "--layers", "2")

    def test_rows_of_a_prompt(self):
        body = {"prompt": [self.BAD] + ids(99, 1), "max_tokens": 1, "temperature": 0, "logprobs": 2}
        plain = print_of(self.good(TEXT, body))
        self.fails({**body, "echo": True})
        self.assertEqual(print_of(self.good(TEXT, body)), plain)

class NotFiniteWindows(NotFinite):
    arch = ("gemma3",)


class NotFiniteQ8(NotFinite):
    flags = (*NotFinite.flags, "--cache-type", "q8_0")


class Crowd(ServerTest):
    make_tiny = ("llama",)
    flags = ("--ctx", 256, "--parallel", 8, "--max-queue", 2000)

    def test_random_life_leaves_nothing(self):
        rng = random.Random(7)
        n = 10_000 if LONG else 2000
        plans = []
        for i in range(n):
            body = greedy(1 + rng.randrange(200), rng.randrange(8), 1 + rng.randrange(12), temperature=1, seed=i)
            if rng.random() < 0.1:
                body["n"] = 3
            if rng.random() < 0.1:
                body["prompt"] = ids(255 + rng.randrange(3))
            if rng.random() < 0.05:
                body.update(rng.choice([{"n": 0}, {"prompt": []}, {"prompt": [400]}, {"stop": ""}]))
            plans.append((body, rng.random() < 0.5, rng.random() < 0.3 and rng.random() * 0.05))
        before = self.server.metrics()

        def live(plan):
            body, stream, dies = plan
            client = Stream(self.server.port, TEXT, {**body, "stream": stream})
            if dies is not False:
                time.sleep(dies)
                return client.kill() or "killed"
            status = client.head()
            if status != 200:
                self.assertEqual(status, 400, client.body().raw)
            elif stream:
                client.frames()
            else:
                client.body().json
            client.close()
            return status

        said = together([functools.partial(live, p) for p in plans], 32)
        self.server.settle(30)
        after = self.server.metrics()
        delta = {k: after[k] - before[k] for k in after}
        self.assertEqual(delta["requests_failed_total"], 0)
        self.assertGreaterEqual(delta["requests_finished_total"], said.count(200))
        self.assertLessEqual(delta["requests_total"], said.count(200) + said.count("killed"))
        self.assertGreater(delta["requests_cancelled_total"], 0)
        self.assertEqual(after["kv_blocks_used"], 0)

    def test_slow_readers_slow_nobody(self):
        """More of them than answers are computed at once, and each is full."""
        server = Server(tiny(self.folder.name, "llama"), "--ctx", 256, "--parallel", 2, "--device", "null")
        body = {**greedy(3, 1, 250, n=128), "stream": True}
        slow = [Stream(server.port, TEXT, body, receive_buffer=4096) for _ in range(4)]
        seen = [-1.0]

        def still(m):
            time.sleep(0.3)
            seen.append(m["generated_tokens_total"])
            return seen[-1] == seen[-2] and m["requests_queued"] == 0

        server.wait_for(still, 30)
        self.assertLess(seen[-1], 4 * 128 * 250, "nobody was slow")
        start = time.time()
        self.assertEqual(server.post(TEXT, greedy(5, 3, 20)).json["usage"]["completion_tokens"], 20)
        self.assertLess(time.time() - start, 2)
        lengths = [0] * 128  # what one of them gets once it reads is whole
        for frame in slow[3].frames():
            for choice in frame["choices"]:
                lengths[choice["index"]] += len((choice["logprobs"] or {"tokens": []})["tokens"])
        self.assertEqual(set(lengths), {250})
        for s in slow[:3]:
            s.kill()
        server.settle()
        self.assertEqual(server.stop(), 0)

    def test_a_thousand_that_wait(self):
        server = Server(harness.SMOL, "--ctx", 2048, "--parallel", 1)
        busy = Stream(server.port, TEXT, {"prompt": ids(200), "max_tokens": -1, "ignore_eos": True, "stream": True})
        busy.frame()
        before = server.resident_bytes()
        waiting = [Stream(server.port, TEXT, {"prompt": ids(200, i), "stream": True}) for i in range(1000)]
        server.wait_for(lambda m: m["requests_queued"] == 1000)
        self.assertLess(server.resident_bytes() - before, 50 << 20)
        for s in waiting:
            s.kill()
        server.wait_for(lambda m: m["requests_cancelled_total"] == 1000 and m["requests_queued"] == 0)
        busy.kill()
        server.settle()
        self.assertEqual(server.stop(), 0)

    def test_full_queue(self):
        server = Server(tiny(self.folder.name), "--ctx", 256, "--parallel", 1, "--max-queue", 2)
        busy = Stream(server.port, TEXT, greedy(3, 1, 240, n=128))
        server.wait_for(lambda m: m["answers_running"] == 1)
        others = [Stream(server.port, TEXT, greedy(3, i, 2)) for i in range(8)]
        server.wait_for(lambda m: m["requests_rejected_total"] == 6)
        busy.kill()
        answers = [s.body() for s in others]
        self.assertEqual(sorted(a.status for a in answers), [200] * 2 + [503] * 6)
        for a in answers:
            if a.status == 503:
                self.assertIn("waiting", a.error)
        server.settle()
        self.assertEqual(server.stop(), 0)


class OutOfMemory(ServerTest):
    """The memory of a server that runs is limited to a little more than it has: what then wants more gets its error, one
    line, and nobody else notices."""

    flags = ("--ctx", 1024, "--parallel", 8)
    FREE = 24 << 20
    WORDS = "word " * 200
    SCHEMA = {"type": "object", "properties": {f"key {i}": {"enum": [f"{j} of {i}" for j in range(60)]} for i in range(600)}}

    @classmethod
    def setUpClass(cls):
        cls.models = tempfile.TemporaryDirectory()
        cls.model = traffic.make_models(cls.models.name)  # quick, with a tokenizer
        cls.flags = (*cls.flags, "--models", f"{cls.models.name}/others", "--pin", traffic.CHAT_MODEL)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.models.cleanup()

    def limit(self, free=None):
        """So many bytes of data more than now; None: as many as there are."""
        pid = self.server.process.pid
        most = resource.RLIM_INFINITY
        if free is not None:
            most = free + int(re.search(r"VmData:\s+(\d+) kB", open(f"/proc/{pid}/status").read())[1]) * 1024
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))

    def tearDown(self):
        self.limit()
        super().tearDown()

    def greedy(self, which, **more):
        return {"prompt": f"{which} lighthouses", "max_tokens": 250, "temperature": 0, "ignore_eos": True, **more}

    def hungry(self):
        """What wants more than there is, at its different places: the rules, the body, its JSON, the prompt, the answers.
        The first wants least: later ones find what the heap kept of those before them."""
        return {
            "schema": (CHAT, {"messages": user("x"), "max_tokens": 5,
                              "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": self.SCHEMA}}}),
            "body": (TEXT, {"prompt": self.WORDS * 30000, "max_tokens": 1}),
            "values": (TEXT, {"prompt": [7] * 2_000_000, "max_tokens": 1}),
            "messages": (CHAT, {"messages": [*user("x" * 100)] * 60_000}),
            "answers": (TEXT, self.greedy(1, n=128, logprobs=20, max_tokens=200)),
            "Anthropic": ("/v1/messages", {"model": "", "max_tokens": 1, "messages": [*user("x" * 100)] * 60_000}),
            "Ollama": ("/api/chat", {"model": "", "messages": [*user("x" * 100)] * 60_000}),
        }

    def test_fails_alone(self):
        others = [self.greedy(i, stream=i > 1) for i in range(4)]
        alone = [text_of(self.good(TEXT, {**b, "stream": False})) for b in others]
        before = self.server.metrics()
        for name, (path, body) in self.hungry().items():
            with self.subTest(name):
                finished = self.server.metrics()["requests_finished_total"]
                clients = [Stream(self.server.port, TEXT, b) for b in others]
                # Where this program is held up some have ended by now.
                self.server.wait_for(lambda m: m["answers_running"] + m["requests_finished_total"] - finished == len(others), 60)
                self.limit(self.FREE)
                answer = self.server.post(path, body)
                self.limit()
                self.assertEqual(answer.status, 503, answer.raw[:300])
                error = answer.json["error"]
                message = error if isinstance(error, str) else error["message"]
                self.assertIn("memory", message)
                self.assertNotIn("\n", message)
                got = [joined(c.frames())[0] if b["stream"] else text_of(c.body()) for c, b in zip(clients, others)]
                self.assertEqual(got, alone)
                self.server.settle(60)
        self.assertEqual(self.server.metrics()["kv_blocks"], before["kv_blocks"])

    def test_a_stream_that_is_cut(self):
        """Its head has gone: it ends with an error, or the connection does, and is not taken for whole."""
        reader = Stream(self.server.port, TEXT, self.greedy(1, n=128, logprobs=20, max_tokens=200, stream=True), receive_buffer=4096)
        reader.frame()
        self.limit(0)
        time.sleep(1)
        self.limit()
        reader.kill()
        self.assertEqual(text_of(self.good(TEXT, self.greedy(2))), text_of(self.good(TEXT, self.greedy(2))))

    def test_no_room_for_another_model(self):
        self.limit(self.FREE)
        answer = self.server.post(TEXT, {"model": "tiny-qwen3", "prompt": [1], "max_tokens": 1})
        self.assertEqual(answer.status, 503, answer.raw)
        self.assertRegex(answer.error, r"needs \d.* MB \(weights .*\); .* MB are free")
        self.assertEqual(self.server.post("/models/load", {"model": "tiny-qwen3"}).status, 503)
        self.limit()
        self.good(TEXT, {"model": "tiny-qwen3", "prompt": [1], "max_tokens": 1})
        self.assertEqual(self.server.post("/models/unload", {"model": "tiny-qwen3"}).status, 200)

    def test_hardly_anything(self):
        """What is there is not enough for those who want little, either: an answer is what it should be, or an error."""
        body = self.greedy(1)
        alone = text_of(self.good(TEXT, body))
        hungry = self.hungry()
        del hungry["answers"]  # slow where the heap kept enough to grow into
        for path, hungry_body in hungry.values():
            self.limit(0)
            modest = [functools.partial(self.attempt, TEXT, body) for _ in range(4)]
            first, *others = together([functools.partial(self.attempt, path, hungry_body), *modest])
            self.limit()
            self.assertTrue(first is None or first.status in (200, 503), first and first.raw[:300])
            for answer in others:
                if answer is not None and answer.status != 503:
                    self.assertEqual((answer.status, text_of(answer)), (200, alone))
            self.server.settle(60)
            self.assertEqual(text_of(self.good(TEXT, body)), alone)

    def attempt(self, path, body):
        """The answer; None where not even an error found its way."""
        try:
            return self.server.post(path, body)
        except (OSError, http.client.HTTPException):
            return None


class TooLittleMemory(unittest.TestCase):
    def test_a_limit_from_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [harness.PROGRAM, "serve", tiny(folder), "--port", "0", "--ctx", "4096", "--pool-tokens", "4000000", "--parallel", "1024"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)))
            self.assertEqual((done.returncode, done.stderr.count("\n")), (6, 1), done.stderr)
            self.assertRegex(done.stderr, r"needs [\d.]+ MB \(weights .*, KV cache of .*\); [\d.]+ MB are free")


class SeveralModels(ServerTest):
    """More models than are loaded at once."""

    make_tiny = ("llama",)

    @classmethod
    def setUpClass(cls):
        cls.others = tempfile.TemporaryDirectory()
        tiny(cls.others.name, "qwen3")
        tiny(cls.others.name, "gemma3")
        with open(f"{cls.others.name}/broken.gguf", "wb") as file:
            file.write(b"GGUF")
        cls.flags = ("--ctx", 256, "--parallel", 4, "--max-models", 1, "--models", cls.others.name)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.others.cleanup()

    def states(self):
        return {m["id"]: m["state"] for m in self.server.ask("GET", "/v1/models").json["data"]}

    def test_models_give_way(self):
        names = ["tiny-llama", "tiny-qwen3", "tiny-gemma3"]
        bodies = [greedy(20, 1, 30, model=name) for name in names]
        alone = [print_of(self.good(TEXT, b)) for b in bodies]
        self.assertEqual(self.states()["tiny-gemma3"], "loaded")
        self.assertEqual(self.states()["tiny-llama"], "unloaded")
        order = [i % 3 for i in range(12)]
        random.Random(3).shuffle(order)
        for i, answer in zip(order, together([functools.partial(self.good, TEXT, bodies[i]) for i in order])):
            self.assertEqual(print_of(answer), alone[i])
            self.assertEqual(answer.json["model"], names[i])
        self.assertEqual(list(self.states().values()).count("loaded"), 1)

    def test_unloading_lets_answers_finish(self):
        body = {"model": "tiny-llama", **greedy(20, 2, 200)}
        alone = print_of(self.good(TEXT, body))
        stream = Stream(self.server.port, TEXT, {**body, "n": 16, "stream": True})
        stream.frame()
        self.assertEqual(self.server.post("/models/unload", {"model": "tiny-llama"}).status, 200)
        self.assertEqual(print_of(self.good(TEXT, body)), alone)
        self.assertEqual({joined(stream.frames(), i)[1] for i in range(1)}, {"length"})
        self.refused("/models/unload", {"model": "tiny-qwen3"}, has="not loaded")

    def test_a_broken_file_is_an_error(self):
        answer = self.server.post(TEXT, {"model": "broken", "prompt": [1]})
        self.assertIn(answer.status, (400, 500))
        self.assertIn("broken", answer.error)
        self.assertEqual(self.states()["broken"], "failed")
        self.good(TEXT, greedy(3, 1, 2))
        self.refused(TEXT, {"model": "../../etc/passwd", "prompt": [1]}, 404)
        self.refused("/models/load", {"model": "nobody"}, 404)
        self.refused("/models/load", {})


if __name__ == "__main__":
    sys.argv = [a for a in sys.argv if a != "--long"]
    sys.exit(harness.main())
