#!/usr/bin/env python3
"""Requests that are empty, too long, too deep or malformed: one clear error each, and the server goes on.

    ARGENT_MODELS=FOLDER python cases_limits_test.py BINARY
"""

import json
import sys
import time

import harness_server as harness
from harness_server import CHAT, EMBED, TEXT, Answer, ServerTest, Stream, connect, joined, request_bytes, text_of, user


def nested(depth, inside="1"):
    return "[" * depth + inside + "]" * depth


class Input(ServerTest):
    flags = ("--ctx", 512, "--parallel", 4)

    def raw(self, data, wait=20):
        """What comes back for bytes on a connection."""
        s = connect(self.server.port)
        s.settimeout(wait)
        out = b""
        try:
            s.sendall(data)
            while part := s.recv(65536):
                out += part
                if b"\r\n\r\n" in out and b"Connection: close" not in out and b"connection: close" not in out:
                    break
        except (ConnectionError, TimeoutError):
            pass
        s.close()
        return out

    # ---- Empty, and ids that are none

    def test_empty_prompts(self):
        for prompt in ([], [[]], ["", []], [[], [1]], None, {}, True, 5, [None], [{}]):
            self.refused(TEXT, {"prompt": prompt}, has="prompt")
        self.refused(TEXT, {"prompt": ""}, has="no tokens")  # this vocabulary begins a text with no token
        self.refused(TEXT, {"prompt": ["a", ""]}, has="no tokens")
        self.refused(CHAT, {"messages": []}, has="messages")
        for messages in (None, {}, "hi", [1], [[]], [{}], [{"role": 1}], [{"role": "user", "content": 5}],
                         [{"role": "wizard", "content": "x"}], [{"content": "x"}]):
            self.refused(CHAT, {"messages": messages}, has="messages")
        self.good(CHAT, {"messages": user(""), "max_tokens": 2})
        self.good(CHAT, {"messages": [{"role": "user", "content": []}], "max_tokens": 2})
        for value in ("", [], [""], [[]], None, 5, [-1], [10**9]):
            self.refused(EMBED, {"input": value}, has="input")
        self.good(TEXT, {"prompt": "still here", "max_tokens": 1})

    def test_ids(self):
        for ids in ([-1], [49152], [1, 2, 49152], [2**31], [2**63], [1.5], [1, "a"], ["a", 1], [1, None], [[1], 2],
                    [[1, -1]], [[1], [49152]], [True]):
            for stream in (False, True):
                self.refused(TEXT, {"prompt": ids, "stream": stream}, has="prompt")
        self.good(TEXT, {"prompt": [49151], "max_tokens": 1})
        self.good(TEXT, {"prompt": [[1, 2], "text", [3]], "max_tokens": 1})
        for bias in ({"-1": 1}, {"49152": 1}, {"x": 1}, {"1": 101}, {"1": "a"}, {"1.5": 1}, [1], {"99999999999": 1}):
            self.refused(TEXT, {"prompt": "x", "logit_bias": bias}, has="logit_bias")

    def test_numbers(self):
        for name, values in {"temperature": (-1, 1e9, "a", [1]), "top_p": (-0.1, 1.1), "min_p": (-1, 2),
                             "top_k": (-2, 1.5, 2**40), "max_tokens": (0, -2, 1.5, "a", 2**40),
                             "repeat_penalty": (0, -1), "repeat_last_n": (-2, 2**33), "presence_penalty": (-101, "a"),
                             "seed": (1.5, "a"), "logprobs": (-1, 21), "min_tokens": (-1,),
                             "stream": (1, "true"), "echo": ("yes",)}.items():
            for value in values:
                self.refused(TEXT, {"prompt": "x", name: value}, has=name)
        self.good(TEXT, {"prompt": "x", "max_tokens": 2, "temperature": 0, "presence_penalty": -2, "seed": 2**64 - 1})
        for last in (0, -1, 3, 10**9):
            self.good(TEXT, {"prompt": "x", "max_tokens": 2, "repeat_penalty": 1.2, "repeat_last_n": last})

    def test_penalties_pass_over_the_prompt(self):
        # presence and frequency count what was generated: a first token is as without them
        body = {"prompt": "one two one two one", "max_tokens": 1, "temperature": 0, "logprobs": 3}
        plain = self.good(TEXT, body).json["choices"][0]["logprobs"]
        punished = self.good(TEXT, {**body, "presence_penalty": 2, "frequency_penalty": 2}).json["choices"][0]["logprobs"]
        self.assertEqual(plain, punished)

    # ---- The context

    def test_context_edges(self):
        n = 512
        ids = [1 + i % 50 for i in range(n + 1)]
        whole = self.good(TEXT, {"prompt": ids[:n - 1], "max_tokens": 50, "ignore_eos": True}).json
        self.assertEqual(whole["usage"]["completion_tokens"], 1)
        self.assertEqual(whole["choices"][0]["finish_reason"], "length")
        for size in (n, n + 1):
            for stream in (False, True):
                message = self.refused(TEXT, {"prompt": ids[:size], "stream": stream}).error
                self.assertIn(str(size), message)
                self.assertIn(str(n), message)
        self.refused(CHAT, {"messages": user("word " * 600)}, has="512")
        for room in (2, 5):
            body = {"prompt": ids[:n - room], "max_tokens": -1, "ignore_eos": True, "temperature": 0}
            frames = self.server.stream(TEXT, body, stream_options={"include_usage": True}).frames()
            self.assertEqual(joined(frames[:-1])[1], "length")
            self.assertEqual(frames[-1]["usage"]["total_tokens"], n)
        self.good(EMBED, {"input": ids[:n]})
        self.refused(EMBED, {"input": ids}, has="513")

    # ---- Depth and size

    def test_depth(self):
        for depth in (3000, 10000, 200000):
            for body in (f'{{"messages":[{{"role":"user","content":"x"}}],"tools":{nested(depth)}}}',
                         f'{{"messages":[{{"role":"user","content":"x"}}],"nobody":{nested(depth)}}}',
                         nested(depth), '{"a":' * depth + "1" + "}" * depth):
                answer = self.server.post(CHAT, body.encode())
                self.assertEqual(answer.status, 400, answer.raw)
                answer.error
        deep = {"type": "object"}
        for _ in range(40):
            deep = {"type": "array", "items": deep}
        self.refused(CHAT, {"messages": user("x"), "response_format": {"type": "json_schema",
                     "json_schema": {"name": "a", "schema": {"type": "array", "items": deep}}}, "nobody": 1})

    def test_grammars_that_break_parsers(self):
        for grammar in ("root ::= " + "(" * 60000 + '"a"' + ")" * 60000, 'root ::= root "a" | "b"', "root ::= (",
                        "root ::= nobody", "", "a ::= \"b\"", "root ::= \"\\x\"", "root ::= [z-a]",
                        'root ::= "a"{99999999}', 'root ::= ("a"{1000}){1000}'):
            answer = self.server.post(TEXT, {"prompt": "x", "max_tokens": 1, "guided_grammar": grammar})
            self.assertEqual(answer.status, 400, (grammar[:60], answer.raw[:200]))
            self.assertLess(len(answer.error), 1000, "an error that repeats the input")
        for pattern in ("^+[a-z]$", "^{2}x$", "(" * 5000, "(" * 5000 + "a" + ")" * 5000, "[", "a{2,1}", "*", "(?<=a)b",
                        "\\", "[z-a]"):
            self.refused(TEXT, {"prompt": "x", "max_tokens": 1, "guided_regex": pattern})
            self.refused(TEXT, {"prompt": "x", "max_tokens": 1, "json_schema": {"type": "string", "pattern": pattern}})
        loops = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
        for schema in (loops, {"$ref": "#"}, {"$ref": "#/nobody"}, {"$ref": "http://x/y"}, {"type": "nobody"},
                       {"type": "array", "minItems": 3, "maxItems": 1}, {"enum": []}, {"anyOf": []}):
            self.refused(TEXT, {"prompt": "x", "max_tokens": 1, "json_schema": schema})
        self.good(TEXT, {"prompt": "still here", "max_tokens": 1})

    def test_schemas_are_kept_to(self):
        def answers(schema, valid, **more):
            text = text_of(self.good(TEXT, {"prompt": "JSON:", "json_schema": schema, "max_tokens": 80,
                                            "temperature": 1, "seed": 3, **more}))
            value = json.loads(text)
            self.assertTrue(valid(value), (schema, text))
        answers({"type": "string", "pattern": "^[a-c]{3}$"}, lambda v: len(v) == 3 and set(v) <= set("abc"))
        answers({"const": None}, lambda v: v is None)
        answers({"enum": ["a\"b", "c'd", 5, None, [1]]}, lambda v: v in ["a\"b", "c'd", 5, None, [1]])
        answers({"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
                 "required": ["a"], "additionalProperties": False}, lambda v: list(v) == ["a"] and 0 <= v["a"] <= 9)
        answers({"anyOf": [{"const": 1}, {"type": "boolean"}]}, lambda v: v is True or v is False or v == 1)
        answers({"oneOf": [{"const": "x"}, {"const": "y"}]}, lambda v: v in "xy")
        answers({"type": "array", "items": {"const": 7}, "minItems": 2, "maxItems": 3}, lambda v: 2 <= len(v) <= 3)
        for schema in ({"type": "string", "pattern": "[a-c]"}, {"type": "string", "maxLength": 2000}, {}):  # legal
            self.good(TEXT, {"prompt": "JSON:", "json_schema": schema, "max_tokens": 3})
        answers({"items": [{"const": 1}], "$defs": {}, "properties": {"a": {"const": 2},
                 "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"], "type": "object",
                 "additionalProperties": False} | {"items": {}}, lambda v: v == {"a": 2, "b": 2})

    def test_body(self):
        for body in (b"", b"{", b"nonsense", b"[]", b"1", b"null", b'"x"', b'{"prompt":"x"}}', b'{"prompt":"x",}',
                     b'{"prompt":"\xff"}', b'{"prompt":"\xe6\xad"}', b'{"prompt":"\xc0\x80"}', b'{"prompt":"\xed\xa0\x80"}',
                     b'{"prompt":"\xf4\x90\x80\x80"}', b'{"prompt":"\x80"}', "{\"prompt\":\"你好\"}".encode("gbk"),
                     b'{"prompt":"a\x00b"}', b'{"prompt":"\\ud800"}', b'{"prompt":NaN}', b'{"prompt":"x","n":1e999}'):
            answer = self.server.post(TEXT, body)
            self.assertEqual(answer.status, 400, (body, answer.raw))
            answer.error
        self.good(TEXT, b'{"prompt":"a\\u0000b","max_tokens":1}')
        self.refused(TEXT, {"prompt": "x", "nobody": "\x00\x1f" * 5000}, has="nobody")
        self.refused(TEXT, {"prompt": "x", "n\x00\u202e" * 500: 1})
        self.refused(TEXT, {"prompt": "x", "model": "no\nbody\u202e" * 100}, 404)
        for path, body in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": user("x")}), (EMBED, {"input": "x"})):
            self.refused(path, {**body, "model": "nobody"}, 404, "nobody")
            self.refused(path, {**body, "model": 5}, has="model")
        self.assertEqual(self.server.ask("GET", "/v1/models/nobody").status, 404)
        self.assertEqual(self.server.ask("GET", TEXT).status, 405)
        self.assertEqual(self.server.ask("GET", "/nobody").status, 404)

    def test_sizes(self):
        start = time.time()
        huge = b'{"prompt":"' + b"a" * (33 << 20) + b'"}'
        reply = self.raw(request_bytes(TEXT, b"")[:-4].replace(b"Length: 0", b"Length: %d" % len(huge)) + b"\r\n\r\n")
        self.assertIn(b" 413 ", reply.split(b"\r\n")[0])
        reply = self.raw(request_bytes(TEXT, b"{}", headers=["X: " + "a" * 40000]))
        self.assertIn(b" 431 ", reply.split(b"\r\n")[0])
        reply = self.raw(request_bytes(TEXT, b"{}", headers=[f"X{i}: a" for i in range(5000)]))
        self.assertIn(b" 431 ", reply.split(b"\r\n")[0])
        reply = self.raw(b"nonsense\r\n\r\n")
        self.assertIn(b" 400 ", reply.split(b"\r\n")[0])
        self.refused(TEXT, {"prompt": "a " * 200_000}, has="512")
        self.refused(TEXT, {"prompt": "us" * 65536})
        self.refused(TEXT, {"prompt": ["x"] * 1000})
        self.refused(TEXT, {"prompt": "x", "stop": ["a"] * 100})
        self.assertLess(time.time() - start, 30)

    # ---- Values of other types than wanted

    def test_every_field_with_every_kind_of_value(self):
        values = [None, True, 0, -1, 1.5, 1e300, 2**64, "", "\0", [], [1], ["x"], [None], [[]], {}, {"a": 1}, {"": [{}]}]
        function = {"name": "f", "parameters": {"type": "object"}}
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

        def places(json, path=()):
            """Every place in a request, to put something else there."""
            yield path
            for key in json if isinstance(json, dict) else range(len(json)) if isinstance(json, list) else ():
                yield from places(json[key], (*path, key))

        def put(json, path, value):
            if not path:
                return value
            copy = json.copy()
            copy[path[0]] = put(json[path[0]], path[1:], value)
            return copy

        full = {
            CHAT: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]},
                                {"role": "assistant", "content": None, "tool_calls": [call]},
                                {"role": "tool", "tool_call_id": "1", "content": "x"}],
                   "tools": [{"type": "function", "function": function}], "tool_choice": "required", "n": 1,
                   "max_tokens": 1, "stop": ["x"], "logit_bias": {"1": 1}, "logprobs": True, "top_logprobs": 1,
                   "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low", "user": "x", "metadata": {"a": "b"}},
            TEXT: {"prompt": ["x"], "max_tokens": 1, "echo": True, "logprobs": 1, "best_of": 1, "stop_token_ids": [1],
                   "json_schema": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}},
            EMBED: {"input": ["x"], "encoding_format": "float", "user": "x"},
        }
        for path, body in full.items():
            for place in places(body):
                for value in values:
                    answer = self.server.post(path, put(body, place, value))
                    self.assertIn(answer.status, (200, 400), (path, place, value, answer.raw[:300]))
                    answer.json

    # ---- Templates

    def test_histories(self):
        def history(arguments):
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            return [*user("x"), {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "1", "content": "é"}]
        for arguments in ('{"city":"Paris"}', "{}", "{", "", None, {"a": 1}, "[1]", "\\", 5, [1]):
            answer = self.server.post(CHAT, {"messages": history(arguments), "max_tokens": 1})
            self.assertIn(answer.status, (200, 400), (arguments, answer.raw))
        for roles in (["user", "user"], ["assistant"], ["assistant", "user"], ["system"], ["system", "system", "user"],
                      ["tool"], ["user", "assistant"]):
            messages = [{"role": r, "content": "x"} for r in roles]
            answer = self.server.post(CHAT, {"messages": messages, "max_tokens": 1})
            self.assertIn(answer.status, (200, 400), (roles, answer.raw))
        self.good(CHAT, {"messages": user("still here"), "max_tokens": 1})


class Raising(ServerTest):
    """A template that refuses."""

    @classmethod
    def setUpClass(cls):
        import tempfile
        cls.own = tempfile.TemporaryDirectory()
        path = f"{cls.own.name}/raising.jinja"
        with open(path, "w") as file:
            file.write("{% for m in messages %}{% if m.role == 'system' %}\r\n"
                       "{{ raise_exception('no system role here') }}{% endif %}{{ nobody.name if m.content == 'deep' }}"
                       "{{ m.content }}{% endfor %}")
        cls.flags = ("--ctx", 128, "--chat-template", path)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.own.cleanup()

    def test_its_message_is_the_answer(self):
        for stream in (False, True):
            self.refused(CHAT, {"messages": [{"role": "system", "content": "x"}], "stream": stream},
                         has="no system role here")
            self.refused(CHAT, {"messages": user("deep"), "stream": stream})
        self.good(CHAT, {"messages": user("x"), "max_tokens": 1})


class Keyless(ServerTest):
    """A model without texts."""

    make_tiny = ("llama",)
    flags = ("--ctx", 64)

    def test_takes_ids_only(self):
        self.refused(TEXT, {"prompt": "x"}, has="token ids only")
        self.refused(CHAT, {"messages": user("x")})
        self.refused(TEXT, {"prompt": [1], "guided_regex": "a"})
        self.refused(EMBED, {"input": "x"}, has="token ids only")
        body = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0, "logprobs": 1}
        whole = self.good(TEXT, body).json
        self.assertEqual(len(whole["choices"][0]["logprobs"]["token_logprobs"]), whole["usage"]["completion_tokens"])
        frames = self.server.stream(TEXT, body).frames()
        self.assertEqual(joined(frames), ("", "length"))
        self.good(EMBED, {"input": [1, 2, 3]})


if __name__ == "__main__":
    sys.exit(harness.main())
