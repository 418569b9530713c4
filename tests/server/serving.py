"""What tests of the HTTP interfaces share: a server of one's own, plain requests, a strict reader of server-sent events."""
import json
import os
import re
import socket
import subprocess
import threading

SMOL = "smollm2-135m-instruct-q4_1.gguf"

# ChatML with tools in Hermes' form, and a thought that is open where the request wants one.
TEMPLATE = """{%- if tools %}<|im_start|>system
Tools: <tools>{{ tools | tojson }}</tools> Answer with <tool_call>{"name": "", "arguments": {}}</tool_call>.<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content.split('</think>')[-1] }}{% if m.tool_calls %}{% for c in m.tool_calls %}
<tool_call>
{{ c.function | tojson }}
</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}{% endif %}"""


def model(name=SMOL):
    return os.path.join(os.environ["ARGENT_MODELS"], name)


class Server:
    """argent serve on a free port. Its log is in .log."""

    def __init__(self, binary, *args):
        self.log = []
        self.process = subprocess.Popen([binary, "serve", *args, "--port", "0"], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"serving at (http://\S+:(\d+))", line)
            if found:
                self.url, self.port = found[1], int(found[2])
                break
        else:
            raise RuntimeError("the server ended: " + "".join(self.log))
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=60)

    def raw(self, method, path, body=None, piece=None):
        """The status and the bytes of an answer, which is read `piece` bytes at a time."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as s:
            s.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
            seen = b""
            while True:
                more = s.recv(piece or 65536)
                if not more:
                    break
                seen += more
        head, _, rest = seen.partition(b"\r\n\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
        if headers.get("transfer-encoding") == "chunked":
            rest = unchunked(rest)
        return int(head.split()[1]), headers, rest

    def post(self, path, **body):
        """The JSON of an answer; its status is in "status" where that is no 200."""
        status, headers, data = self.raw("POST", path, body)
        assert headers["content-type"].startswith("application/json"), headers
        answer = json.loads(data.decode("utf-8"))  # strict
        return answer if status == 200 else {"status": status, **answer}

    def stream(self, path, piece=None, **body):
        status, headers, data = self.raw("POST", path, dict(body, stream=True), piece)
        assert status == 200, (status, data)
        assert headers["content-type"].startswith("text/event-stream"), headers
        return list(events(data))


def unchunked(data):
    out = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            assert data == b"\r\n", data
            return out
        out += data[:n]
        assert data[n:n + 2] == b"\r\n"
        data = data[n + 2:]


def events(data):
    """(name, data) of each event; anything but complete "event:" and "data:" lines is an error."""
    text = data.decode("utf-8").replace("\r\n", "\n")
    assert text.endswith("\n\n"), text[-80:]
    for block in text[:-2].split("\n\n"):
        name = None
        lines = block.split("\n")
        if lines[0].startswith("event: "):
            name = lines.pop(0)[7:]
        assert len(lines) == 1 and lines[0].startswith("data: "), block
        yield name, lines[0][6:]
