#!/usr/bin/env python3
"""OpenAI's interface, through OpenAI's own client and byte by byte: ARGENT_MODELS=FOLDER openai_test.py BINARY [TEST ...]

The last line is "N passed, M failed".
"""
import base64
import concurrent.futures
import json
import os
import socket
import struct
import sys
import tempfile
import time
import unittest

import openai

from serving import TEMPLATE, Server, model

CHAT = "/v1/chat/completions"
ask = [{"role": "user", "content": "Name three rivers of Europe."}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"]}}}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "age"]}


def chunks(stream):
    """The JSON of a stream's chunks, which ends with [DONE]."""
    assert stream[-1] == (None, "[DONE]"), stream[-1]
    return [json.loads(data) for _, data in stream[:-1]]


def joined(parts, index=0):
    """The message that a choice's deltas make, and how it finished."""
    message, finish = {"content": "", "reasoning_content": "", "tool_calls": []}, None
    for part in parts:
        for choice in part["choices"]:
            if choice["index"] != index:
                continue
            assert finish is None, "a chunk behind the last"
            finish = choice["finish_reason"]
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    for call in value:
                        if "id" in call:
                            assert call["index"] == len(message["tool_calls"]) and call["type"] == "function"
                            message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                        message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
                elif key != "role":
                    message[key] += value
    return message, finish


def metric(name):
    text = SERVER.raw("GET", "/metrics")[2].decode()
    return sum(float(line.split()[-1]) for line in text.split("\n") if line.startswith(name))


class Base(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.client = openai.OpenAI(base_url=SERVER.url + "/v1", api_key="none", max_retries=0)

    def chat(self, **body):
        return SERVER.post(CHAT, **{"messages": ask, "temperature": 0, "max_tokens": 16, **body})

    def refused(self, field, path=CHAT, status=400, **body):
        if path == CHAT:
            body = {"messages": ask, "max_tokens": 2, **body}
        for stream in ({}, {"stream": True}) if path != "/v1/embeddings" and "stream" not in body else ({},):
            answer = SERVER.post(path, **{**body, **stream})
            self.assertEqual(answer.get("status"), status, answer)
            error = answer["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"})
            self.assertEqual(error["type"], "invalid_request_error")
            self.assertEqual(error["param"], field, error)
            self.assertIn(field.split("[")[0].split(".")[0], error["message"])


class Chat(Base):
    def test_client(self):
        answer = self.client.chat.completions.create(model="", messages=ask, temperature=0, max_tokens=12, seed=-5)
        choice = answer.choices[0]
        self.assertEqual((choice.message.role, choice.finish_reason), ("assistant", "length"))
        self.assertEqual(answer.usage.completion_tokens, 12)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 12)
        stream = self.client.chat.completions.create(model="", messages=ask, temperature=0, max_tokens=12, stream=True,
                                                     stream_options={"include_usage": True})
        parts = list(stream)
        self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts if p.choices), choice.message.content)
        self.assertEqual(parts[-1].usage.completion_tokens, 12)

    def test_stream_is_the_answer(self):
        for body in ({"temperature": 0}, {"temperature": 1, "seed": 7, "n": 3}, {"stop": ["Europe", "river"]},
                     {"logprobs": True, "top_logprobs": 2, "seed": 1, "temperature": 1},
                     {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 90},
                     {"enable_thinking": True, "thinking_budget": 8, "max_tokens": 40}):
            with self.subTest(body=body):
                whole = self.chat(**body)
                for piece in (None, 7):  # however the bytes are read
                    parts = chunks(SERVER.stream(CHAT, piece, **{"messages": ask, "temperature": 0, "max_tokens": 16,
                                                                 **body}))
                    for choice in whole["choices"]:
                        message, finish = joined(parts, choice["index"])
                        self.assertEqual(message["content"], choice["message"]["content"] or "")
                        self.assertEqual(message["reasoning_content"], choice["message"].get("reasoning_content", ""))
                        self.assertEqual(message["tool_calls"],
                                         [c["function"] for c in choice["message"].get("tool_calls", [])])
                        self.assertEqual(finish, choice["finish_reason"])
                        probs = [p for part in parts for c in part["choices"] if c["index"] == choice["index"]
                                 for p in (c["logprobs"] or {}).get("content", [])]
                        self.assertEqual(probs, (choice["logprobs"] or {}).get("content", []))

    def test_chunks(self):
        for usage in (False, True):
            parts = chunks(SERVER.stream(CHAT, messages=ask, temperature=0, max_tokens=5, n=2,
                                         stream_options={"include_usage": usage}))
            self.assertEqual(len({p["id"] for p in parts}), 1)
            self.assertEqual({p["object"] for p in parts}, {"chat.completion.chunk"})
            for index in (0, 1):
                first = next(p["choices"][0] for p in parts if p["choices"] and p["choices"][0]["index"] == index)
                self.assertEqual(first["delta"], {"role": "assistant", "content": ""})
            self.assertEqual([i for i, p in enumerate(parts) if not p["choices"]], [len(parts) - 1] if usage else [])
            self.assertEqual([p for p in parts if p.get("usage")], parts[-1:] if usage else [])
            self.assertEqual([p for p in parts if "timings" in p], parts[-1:])
            self.assertEqual(all("usage" in p for p in parts), usage)
            self.assertEqual(any("usage" in p for p in parts), usage)
        self.assertEqual(parts[-1]["usage"]["completion_tokens"], 10)  # of both; the prompt counts once
        self.assertEqual(parts[-1]["usage"]["prompt_tokens"], self.chat()["usage"]["prompt_tokens"])

    def test_n_and_seeds(self):
        body = {"temperature": 1, "n": 4, "seed": 2**64 - 1, "max_tokens": 12}
        texts = [c["message"]["content"] for c in self.chat(**body)["choices"]]
        self.assertEqual(len(set(texts)), 4)
        self.assertEqual(texts, [c["message"]["content"] for c in self.chat(**body)["choices"]])
        self.assertEqual(texts[0], self.chat(**{**body, "n": 1})["choices"][0]["message"]["content"])
        self.assertEqual(texts, [c["message"]["content"] for c in self.chat(**{**body, "seed": -1})["choices"]])
        unseeded = {self.chat(temperature=1, max_tokens=12)["choices"][0]["message"]["content"] for _ in range(3)}
        self.assertGreater(len(unseeded), 1)

    def test_logprobs(self):
        choice = self.chat(logprobs=True, top_logprobs=20, max_tokens=8)["choices"][0]
        entries = choice["logprobs"]["content"]
        self.assertEqual(len(entries), 8)
        self.assertEqual(b"".join(bytes(e["bytes"]) for e in entries).decode(), choice["message"]["content"])
        for e in entries:
            self.assertEqual(len(e["top_logprobs"]), 20)
            self.assertEqual(e["top_logprobs"][0]["logprob"], e["logprob"])  # greedy
            tops = [t["logprob"] for t in e["top_logprobs"]]
            self.assertEqual(tops, sorted(tops, reverse=True))
        self.assertEqual(self.chat(logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"], [])
        prompt = self.chat(prompt_logprobs=1)
        self.assertEqual(len(prompt["prompt_logprobs"]), prompt["usage"]["prompt_tokens"])
        self.assertIsNone(prompt["prompt_logprobs"][0])

    def test_stop(self):
        whole = self.chat(max_tokens=40)["choices"][0]["message"]["content"]
        stop = whole[10:14]
        choice = self.chat(max_tokens=40, stop=stop)["choices"][0]
        self.assertEqual(choice["message"]["content"], whole[:whole.index(stop)])
        self.assertEqual(choice["finish_reason"], "stop")
        first = self.chat(logprobs=True)["choices"][0]["message"]["content"]
        self.assertTrue(first.startswith(self.chat(max_tokens=3, min_tokens=3)["choices"][0]["message"]["content"]))

    def test_sampling(self):
        greedy = self.chat()["choices"][0]["message"]["content"]
        for body in ({"temperature": 2, "top_k": 1}, {"temperature": 2, "top_p": 0}, {"temperature": 1, "min_p": 1}):
            self.assertEqual(self.chat(**body)["choices"][0]["message"]["content"], greedy, body)
        self.assertNotEqual(self.chat(repetition_penalty=2, repeat_last_n=-1)["choices"][0]["message"]["content"], greedy)
        tokens = SERVER.post("/v1/completions", prompt="A", max_tokens=1, temperature=0, logit_bias={"28": 100})
        again = SERVER.post("/v1/completions", prompt="A", max_tokens=1, temperature=0, logit_bias={"30": 100})
        self.assertNotEqual(tokens["choices"][0]["text"], again["choices"][0]["text"])

    def test_unicode(self):
        text = "Grüße 👩‍👩‍👧 \u2028 \\ \" 𝔘"
        message = self.chat(guided_choice=[text], max_tokens=80)["choices"][0]["message"]
        self.assertEqual(message["content"], text)
        parts = chunks(SERVER.stream(CHAT, messages=[{"role": "user", "content": text}], guided_choice=[text],
                                     logprobs=True))
        self.assertEqual(joined(parts)[0]["content"], text)
        raw = b"".join(bytes(p["bytes"]) for part in parts for c in part["choices"]
                       for p in (c["logprobs"] or {}).get("content", []))
        self.assertEqual(raw.decode(), text)

    def test_structured(self):
        for body in ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
                     {"guided_json": PERSON}, {"guided_json": json.dumps(PERSON)}, {"json_schema": PERSON},
                     {"response_format": {"type": "json_object", "schema": PERSON}}):
            for seed in (1, 2):
                choice = self.chat(**body, temperature=1.2, seed=seed, max_tokens=120)["choices"][0]
                value = json.loads(choice["message"]["content"])
                self.assertEqual((set(value), choice["finish_reason"]), ({"name", "age"}, "stop"))
                self.assertTrue(0 <= value["age"] <= 99 and len(value["name"]) <= 10, value)
        text = self.chat(guided_regex="[0-9]{3}-[a-f]{2}")["choices"][0]["message"]["content"]
        self.assertRegex(text, "^[0-9]{3}-[a-f]{2}$")
        self.assertIn(self.chat(grammar='root ::= "yes" | "no"')["choices"][0]["message"]["content"], ("yes", "no"))
        for body, pattern in (({"regex": "[0-9]{3}"}, "^[0-9]{3}$"), ({"choice": ["yes", "no"]}, "^(yes|no)$"), ({"json_object": True}, "^{"),
                              ({"grammar": 'root ::= "a"'}, "^a$"), ({"json": PERSON}, '"age"'), ({"json": json.dumps(PERSON)}, '"age"')):
            text = self.chat(structured_outputs=body, max_tokens=120, seed=1)["choices"][0]["message"]["content"]
            self.assertRegex(text, pattern)

    def test_tools(self):
        named = {"type": "function", "function": {"name": "weather"}}
        other = {"type": "function", "function": {"name": "clock"}}
        for tools, choice in ([WEATHER], "required"), ([other, WEATHER], named):
            answer = self.client.chat.completions.create(model="", messages=ask, tools=tools, max_tokens=120,
                                                         tool_choice=choice, parallel_tool_calls=False, seed=3)
            self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
            call, = answer.choices[0].message.tool_calls
            self.assertEqual(call.function.name, "weather")
            self.assertLessEqual(1, json.loads(call.function.arguments)["days"])
        for mode in ("auto", "required"):
            allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named]}}
            answer = self.client.chat.completions.create(model="", messages=ask, tools=[other, WEATHER], max_tokens=120,
                                                         tool_choice=allowed, parallel_tool_calls=False, seed=3)
            self.assertEqual([c.function.name for c in answer.choices[0].message.tool_calls or ()],
                             ["weather"] if mode == "required" else [])
        answer = self.client.chat.completions.create(model="", messages=ask, tools=[WEATHER], max_tokens=120,
                                                     tool_choice="required", parallel_tool_calls=False, seed=3)
        call, = answer.choices[0].message.tool_calls
        history = ask + [answer.choices[0].message.model_dump(),
                         {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        self.assertNotIn("status", self.chat(messages=history, tools=[WEATHER]))
        self.assertNotIn("tool_calls", self.chat(tools=[WEATHER], tool_choice="none")["choices"][0]["message"])

    def test_reasoning(self):
        body = {"thinking_budget": 6, "max_tokens": 30, "chat_template_kwargs": {"enable_thinking": True}}
        answer = self.chat(**body)
        message = answer["choices"][0]["message"]
        self.assertTrue(message["reasoning_content"])
        self.assertNotIn("</think>", message["content"] + message["reasoning_content"])
        counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        self.assertTrue(0 < counted < 30, counted)
        self.assertNotIn("reasoning_content", self.chat(**body, reasoning_format="none")["choices"][0]["message"])
        self.assertNotIn("reasoning_content", self.chat(reasoning_effort="none")["choices"][0]["message"])
        self.assertTrue(self.chat(reasoning_effort="low")["choices"][0]["message"]["reasoning_content"])
        guided = self.chat(**{**body, "max_tokens": 120}, guided_json=PERSON)["choices"][0]["message"]
        self.assertIn("age", json.loads(guided["content"]))

    def test_continuation(self):
        begun = ask + [{"role": "assistant", "content": "The Danube, the"}]
        text = self.chat(messages=begun)["choices"][0]["message"]["content"]
        fresh = self.chat(messages=begun, add_generation_prompt=True)["choices"][0]["message"]["content"]
        self.assertNotEqual(text, fresh)
        self.refused("continue_final_message", continue_final_message=True)

    def test_ignored(self):
        self.assertNotIn("status", self.chat(user="u", metadata={"a": "b"}, store=True, service_tier="auto", stop=None,
                                             safety_identifier="x", prompt_cache_key="y", modalities=["text"], foo=None))

    def test_client_goes(self):
        for stream in (False, True):
            before = metric("argent_requests_cancelled_total")
            body = json.dumps({"messages": ask, "ignore_eos": True, "stream": stream}).encode()
            with socket.create_connection(("127.0.0.1", SERVER.port)) as s:
                s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
                          + body)
                if stream:
                    s.recv(100)
                else:
                    time.sleep(0.3)
            until = time.time() + 10
            while metric("argent_requests_cancelled_total") == before:
                self.assertLess(time.time(), until, "the request goes on")
                time.sleep(0.02)

    def test_many_at_once(self):
        def one(i):
            return self.chat(seed=i % 4, temperature=1)["choices"][0]["message"]["content"]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(one, range(16)))
        for i in range(16):
            self.assertEqual(texts[i], texts[i % 4])


class Errors(Base):
    def test_fields(self):
        image = {"type": "image_url", "image_url": {"url": "data:"}}
        tool = {"type": "function", "function": {"name": "a b"}}
        bad = {"type": "object", "properties": {"x": {"type": "oops"}}}
        cases = [
            ("temperature", 101), ("temperature", -1), ("temperature", "hot"), ("top_p", 1.5), ("min_p", -0.1),
            ("top_k", -2), ("top_k", 1.5), ("n", 0), ("n", 129), ("max_tokens", 0), ("max_tokens", -2),
            ("max_completion_tokens", "x"), ("min_tokens", 9), ("stop", ""), ("stop", ["a"] * 17), ("stop", [1]),
            ("seed", 1.5), ("seed", 2**64), ("presence_penalty", 101), ("frequency_penalty", "x"),
            ("repeat_penalty", 0), ("repetition_penalty", -1), ("repeat_last_n", -2), ("logit_bias", {"x": 1}),
            ("logit_bias", {"1": 101}), ("logit_bias", {"99999999": 1}), ("logit_bias", []), ("top_logprobs", 3),
            ("logprobs", 3), ("stop_token_ids", [-1]), ("ignore_eos", 1), ("guided_regex", "("), ("guided_choice", []),
            ("guided_grammar", "root ::= ("), ("json_schema", bad), ("tool_choice", "required"), ("tool_choice", "some"),
            ("reasoning_effort", "much"), ("chat_template_kwargs", 1), ("thinking_budget", -2), ("priority", "x"),
            ("reasoning_format", "x"), ("messages", []), ("messages", "hi"), ("modalities", ["audio"]),
            ("audio", {"voice": "x"}), ("functions", []), ("foo", 1), ("seed", "1"), ("messages", None),
            ("model", 7),
        ]
        for field, value in cases:
            with self.subTest(field=field, value=value):
                self.refused(field, **{field: value})
        for field, body in [
            ("messages[0].role", {"messages": [{"role": "king", "content": "x"}]}),
            ("messages[1].content[0]", {"messages": ask + [{"role": "user", "content": [image]}]}),
            ("messages[0].audio", {"messages": [{"role": "assistant", "content": "", "audio": {"id": "x"}}]}),
            ("response_format.type", {"response_format": {"type": "xml"}}),
            ("response_format.json_schema.schema", {"response_format": {"type": "json_schema", "json_schema": {}}}),
            ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": bad}}}),
            ("guided_regex", {"response_format": {"type": "json_object"}, "guided_regex": "a"}),
            ("tools[0].function.name", {"tools": [tool]}), ("tools[0].type", {"tools": [{"type": "web_search"}]}),
            ("tools[0].function", {"tools": [{"type": "function"}]}),
            ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "sql", "format": {
                "type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}}}]}),
            ("grammar", {"grammar": 'start: "a"'}), ("guided_grammar", {"guided_grammar": "%llguidance {}"}),
            ("structured_outputs.grammar", {"structured_outputs": {"grammar": "root ::= ("}}),
            ("structured_outputs.regex", {"structured_outputs": {"json": PERSON, "regex": "a"}}),
            ("structured_outputs.lark", {"structured_outputs": {"lark": "a"}}),
            ("tool_choice.allowed_tools.tools[0]", {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
                "mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}}}),
            ("tool_choice.allowed_tools.tools", {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}),
            ("tool_choice", {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
            ("guided_json", {"tools": [WEATHER], "tool_choice": "required", "guided_json": PERSON}),
            ("stream_options", {"stream": False, "stream_options": {"include_usage": True}}),
            ("stream_options.x", {"stream": True, "stream_options": {"x": True}}),
            ("prompt_logprobs", {"stream": True, "prompt_logprobs": 1}), ("stream", {"stream": "yes"}),
            ("max_tokens", {"max_tokens": 1, "max_completion_tokens": 2}),
            ("messages", {"messages": [{"role": "user", "content": "word " * 9000}]}),
        ]:
            with self.subTest(field=field):
                self.refused(field, **body)

    def test_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="nope", messages=ask)
        self.assertEqual((caught.exception.code, caught.exception.param), ("model_not_found", "model"))

    def test_bodies(self):
        for body in (b"", b"{", b"[]", b"1", b"\xff", b'{"messages": "\xff"}', b"[" * 100000, b'{"a":' * 100 + b"1"):
            for path in (CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses"):
                status, _, answer = SERVER.raw("POST", path, body)
                self.assertEqual(status, 400, body[:20])
                self.assertEqual(json.loads(answer)["error"]["type"], "invalid_request_error")

    def test_other_routes(self):
        self.refused("prompt", "/v1/completions")
        for value in ([], 1, [[]], ["a", 1], [1, "a"], [[1], "a", {}], [-1], [99999999]):
            self.refused("prompt", "/v1/completions", prompt=value)
        for field, body in [("best_of", {"best_of": 2}), ("suffix", {"suffix": "x"}), ("max_tokens", {"max_tokens": 0}),
                            ("logprobs", {"logprobs": 21}), ("n", {"n": 0}), ("messages", {"messages": ask})]:
            self.refused(field, "/v1/completions", prompt="a", **body)
        self.refused("prompt", "/v1/completions", prompt=["a", [99999999]])  # the first one had begun
        for field, body in [("input", {}), ("input", {"input": []}), ("input", {"input": [""]}),
                            ("input", {"input": [[99999999]]}), ("dimensions", {"input": "a", "dimensions": 5}),
                            ("encoding_format", {"input": "a", "encoding_format": "hex"}),
                            ("foo", {"input": "a", "foo": 1}), ("input", {"input": "word " * 9000})]:
            self.refused(field, "/v1/embeddings", **body)
        for field, body in [("previous_response_id", {"input": "a", "previous_response_id": "x"}), ("input", {}),
                            ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
                            ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
                            ("tools[0].type", {"input": "a", "tools": [{"type": "web_search"}]}),
                            ("text.format.schema", {"input": "a", "text": {"format": {"type": "json_schema"}}}),
                            ("reasoning.effort", {"input": "a", "reasoning": {"effort": "x"}}), ("n", {"input": "a", "n": 2})]:
            self.refused(field, "/v1/responses", **body)
        self.assertEqual(SERVER.raw("GET", "/v1/responses/resp_1")[0], 400)


class Completions(Base):
    def test_client(self):
        answer = self.client.completions.create(model="", prompt="The capital of France is", temperature=0)
        self.assertEqual(answer.usage.completion_tokens, 16)
        parts = list(self.client.completions.create(model="", prompt="The capital of France is", temperature=0,
                                                    stream=True))
        self.assertEqual("".join(p.choices[0].text for p in parts), answer.choices[0].text)

    def test_prompts(self):
        texts = ["The sea is", "One, two,"]
        alone = [SERVER.post("/v1/completions", prompt=t, temperature=0, max_tokens=6)["choices"][0]["text"] for t in texts]
        answer = SERVER.post("/v1/completions", prompt=texts, temperature=0, max_tokens=6, n=2, echo=True)
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
        self.assertEqual([c["text"] for c in answer["choices"]], [t + a for t, a in zip(texts, alone) for _ in range(2)])
        self.assertEqual(answer["usage"]["completion_tokens"], 24)
        parts = chunks(SERVER.stream("/v1/completions", prompt=texts, temperature=0, max_tokens=6, n=2, echo=True))
        for c in answer["choices"]:
            self.assertEqual("".join(x["text"] for p in parts for x in p["choices"] if x["index"] == c["index"]), c["text"])
        ids = SERVER.post("/v1/completions", prompt=[[504, 5725, 314]], temperature=0, max_tokens=6, echo=True)
        one = SERVER.post("/v1/completions", prompt=[504, 5725, 314], temperature=0, max_tokens=6, echo=True)
        self.assertEqual(ids["choices"][0]["text"], one["choices"][0]["text"])

    def test_logprobs(self):
        body = {"prompt": "The sea — is", "temperature": 0, "max_tokens": 5, "logprobs": 2, "echo": True}
        choice = SERVER.post("/v1/completions", **body)["choices"][0]
        table = choice["logprobs"]
        self.assertEqual({len(column) for column in table.values()}, {len(table["tokens"])})
        self.assertIsNone(table["token_logprobs"][0])
        self.assertEqual(len(table["top_logprobs"][3]), 2)
        for token, at in zip(table["tokens"], table["text_offset"]):
            if not token.startswith("bytes:"):
                self.assertEqual(choice["text"][at:at + len(token)], token)
        only = SERVER.post("/v1/completions", **{**body, "max_tokens": 0})
        self.assertEqual((only["choices"][0]["text"], only["usage"]["completion_tokens"]), (body["prompt"], 0))
        n = len(only["choices"][0]["logprobs"]["tokens"])
        self.assertEqual(only["choices"][0]["logprobs"]["token_logprobs"], table["token_logprobs"][:n])
        parts = chunks(SERVER.stream("/v1/completions", **body))
        for name, column in table.items():
            self.assertEqual([x for p in parts for c in p["choices"] if c["logprobs"] for x in c["logprobs"][name]], column)


class Embeddings(Base):
    def test_client(self):
        inputs = ["cats and dogs", "quantum field theory", "dogs and cats"] * 20  # more than are computed at once
        answer = self.client.embeddings.create(model="", input=inputs)  # base64 on the wire
        self.assertEqual([e.index for e in answer.data], list(range(60)))
        dot = lambda a, b: sum(x * y for x, y in zip(answer.data[a].embedding, answer.data[b].embedding))  # noqa: E731
        self.assertAlmostEqual(dot(0, 0), 1, places=4)
        self.assertGreater(dot(0, 2), dot(0, 1))
        self.assertEqual(answer.data[59].embedding, answer.data[2].embedding)
        plain = SERVER.post("/v1/embeddings", input="cats and dogs", encoding_format="float", dimensions=576)
        packed = SERVER.post("/v1/embeddings", input="cats and dogs", encoding_format="base64")
        vector = struct.unpack("<576f", base64.b64decode(packed["data"][0]["embedding"]))
        self.assertEqual(list(vector), plain["data"][0]["embedding"])
        three = SERVER.post("/v1/embeddings", input=inputs[:3])
        self.assertEqual(answer.usage.prompt_tokens, 20 * three["usage"]["prompt_tokens"])


class Responses(Base):
    def test_client(self):
        answer = self.client.responses.create(model="", input="Name a river.", max_output_tokens=12, temperature=0)
        self.assertEqual((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual(answer.usage.output_tokens, 12)
        same = self.client.responses.create(
            model="", max_output_tokens=12, temperature=0,
            input=[{"role": "user", "content": [{"type": "input_text", "text": "Name a river."}]}])
        self.assertEqual(same.output_text, answer.output_text)
        stream = list(self.client.responses.create(model="", input="Name a river.", max_output_tokens=12, temperature=0,
                                                   stream=True))
        types = [event.type for event in stream]
        self.assertEqual(stream[-1].response.output_text, answer.output_text)
        self.assertEqual("".join(e.delta for e in stream if e.type == "response.output_text.delta"), answer.output_text)
        deltas = types.count("response.output_text.delta")
        self.assertEqual([t for t in types if t != "response.output_text.delta"], [
            "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
            "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"])
        self.assertGreater(deltas, 3)

    def test_events(self):
        flat = {"type": "function", **WEATHER["function"]}
        stream = SERVER.stream("/v1/responses", input="Weather?", tools=[flat], tool_choice="required", temperature=0,
                               parallel_tool_calls=False, max_output_tokens=120)
        bodies = [json.loads(data) for _, data in stream]
        self.assertEqual([name for name, _ in stream], [b["type"] for b in bodies])
        self.assertEqual([b["sequence_number"] for b in bodies], list(range(len(bodies))))
        arguments = "".join(b["delta"] for b in bodies if b["type"] == "response.function_call_arguments.delta")
        item, = bodies[-1]["response"]["output"]
        self.assertEqual((item["type"], item["name"], item["arguments"]), ("function_call", "weather", arguments))
        self.assertIn("days", json.loads(arguments))
        turn = [{"role": "user", "content": "Weather?"}, {k: v for k, v in item.items()},
                {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}]
        again = SERVER.post("/v1/responses", input=turn, tools=[flat], max_output_tokens=8, instructions="Be brief.")
        self.assertEqual(again["object"], "response", again)

    def test_format_and_reasoning(self):
        answer = SERVER.post("/v1/responses", input="A person.", max_output_tokens=120, temperature=0, store=True,
                             text={"format": {"type": "json_schema", "name": "p", "schema": PERSON}})
        self.assertIn("age", json.loads(answer["output"][0]["content"][0]["text"]))
        answer = SERVER.post("/v1/responses", input="Think.", max_output_tokens=20, reasoning={"effort": "medium"})
        self.assertEqual(answer["output"][0]["type"], "reasoning")


def main():
    global SERVER
    if len(sys.argv) < 2 or not os.environ.get("ARGENT_MODELS"):
        sys.exit(__doc__)
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        SERVER = Server(os.path.abspath(sys.argv[1]), model(), "--chat-template", template.name)
        suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:] or ["Chat", "Errors", "Completions",
                                                                               "Embeddings", "Responses"],
                                                              sys.modules[__name__])
        result = unittest.TextTestRunner().run(suite)
        ended = SERVER.stop()
    failed = len({getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors})
    if ended != 0:
        print(f"the server ended with {ended}")
    print(f"{result.testsRun - failed} passed, {failed} failed")
    return 1 if failed or ended else 0


if __name__ == "__main__":
    sys.exit(main())
