"""Mixed traffic on one server: every interface, and clients of every temper. Tests of long life and of sanitizers share it."""

import http.client
import json
import os
import random
import re
import sys
import threading
import time
import traceback
from pathlib import Path

import gguf
import harness_server as harness
from harness_server import CHAT, EMBED, TEXT, Answer, EndOfAnswer, Server, Stream, connect, joined, request_bytes
from serving import TEMPLATE, events

sys.path.insert(0, str(harness.ROOT / "tools"))
import make_tiny_gguf  # noqa: E402

CHAT_MODEL = "tiny-chat"
OTHERS = ("tiny-qwen3", "tiny-gemma3")  # take token ids only
CONTEXT = 512
WORDS = "the sea a light house keeper writes down every ship that passes in fog and rain while the lamp turns".split()
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2, 3]}},
           "required": ["city", "days"], "additionalProperties": False}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "tall": {"type": "boolean"},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "tall", "age"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": WEATHER}}]


def make_models(folder):
    """A chat model that is tiny but for its vocabulary, two that take ids, one that is broken; the first's path."""
    fields = gguf.GGUFReader(harness.SMOL).fields
    keys = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    keys["tokenizer.ggml.token_type:i32"] = keys.pop("tokenizer.ggml.token_type")
    path = Path(folder) / f"{CHAT_MODEL}.gguf"
    size = dict(n_vocab=len(keys["tokenizer.ggml.tokens"]), n_embd=64, n_ff=128, tied=True)
    make_tiny_gguf.write(path, "llama", keys=keys, shape=size)
    others = Path(folder) / "others"
    others.mkdir()
    for name in OTHERS:
        harness.tiny(others, name.removeprefix("tiny-"))
    (others / "broken.gguf").write_bytes(b"GGUF")
    return path


def serve(folder, *flags):
    """The server that Traffic is for: a KV cache that is short, room for two models."""
    path = make_models(folder)
    template = Path(folder) / "template.jinja"
    template.write_text(TEMPLATE)
    return Server(path, "--ctx", CONTEXT, "--parallel", 6, "--pool-tokens", CONTEXT, "--kv-host-bytes", "8MiB", "--models", Path(folder) / "others",
                  "--max-models", 2, "--pin", CHAT_MODEL, "--chat-template", template, *flags)


class Clock:
    """Time that passes while this process runs: on a machine that stops all of its processes at times, timeouts pass too."""

    TICK, LATE = 0.2, 3.0

    def __init__(self):
        self.began, self.stopped = time.monotonic(), 0.0
        threading.Thread(target=self.tick, daemon=True).start()

    def tick(self):
        while True:
            before = time.monotonic()
            time.sleep(self.TICK)
            late = time.monotonic() - before - self.TICK
            if late > self.LATE:
                self.stopped += late

    def now(self):
        return time.monotonic() - self.began - self.stopped


class Pace:
    """Keeps the server's and this process's time on CPUs below a share of one."""

    def __init__(self, pid, share, clock):
        self.pid, self.share, self.clock = pid, share, clock
        self.began, self.before = clock.now(), self.used()

    def used(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()

    def mean(self):
        return (self.used() - self.before) / (self.clock.now() - self.began)

    def wait(self):
        while self.share and self.used() - self.before > self.share * (self.clock.now() - self.began):
            time.sleep(0.05)


class Traffic:
    """Clients that go on until stop(). Their requests' answers are checked; an answer that is asked for again has to be
    what it was the first time, when it was asked for alone."""

    # What a client does next, and how often beside the others.
    KINDS = {"ask_known": 40, "ask_known_stream": 20, "ask_any": 20, "ask_other_model": 10, "fresh_schema": 6, "die": 20,
             "read_slowly": 4, "send_nonsense": 15, "send_broken_http": 10, "look": 5, "load_and_unload": 2}

    def __init__(self, server, clients=6, share=0.3, seed=1):
        self.server, self.port = server, server.port
        self.seed = seed
        self.lock = threading.Condition()
        self.counts = dict.fromkeys(self.KINDS, 0)
        self.finished = self.doubtful = 0  # requests to the chat model: answered whole; begun and left
        self.busy, self.open, self.over = 0, False, False
        self.errors = []
        self.known = {name: self.read(path, self.ask("POST", path, body)) for name, (path, body) in KNOWN.items()}
        self.known_other = {m: self.answer_of(m) for m in OTHERS}
        self.clock = Clock()
        self.pace = Pace(server.process.pid, share, self.clock)
        self.threads = [threading.Thread(target=self.client, args=(random.Random(f"{seed} {i}"),)) for i in range(clients)]
        for t in self.threads:
            t.start()

    # ---- Clients

    def client(self, rng):
        names, weights = list(self.KINDS), list(self.KINDS.values())
        while True:
            with self.lock:
                self.lock.wait_for(lambda: self.open or self.over)
                if self.over:
                    return
                self.busy += 1
            (name,) = rng.choices(names, weights)
            try:
                self.pace.wait()
                stopped = self.clock.stopped
                getattr(self, name)(rng)
            except Exception as error:
                time.sleep(2 * Clock.TICK)
                with self.lock:
                    if self.clock.stopped > stopped and isinstance(error, (OSError, http.client.HTTPException, EndOfAnswer)):
                        self.doubtful += 4  # a timeout, of nobody's making
                    else:
                        self.errors.append(f"{name}: {traceback.format_exc()}")
                        self.over = True
            with self.lock:
                self.counts[name] += 1
                self.busy -= 1
                self.lock.notify_all()

    def resume(self):
        with self.lock:
            self.open = True
            self.lock.notify_all()

    def pause(self):
        """Returns when no client waits for anything."""
        with self.lock:
            self.open = False
            assert self.lock.wait_for(lambda: self.busy == 0, 1200), "a client waits for ever"

    def stop(self):
        self.pause()
        with self.lock:
            self.over = True
            self.lock.notify_all()
        for t in self.threads:
            t.join()

    # ---- Requests

    def ask(self, method, path, body=None, finished=1, connection=None):
        """The answer, which has to be a 200; `finished`: so many requests of the chat model that is."""
        answer = self.any_answer(method, path, body, connection)
        assert answer.status == 200, (path, str(body)[:300], answer.raw[:500])
        with self.lock:
            self.finished += finished * (path in REQUESTS)
        return answer

    def any_answer(self, method, path, body=None, connection=None):
        raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        mine = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        mine.request(method, path, raw, {"Content-Type": "application/json"})
        response = mine.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        if not connection:
            mine.close()
        return answer

    @staticmethod
    def read(path, answer):
        """What of an answer is the same each time."""
        return READ[path](answer.json)

    def ask_known(self, rng):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        for _ in range(rng.randrange(1, 4)):
            name = rng.choice(list(KNOWN))
            path, body = KNOWN[name]
            seen = self.read(path, self.ask("POST", path, body, connection=connection))
            assert seen == self.known[name], f"{name} was {self.known[name]}, is {seen}"
        connection.close()

    def ask_known_stream(self, rng):
        name = rng.choice([n for n, (path, _) in KNOWN.items() if path in STREAM])
        path, body = KNOWN[name]
        seen = STREAM[path](self.ask("POST", path, {**body, "stream": True}).raw)
        wanted = TEXT_OF[path](self.known[name])
        assert seen == wanted, f"{name}: {wanted!r} came as a stream of {seen!r}"

    def words(self, rng, most):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, most)))

    def ask_any(self, rng):
        n, most = rng.randrange(1, 4), rng.randrange(1, 40)
        path, body = rng.choice([
            (TEXT, {"prompt": self.words(rng, 300), "n": n, "max_tokens": most, "logprobs": rng.randrange(6)}),
            (TEXT, {"prompt": [self.words(rng, 50)] * n, "max_tokens": most, "stop": [" sea"], "presence_penalty": 1}),
            (CHAT, {"messages": user(self.words(rng, 200)), "n": n, "max_tokens": most, "seed": rng.randrange(99)}),
            (CHAT, {"messages": user(self.words(rng, 100)), "max_tokens": most, "priority": n, "logit_bias": {"9": 5}}),
            (EMBED, {"input": [self.words(rng, 100)] * n}),
        ])
        many = n if path == EMBED or isinstance(body.get("prompt"), list) else 1
        self.ask("POST", path, body, many)

    def answer_of(self, model):
        body = {"model": model, "prompt": [3, 5, 7, 11] * 20, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "logprobs": 0}
        return self.ask("POST", TEXT, body, 0).json["choices"]

    def ask_other_model(self, rng):
        model = rng.choice(OTHERS)
        assert self.answer_of(model) == self.known_other[model], f"{model} answers otherwise"

    def load_and_unload(self, rng):
        model = rng.choice(OTHERS)
        if rng.random() < 0.5:
            self.ask("POST", "/models/load", {"model": model})
        self.unload(model)
        assert self.any_answer("POST", "/models/load", {"model": "broken"}).status in (400, 500)

    def unload(self, model):
        answer = self.any_answer("POST", "/models/unload", {"model": model})
        assert answer.status == 200 or "not loaded" in answer.error, answer.raw

    def fresh_schema(self, rng):
        digits = f"{rng.randrange(10**6)}"
        answer = self.ask("POST", TEXT, {"prompt": "n", "guided_regex": f"no[ ]{digits}", "max_tokens": 20})
        assert answer.json["choices"][0]["text"] == f"no {digits}", answer.raw

    def die(self, rng):
        """A client that goes at any time, with a reset or without."""
        body = {"prompt": self.words(rng, 400), "max_tokens": rng.randrange(20, 400), "ignore_eos": True, "n": rng.randrange(1, 5)}
        path, body = rng.choice([(TEXT, body), (CHAT, {**body, "messages": user(body["prompt"])}), (EMBED, {"input": body["prompt"]}),
                                 (CHAT, {"messages": user("x"), "tools": TOOLS, "tool_choice": "required"}),
                                 ("/v1/messages", {"messages": user(body["prompt"]), "max_tokens": 300, "model": CHAT_MODEL}),
                                 ("/api/chat", {"messages": user(body["prompt"]), "model": CHAT_MODEL})])
        if path == CHAT:
            body.pop("prompt", None)
        with self.lock:
            self.doubtful += 1
        stream = {"stream": rng.random() < 0.6} if path != EMBED else {}
        client = Stream(self.port, path, {**body, **stream})
        time.sleep(rng.random() ** 3 * 0.4)
        client.kill() if rng.random() < 0.5 else client.close()

    def read_slowly(self, rng):
        body = {"prompt": self.words(rng, 20), "max_tokens": 60, "ignore_eos": True, "n": 12, "logprobs": 20, "stream": True}
        client = Stream(self.port, TEXT, body, receive_buffer=4096, read_size=32768)
        leaves = rng.random() < 0.5
        with self.lock:
            self.doubtful += leaves
        frames = 0
        while client.frame() is not None:
            frames += 1
            if frames % 100 == 0:
                time.sleep(0.05)
            if leaves and frames > 300:
                return client.kill()
        client.close()
        with self.lock:
            self.finished += not leaves

    def send_nonsense(self, rng):
        path, body, status = rng.choice(NONSENSE)
        answer = self.any_answer("POST", path, body)
        assert answer.status == status, (path, str(body)[:300], answer.status, answer.raw[:500])
        error = answer.json["error"]
        assert (error if isinstance(error, str) else error["message"]), answer.raw

    def send_broken_http(self, rng):
        whole = request_bytes(TEXT, {"prompt": "x", "max_tokens": 1, "model": "nobody"})
        data = rng.choice([whole[: rng.randrange(len(whole))], rng.randbytes(rng.randrange(1, 2000)), b"GET / HTTP/1.1\r\n\r\n", b"",
                           b"POST / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40000, whole * 5,
                           whole.replace(b"Content-Length: ", b"Content-Length: 9"),
                           request_bytes(TEXT, b"", headers=["Transfer-Encoding: chunked"])])
        s = connect(self.port)
        try:
            s.sendall(data)
            time.sleep(rng.random() * 0.1)
            s.setblocking(False)
            s.recv(65536)
        except (ConnectionError, BlockingIOError):
            pass
        s.close()

    def look(self, rng):
        for path in ("/metrics", "/health", "/v1/models", "/openapi.json", "/", "/props", "/slots", "/api/tags", "/api/ps"):
            self.ask("GET", path)

    # ---- Between the clients' turns

    def totals(self):
        """The metrics of the chat model."""
        out = {}
        for line in self.any_answer("GET", "/metrics").raw.decode().splitlines():
            if found := re.fullmatch(rf'argent_(\w+)\{{model="{CHAT_MODEL}"\}} (\S+)', line):
                out[found[1]] = float(found[2])
        return out

    def check_rest(self):
        """Nothing runs and nothing is held; what was counted adds up, here and there."""
        for model in OTHERS:
            self.unload(model)
        deadline = time.monotonic() + 30
        while True:
            m = self.totals()
            ended = m["requests_finished_total"] + m["requests_cancelled_total"]
            rest = m["answers_running"] == m["requests_queued"] == m["kv_blocks_used"] == 0 and m["requests_total"] == ended
            if rest or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        assert rest, f"something is left: {m}"
        assert m["requests_failed_total"] == m["requests_rejected_total"] == 0, m
        assert self.finished <= m["requests_finished_total"], (self.finished, m)
        assert m["requests_total"] <= self.finished + self.doubtful, (self.finished, self.doubtful, m)
        assert m["kv_blocks_cached"] <= m["kv_blocks"], m
        return m


def user(text):
    return [{"role": "user", "content": text}]


def chat_choices(answer):
    return [(c["finish_reason"], c["message"].get("content"), c["message"].get("reasoning_content"),
             [call["function"] for call in c["message"].get("tool_calls") or []]) for c in answer["choices"]]


def chat_stream(raw):
    frames = [json.loads(data) for _, data in events(raw) if data != "[DONE]"]
    return joined(frames)[0]


def message_stream(raw):
    return "".join(json.loads(data)["delta"].get("text", "") for name, data in events(raw) if name == "content_block_delta")


def response_stream(raw):
    return "".join(json.loads(data)["delta"] for name, data in events(raw) if name == "response.output_text.delta")


def lines_stream(raw):
    lines = [json.loads(line) for line in raw.decode().splitlines()]
    assert lines[-1]["done"], lines[-1]
    return "".join(line["message"]["content"] if "message" in line else line["response"] for line in lines)


def completion_stream(raw):
    return "".join(json.loads(data)["content"] for _, data in events(raw) if data != "[DONE]")


GREEDY = {"temperature": 0, "max_tokens": 24}
NAMED = {"model": CHAT_MODEL}
LONG = " ".join(WORDS * 12)
OLLAMA = {**NAMED, "options": {"temperature": 0, "num_predict": 24}, "stream": False}

KNOWN = {  # requests whose answers are always the same
    "chat": (CHAT, {"messages": user("Say something."), **GREEDY}),
    "long chat": (CHAT, {"messages": [{"role": "system", "content": LONG}, *user("And then?")], "seed": 5, "max_tokens": 40}),
    "thought": (CHAT, {"messages": user("Think."), "chat_template_kwargs": {"enable_thinking": True}, "thinking_budget": 8, **GREEDY}),
    "tool": (CHAT, {"messages": user("Weather?"), "tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": 80}),
    "schema": (CHAT, {"messages": user("A person"), "response_format": {"type": "json_schema", "json_schema": {
        "name": "person", "schema": PERSON}}, "temperature": 0, "max_tokens": 80}),
    "text": (TEXT, {"prompt": LONG + " ship", **GREEDY}),
    "answers": (TEXT, {"prompt": LONG, "n": 3, "logprobs": 5, "seed": 3, "temperature": 1.5, "max_tokens": 24}),
    "echo": (TEXT, {"prompt": LONG, "echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 2}),
    "regex": (TEXT, {"prompt": "A date", "guided_regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}", **GREEDY}),
    "grammar": (TEXT, {"prompt": "Yes?", "grammar": 'root ::= (" yes" | " no")+ "."', **GREEDY}),
    "choice": (TEXT, {"prompt": "The sky is", "guided_choice": [" blue", " green"], **GREEDY}),
    "vectors": (EMBED, {"input": "the keeper of the light"}),
    "message": ("/v1/messages", {**NAMED, "messages": user("Say something."), **GREEDY}),
    "message tool": ("/v1/messages", {**NAMED, "messages": user("Weather?"), "temperature": 0, "max_tokens": 80, "tool_choice": {"type": "any"},
                                      "tools": [{"name": "weather", "input_schema": WEATHER}]}),
    "response": ("/v1/responses", {"input": "Say something.", "temperature": 0, "max_output_tokens": 24}),
    "ollama chat": ("/api/chat", {**OLLAMA, "messages": user("Say something.")}),
    "ollama text": ("/api/generate", {**OLLAMA, "prompt": "Say something."}),
    "ollama vectors": ("/api/embed", {**NAMED, "input": "the keeper of the light"}),
    "completion": ("/completion", {"prompt": LONG, "temperature": 0, "n_predict": 24}),
    "tokens": ("/tokenize", {"content": LONG}),
    "count": ("/v1/messages/count_tokens", {**NAMED, "messages": user(LONG)}),
    "template": ("/apply-template", {"messages": user(LONG)}),
}
READ = {
    CHAT: chat_choices,
    TEXT: lambda a: a["choices"],
    EMBED: lambda a: a["data"],
    "/v1/messages": lambda a: [{k: v for k, v in block.items() if k != "id"} for block in a["content"]],
    "/v1/responses": lambda a: [item["content"][0]["text"] for item in a["output"] if item["type"] == "message"],
    "/api/chat": lambda a: a["message"],
    "/api/generate": lambda a: a["response"],
    "/api/embed": lambda a: a["embeddings"],
    "/completion": lambda a: a["content"],
    "/tokenize": lambda a: a,
    "/v1/messages/count_tokens": lambda a: a,
    "/apply-template": lambda a: a,
}
TEXT_OF = {  # of what READ gives
    CHAT: lambda known: known[0][1] or "",
    TEXT: lambda known: known[0]["text"],
    "/v1/messages": lambda known: "".join(block.get("text", "") for block in known),
    "/v1/responses": "".join,
    "/api/chat": lambda known: known["content"],
    "/api/generate": str,
    "/completion": str,
}
STREAM = {  # the text of a stream's bytes
    CHAT: chat_stream,
    TEXT: chat_stream,
    "/v1/messages": message_stream,
    "/v1/responses": response_stream,
    "/api/chat": lines_stream,
    "/api/generate": lines_stream,
    "/completion": completion_stream,
}
REQUESTS = {*STREAM, EMBED, "/api/embed"}  # what a model computes
NONSENSE = [
    (TEXT, b"{", 400), (TEXT, b"\xff\xfe", 400), (CHAT, b"[" * 300, 400), (TEXT, {"prompt": "x", "wrong": 1}, 400),
    (TEXT, {"prompt": "x", "n": 129}, 400), (TEXT, {"prompt": [10**9]}, 400), (TEXT, {"prompt": "word " * 2000}, 400),
    (CHAT, {"messages": []}, 400), (CHAT, {"messages": user("x"), "temperature": "hot"}, 400),
    (CHAT, {"messages": user("x"), "guided_regex": "("}, 400), (TEXT, {"prompt": "x", "grammar": "root ::= other"}, 400),
    (CHAT, {"messages": user("x"), "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}}, 400),
    ("/v1/messages", {**NAMED, "messages": user("x")}, 400), ("/api/chat", {"messages": user("x")}, 400), ("/api/pull", {"model": "x"}, 501),
    (TEXT, {"prompt": "x", "model": "nobody"}, 404), (TEXT, {"prompt": [1], "model": "broken"}, 400), ("/nowhere", {}, 404),
    ("/health", {}, 405), (EMBED, {"input": []}, 400), (TEXT, {"prompt": "x", "max_tokens": -5}, 400),
]
