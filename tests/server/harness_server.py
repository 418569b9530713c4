"""A server under test: started on a free port, asked through plain sockets, its streams read strictly."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(os.environ.get("ARGENT_MODELS", Path.home() / ".cache/argent/models"))
SMOL = MODELS / "smollm2-135m-instruct-q4_1.gguf"
PROGRAM = None  # set by main()
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def tiny(folder, arch="llama", *options):
    """A model of random weights that takes token ids; its path."""
    path = Path(folder) / f"tiny-{arch}.gguf"
    subprocess.run([sys.executable, ROOT / "tools/make_tiny_gguf.py", arch, path, *options], check=True,
                   stdout=subprocess.DEVNULL)
    return path


class Answer:
    def __init__(self, status, headers, raw):
        self.status, self.headers, self.raw = status, headers, raw

    @property
    def json(self):
        return json.loads(self.raw.decode("utf-8"))  # strictly: what is not UTF-8 or not JSON fails the test

    @property
    def error(self):
        error = self.json["error"]
        assert isinstance(error["message"], str) and error["message"], self.raw
        return error["message"]


class Server:
    def __init__(self, model, *flags, ready=True):
        threads = () if "--threads" in flags else ("--threads", "2")
        command = [str(PROGRAM), "serve", str(model), "--port", "0", *threads, *map(str, flags)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.lines = []
        self.said = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        line = self.wait_line("serving at ", 60)
        self.port = int(re.search(r":(\d+)$", line).group(1))

    def _read(self):
        for line in self.process.stderr:
            with self.said:
                self.lines.append(line.decode("utf-8", "replace").rstrip())
                self.said.notify_all()
        with self.said:
            self.lines.append(None)
            self.said.notify_all()

    def wait_line(self, text, timeout):
        deadline = time.time() + timeout
        with self.said:
            while True:
                for line in self.lines:
                    if line and text in line:
                        return line
                if None in self.lines or time.time() > deadline:
                    raise AssertionError(f"no line with {text!r}: {self.lines}")
                self.said.wait(0.2)

    def ask(self, method, path, body=None, timeout=60, headers=None):
        raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, raw, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path, body, timeout=60):
        return self.ask("POST", path, body, timeout)

    def stream(self, path, body, **more):
        return Stream(self.port, path, {**body, "stream": True, **more})

    def metrics(self):
        out = {}
        for line in self.ask("GET", "/metrics").raw.decode().splitlines():
            found = re.fullmatch(r'argent_(\w+)\{model="[^"]*"\} (\S+)', line)
            if found:
                out[found.group(1)] = float(found.group(2))
        return out

    def wait_for(self, condition, timeout=10):
        """Waits until condition(metrics) holds; returns the seconds that took."""
        start = time.time()
        while True:
            seen = self.metrics()
            if condition(seen):
                return time.time() - start
            assert time.time() - start < timeout, f"never came: {seen}"
            time.sleep(0.005)

    def settle(self, timeout=10):
        """Nothing runs, nothing waits, no block of the KV cache is held."""
        return self.wait_for(
            lambda m: m["answers_running"] == 0 and m["requests_queued"] == 0 and m["kv_blocks_used"] == 0
            and m["requests_total"] == m["requests_finished_total"] + m["requests_cancelled_total"]
            + m["requests_failed_total"], timeout)

    def resident_bytes(self):
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) * 1024

    def stop(self, how=signal.SIGTERM, timeout=60):
        """Ends it; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            code = self.process.wait(timeout)
            self.reader.join()
            self.process.stderr.close()
            return code
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not end: {self.lines[-5:]}")


def connect(port, receive_buffer=None):
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(60)
    s.connect(("127.0.0.1", port))
    return s


def request_bytes(path, body, method="POST", headers=()):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
            f"Content-Length: {len(raw)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + raw


class EndOfAnswer(AssertionError):
    """The connection ended within an answer."""


class Stream:
    """One request whose answer comes in events. Every departure from the form of server-sent events, of chunked
    transfer or of JSON is an AssertionError."""

    def __init__(self, port, path, body, receive_buffer=None, read_size=65536):
        self.socket = connect(port, receive_buffer)
        self.read_size = read_size
        self.data = b""
        self.text = b""  # of the body
        self.status = None
        self.over = False
        self.socket.sendall(request_bytes(path, body))

    def _more(self):
        data = self.socket.recv(self.read_size)
        if not data:
            raise EndOfAnswer(f"the connection ended within an answer: {self.data[-200:]!r}")
        self.data += data

    def _line(self):
        while b"\r\n" not in self.data:
            self._more()
        line, self.data = self.data.split(b"\r\n", 1)
        return line

    def head(self):
        if self.status is None:
            self.status = int(self._line().split(b" ")[1])
            self.headers = {}
            while line := self._line():
                name, value = line.decode().split(":", 1)
                self.headers[name.lower()] = value.strip()
        return self.status

    def _chunk(self):
        size = int(self._line(), 16)
        while len(self.data) < size + 2:
            self._more()
        body, end, self.data = self.data[:size], self.data[size:size + 2], self.data[size + 2:]
        assert end == b"\r\n", end
        if size == 0:
            self.over = True
        return body

    def body(self):
        """Of an answer that is no stream."""
        self.head()
        if "content-length" not in self.headers:
            while not self.over:
                self.text += self._chunk()
            return Answer(self.status, self.headers, self.text)
        while len(self.data) < int(self.headers["content-length"]):
            self._more()
        return Answer(self.status, self.headers, self.data)

    def frame(self):
        """The next event's JSON, "[DONE]", or None at the end."""
        assert self.head() == 200, self.body().raw
        assert self.headers["content-type"].startswith("text/event-stream"), self.headers
        while b"\n\n" not in self.text:
            if self.over:
                assert self.text == b"", f"the stream ends within an event: {self.text!r}"
                return None
            self.text += self._chunk()
        event, self.text = self.text.split(b"\n\n", 1)
        lines = event.decode("utf-8").split("\n")
        assert len(lines) == 1 and lines[0].startswith("data: ") and "\r" not in lines[0], f"not one frame: {event!r}"
        data = lines[0][6:]
        return data if data == "[DONE]" else json.loads(data)

    def frames(self):
        """All of them; the last is [DONE], and nothing follows it."""
        out = []
        while (frame := self.frame()) is not None:
            out.append(frame)
        assert out and out[-1] == "[DONE]" and "[DONE]" not in out[:-1], out[-2:]
        self.close()
        return out[:-1]

    def close(self):
        self.socket.close()

    def kill(self):
        """As a client that dies: a reset, not a farewell."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()


def joined(frames, index=0):
    """The text of a stream's choice, and its finish_reason."""
    text, finish = "", None
    for frame in frames:
        for choice in frame["choices"]:
            if choice["index"] != index:
                continue
            assert finish is None, f"a chunk behind the last: {choice}"
            text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            finish = choice["finish_reason"]
    return text, finish


def text_of(answer, index=0):
    choice = answer.json["choices"][index]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def user(text):
    return [{"role": "user", "content": text}]


def together(calls, workers=64):
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda call: call(), calls))


class ServerTest(unittest.TestCase):
    """Tests that share one server, which must be idle and alive behind each of them."""

    flags = ()
    model = SMOL
    make_tiny = None  # (arch, options...) instead of a model

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = tiny(cls.folder.name, *cls.make_tiny) if cls.make_tiny else cls.model
        cls.server = Server(model, *cls.flags)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.folder.cleanup()
        assert code == 0, f"exit code {code}: {cls.server.lines[-5:]}"

    def setUp(self):
        self.start = time.time()

    def tearDown(self):
        if time.time() - self.start > 3:
            print(f"  ({self.id()}: {time.time() - self.start:.1f} s)", flush=True)
        self.assertIsNone(self.server.process.poll(), f"the server is dead: {self.server.lines[-5:]}")
        self.server.settle()

    def refused(self, path, body, status=400, has=""):
        answer = self.server.post(path, body)
        self.assertEqual(answer.status, status, f"{str(body)[:200]} -> {answer.raw[:300]!r}")
        self.assertIn(has, answer.error)
        return answer

    def good(self, path, body):
        answer = self.server.post(path, body)
        self.assertEqual(answer.status, 200, f"{str(body)[:200]} -> {answer.raw[:300]!r}")
        return answer

    def both(self, path, body, index=0):
        """A greedy request as one answer and as a stream: the same text; (text, finish_reason)."""
        body = {"temperature": 0, **body}
        whole = self.good(path, body)
        text, finish = joined(self.server.stream(path, body).frames(), index)
        self.assertEqual(text, text_of(whole, index))
        self.assertEqual(finish, whole.json["choices"][index]["finish_reason"])
        return text, finish


def main():
    global PROGRAM
    PROGRAM = Path(sys.argv[1]).resolve()
    if not SMOL.exists():
        sys.exit(f"{SMOL} is missing: tools/fetch_models.py fetches it")
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], warnings="ignore")
