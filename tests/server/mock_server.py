#!/usr/bin/env python3
"""A server that looks to the page like `argent serve` and says what a script says, for page_test.py.

    mock_server.py [PORT]

The last message of a request chooses the answer by its first word: see ANSWERS; anything else is repeated. GET /mock gives the
requests so far; POST /mock sets {"key": "...", "models": [...], "down": bool}.
"""
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "src/server/page"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
       "form-action 'none'; frame-ancestors 'none'")

HOSTILE = """<script>window.pwned = 1</script>
<img src=x onerror="window.pwned = 2"> ![x](https://evil.example/pixel.png) ![y](x" onerror="window.pwned=3)

[one](javascript:window.pwned=4) [two](JaVaScRiPt:window.pwned=5) [three](data:text/html,<script>window.pwned=6</script>)
[four](&#106;avascript:window.pwned=7) [five](java\nscript:window.pwned=8) <javascript:window.pwned=9> [six](vbscript:x)
[good](https://example.org/?a="onmouseover="window.pwned=10) https://example.org/<script>window.pwned=11</script>

<iframe src="https://evil.example/"></iframe><svg onload="window.pwned=12"></svg><style>body{display:none}</style>
<form action="https://evil.example/"><button>x</button></form><a href="javascript:window.pwned=13">y</a>

| <img src=x onerror="window.pwned=14"> | [x](javascript:window.pwned=15) |
|---|---|
| `<b>` | **<i onclick="window.pwned=16">z</i>** |

```html"><img src=x onerror="window.pwned=17">
<script>window.pwned = 18</script>
"""

SHOWCASE = """A hash table stores each entry in a **bucket** that is computed from its key, so that a look-up goes straight to the right place \
instead of searching.

```python
class HashTable:
    \"\"\"Separate chaining: a list of pairs in each bucket.\"\"\"

    def __init__(self, size=64):
        self.buckets = [[] for _ in range(size)]

    def set(self, key, value):
        bucket = self.buckets[hash(key) % len(self.buckets)]
        for i, (k, _) in enumerate(bucket):
            if k == key:
                bucket[i] = (key, value)  # known: replace
                return
        bucket.append((key, value))
```

What it costs, with *n* entries:

| Operation | Average | Worst |
|:--|--:|--:|
| `set`, `get` | O(1) | O(n) |
| grow to twice the size | O(n) | O(n) |

Two things keep it fast:

1. A hash that spreads keys evenly.
2. Growing before the buckets become long.
"""


def huge_table():
    return "| n | square | cube |\n|--:|--:|--:|\n" + "".join(f"| {n} | {n * n} | {n ** 3} |\n" for n in range(2000))


class State:
    def __init__(self):
        self.lock = threading.Lock()
        self.reset()

    def reset(self):
        self.key = ""
        self.down = False
        self.models = [{"id": "mock-1b-instruct", "state": "loaded", "progress": 1, "context_length": 4096}]
        self.requests = []
        self.closed = 0  # streams that the client left


def pieces(text, size=12):
    return [text[i:i + size] for i in range(0, len(text), size)]


def script(word, text, turn):
    """(reasoning, content pieces, seconds between pieces, how it ends) of an answer."""
    if word == "slow":
        return "", [f"word{i} " for i in range(400)], 0.03, "stop"
    if word == "long":
        return "", [f"Paragraph {i} of a long answer.\n\n" for i in range(150)], 0.01, "stop"
    if word == "think":
        return "First I *consider* the question. " * 8, pieces("The answer is **42**."), 0.02, "stop"
    if word == "hostile":
        return "<img src=x onerror='window.pwned=20'>", pieces(HOSTILE, 7), 0, "stop"
    if word == "table":
        return "", pieces(huge_table(), 400), 0, "stop"
    if word == "broken":
        return "", ["Half of an ans"], 0.02, "error"
    if word == "drop":
        return "", ["The line goes"], 0.02, "drop"
    if word == "fenced":
        return "", ["Look:\n\n```js\nconst a = `x", " y`; // note\n", "**not bold**"], 0.01, "length"
    if word == "which":
        return "", pieces("A **hash table**: looking up a name takes the same time however many there are."), 0, "stop"
    if word == "explain":
        thought = "The reader wants the idea and a small example. Chaining is the easiest to show."
        return thought, pieces(SHOWCASE, 16), 0, "stop"
    return "", pieces(f"Answer {turn} to: {text}"), 0.002, "stop"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state = State()

    def log_message(self, *_):
        pass

    def reply(self, status, value, kind="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-security-policy", CSP)
        self.send_header("x-content-type-options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status, message):
        self.reply(status, {"error": {"message": message, "type": "invalid_request_error", "code": status}})

    def refused(self):
        state = self.state
        if state.down:
            self.fail(503, "The server is shutting down.")
            return True
        if state.key and self.headers.get("authorization") != "Bearer " + state.key:
            self.fail(401, "A valid API key is needed.")
            return True
        return False

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/mock":
            return self.reply(200, {"requests": self.state.requests, "closed": self.state.closed})
        if path == "/v1/models":
            if not self.refused():
                data = [{"object": "model", "created": 0, "owned_by": "argent", **model} for model in self.state.models]
                self.reply(200, {"object": "list", "data": data})
            return None
        file = PAGE / (path.lstrip("/") or "index.html")
        if file.parent != PAGE or not file.is_file():
            return self.fail(404, f"There is no {path} here.")
        return self.reply(200, file.read_bytes(), TYPES[file.suffix])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        state = self.state
        if self.path == "/mock":
            state.reset()
            for name, value in body.items():
                setattr(state, name, value)
            return self.reply(200, {})
        if self.path != "/v1/chat/completions":
            return self.fail(404, "no such route")
        if self.refused():
            return None
        with state.lock:
            state.requests.append(body)
            turn = len(state.requests)
        try:
            self.stream(body, turn)
        except (BrokenPipeError, ConnectionResetError):
            state.closed += 1
            self.close_connection = True
        return None

    def stream(self, body, turn):
        text = body["messages"][-1]["content"]
        reasoning, content, pause, end = script(text.split()[0].lower() if text.split() else "", text, turn)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

        def send(value):
            self.wfile.write(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")
            self.wfile.flush()

        def delta(value, finish=None):
            send({"id": "c", "object": "chat.completion.chunk", "model": body.get("model"), "choices": [{"index": 0, "delta": value, "finish_reason": finish}]})

        time.sleep(0.03)
        delta({"role": "assistant", "content": None})
        for piece in pieces(reasoning):
            delta({"reasoning_content": piece})
            time.sleep(pause)
        for piece in content:
            delta({"content": piece})
            time.sleep(pause)
        if end == "error":
            return send({"error": {"message": "The device ran out of memory.", "type": "server_error", "code": 500}})
        if end == "drop":
            return None
        delta({}, end)
        prompt = sum(len(m["content"]) for m in body["messages"]) // 4 + 12
        cached = (prompt * 3 // 4) if len(body["messages"]) > 1 else 0
        n = len(pieces(reasoning)) + len(content)
        send({"object": "chat.completion.chunk", "choices": [], "usage": {
            "prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n, "prompt_tokens_details": {"cached_tokens": cached}},
            "timings": {"prompt_n": prompt - cached, "prompt_ms": 30.0, "cache_n": cached, "predicted_n": n, "predicted_ms": n * 23.6,
                        "predicted_per_second": 42.37, "prompt_per_second": 900.0}})
        return send(b"[DONE]")


def start(port=0):
    """Serves in a thread; returns the address."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/"


if __name__ == "__main__":
    print(start(int(sys.argv[1]) if len(sys.argv) > 1 else 8099), flush=True)
    threading.Event().wait()
