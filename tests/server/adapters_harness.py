"""What the tests of the interfaces beside OpenAI's share: a server, requests, chat templates."""
import http.client
import json
import subprocess
import tempfile
import time
import unittest

import anthropic

BINARY = None
MODEL = "smollm2-135m-instruct-q4_1"
# The model's own turns with a list of tools, in the form whose calls are <tool_call> blocks.
TOOLS_TEMPLATE = """{% if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'tool' %}{{ message.name }}: {% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
THINK_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% else %}<think>

</think>

{% endif %}{% endif %}"""
WEATHER = {"name": "get_weather", "description": "The weather of a city",
           "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                            "required": ["city"], "additionalProperties": False}}
OLLAMA_WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city",
                                                   "parameters": WEATHER["input_schema"]}}


class Server:
    def __init__(self, template=None, model=MODEL):
        self.log = tempfile.TemporaryFile("w+")
        command = [BINARY, "serve", model, "--port", "0", "--ctx", "1024", "--parallel", "4", "--temp", "0"]
        if template:
            self.template = tempfile.NamedTemporaryFile("w", suffix=".jinja")
            self.template.write(template)
            self.template.flush()
            command += ["--chat-template", self.template.name]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL)
        self.port = None
        deadline = time.time() + 60
        while self.port is None:
            self.log.seek(0)
            for line in self.log.read().splitlines():
                if "serving at http://127.0.0.1:" in line:
                    self.port = int(line.rsplit(":", 1)[1])
            if self.port is None and (self.process.poll() is not None or time.time() > deadline):
                self.log.seek(0)
                raise AssertionError("no server: " + self.log.read())
            time.sleep(0.05)
        self.client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{self.port}", api_key="x", max_retries=0)

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.client.close()
        self.log.close()

    def raw(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, answer.getheader("content-type"), text.decode("utf-8")  # strict: never broken UTF-8

    def post(self, path, body, status=200):
        seen, _, text = self.raw("POST", path, body)
        assert seen == status, (seen, text)
        return json.loads(text)

    def get(self, path):
        status, _, text = self.raw("GET", path)
        assert status == 200, (status, text)
        return json.loads(text)

    def lines(self, path, body):
        status, kind, text = self.raw("POST", path, body)
        assert (status, kind) == (200, "application/x-ndjson"), (status, kind, text)
        return [json.loads(line) for line in text.splitlines()]

    def events(self, path, body):
        """[(event or None, data)], one frame each."""
        status, kind, text = self.raw("POST", path, body)
        assert status == 200 and kind.startswith("text/event-stream"), (status, kind, text)
        out = []
        assert text.endswith("\n\n")
        for frame in text[:-2].split("\n\n"):
            fields = dict(line.split(": ", 1) for line in frame.split("\n"))
            assert set(fields) <= {"event", "data"} and len(frame.split("\n")) == len(fields), frame
            out.append((fields.get("event"), json.loads(fields["data"])))
        return out


class Case(unittest.TestCase):
    template = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.template)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def refuses(self, path, body, words, status=400):
        answer = self.server.post(path, body, status)
        error = answer["error"]
        message = error if isinstance(error, str) else error["message"]
        self.assertIn(words, message)
        return answer


HELLO = [{"role": "user", "content": "Say hello."}]
