"""Anthropic's interface, with its client; tools and thoughts of all interfaces. Run by adapters_test.py."""
import http.client
import json
import time

import anthropic

from adapters_harness import HELLO, MODEL, OLLAMA_WEATHER, THINK_TEMPLATE, TOOLS_TEMPLATE, WEATHER, Case


class Messages(Case):
    def body(self, **more):
        return {"model": MODEL, "max_tokens": 12, "messages": HELLO, **more}

    def test_answer(self):
        m = self.server.client.messages.create(**self.body())
        self.assertEqual((m.type, m.role, m.model, m.stop_reason, m.stop_sequence),
                         ("message", "assistant", MODEL, "max_tokens", None))
        self.assertTrue(m.id.startswith("msg_"))
        self.assertEqual([b.type for b in m.content], ["text"])
        self.assertTrue(m.content[0].text.startswith("Hello"))
        self.assertEqual(m.usage.output_tokens, 12)
        count = self.server.client.messages.count_tokens(model=MODEL, messages=HELLO)
        self.assertEqual(m.usage.input_tokens + m.usage.cache_read_input_tokens, count.input_tokens)

    def test_end_turn(self):
        turn = [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]
        m = self.server.client.messages.create(**self.body(max_tokens=60, messages=turn * 3 + turn[:1]))
        self.assertEqual((m.stop_reason, m.content[0].text), ("end_turn", "pong"))

    def test_stream_is_the_answer(self):
        for more in ({}, {"stop_sequences": ["help"], "max_tokens": 40},
                     {"extra_body": {"temperature": 0.0, "top_k": 1}, "max_tokens": 25}):
            whole = self.server.client.messages.create(**self.body(**more))
            with self.server.client.messages.stream(**self.body(**more)) as stream:
                joined = stream.get_final_message()
            self.assertEqual([b.to_dict() for b in joined.content if b.type != "text"] +
                             [b.text for b in joined.content], [b.text for b in whole.content])
            self.assertEqual((joined.stop_reason, joined.stop_sequence), (whole.stop_reason, whole.stop_sequence))
            self.assertEqual(joined.usage.output_tokens, whole.usage.output_tokens)
            self.assertEqual(joined.usage.input_tokens + joined.usage.cache_read_input_tokens,
                             whole.usage.input_tokens + whole.usage.cache_read_input_tokens)
            if "stop_sequences" in more:
                self.assertEqual((whole.stop_reason, whole.stop_sequence), ("stop_sequence", "help"))
                self.assertNotIn("help", whole.content[0].text)

    def test_sequence_of_events(self):
        events = self.server.events("/v1/messages", self.body(stream=True, max_tokens=3))
        for name, data in events:
            self.assertEqual(name, data["type"])
        names = [name for name, _ in events]
        self.assertEqual(names[:3], ["message_start", "content_block_start", "ping"])
        self.assertEqual(set(names[3:-3]), {"content_block_delta"})
        self.assertEqual(names[-3:], ["content_block_stop", "message_delta", "message_stop"])
        start = events[0][1]["message"]
        self.assertEqual((start["content"], start["stop_reason"], start["usage"]["output_tokens"]), ([], None, 0))
        self.assertGreater(start["usage"]["input_tokens"], 10)
        self.assertEqual(events[-2][1]["delta"], {"stop_reason": "max_tokens", "stop_sequence": None})

    def test_blocks(self):
        plain = self.server.client.messages.create(**self.body(
            system="Be brief.\nBe kind.", messages=[{"role": "user", "content": "Say\nhello."}]))
        blocks = self.server.client.messages.create(**self.body(
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "Be kind."}],
            messages=[{"role": "user", "content": [{"type": "text", "text": "Say"}]},
                      {"role": "user", "content": [{"type": "text", "text": "hello."}]}],
            metadata={"user_id": "u"}))
        self.assertEqual(plain.content[0].text, blocks.content[0].text)

    def test_prefill(self):
        m = self.server.client.messages.create(**self.body(
            max_tokens=4, messages=[{"role": "user", "content": "What is the capital of France?"},
                                    {"role": "assistant", "content": "The capital of France is"}]))
        self.assertTrue(m.content[0].text.strip().startswith("Paris"), m.content[0].text)

    def test_schema(self):
        schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"],
                  "additionalProperties": False}
        m = self.server.client.messages.create(**self.body(
            max_tokens=30, output_config={"format": {"type": "json_schema", "schema": schema}}))
        self.assertEqual(json.loads(m.content[0].text), {"n": 7})

    def test_errors(self):
        client = self.server.client
        with self.assertRaises(anthropic.NotFoundError) as seen:
            client.messages.create(**{**self.body(), "model": "nobody"})
        self.assertEqual(seen.exception.body["type"], "error")
        self.assertEqual(seen.exception.body["error"]["type"], "not_found_error")
        with self.assertRaises(anthropic.BadRequestError) as seen:
            client.messages.create(**self.body(stream=True, extra_body={"wrong": 1}))  # before the stream begins
        self.assertEqual(seen.exception.body["error"],
                         {"type": "invalid_request_error", "message": "unsupported field 'wrong'"})
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
        for more, words in [
                ({"max_tokens": None}, "max_tokens is missing"),
                ({"max_tokens": 0}, "max_tokens is 0"),
                ({"messages": None}, "messages is missing"),
                ({"messages": []}, "messages"),
                ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role is 'robot'"),
                ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "'messages[0].name'"),
                ({"messages": [{"role": "user", "content": [image]}]}, "messages[0].content[0]: blocks of type 'image'"),
                ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
                 "no tool_use before has"),
                ({"temperature": 1.5}, "temperature is 1.5"),
                ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is missing"),
                ({"thinking": {"type": "enabled", "budget_tokens": 12}}, "less than max_tokens"),
                ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]: type 'bash_20250124'"),
                ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
                ({"tool_choice": {"type": "any"}}, "there are no tools"),
                ({"stop_sequences": [""]}, "stop text is empty"),
                ({"messages": [{"role": "user", "content": "word " * 2000}]}, "the context 1024")]:
            with self.subTest(words):
                answer = self.refuses("/v1/messages", self.body(stream=True, **more)
                                      if more.keys().isdisjoint({"max_tokens", "messages"}) else {**self.body(), **more},
                                      words)
                self.assertEqual((answer["type"], answer["error"]["type"]), ("error", "invalid_request_error"))
        self.refuses("/v1/messages", b"{", "not JSON")
        self.refuses("/v1/messages", b"[" * 100, "nested")
        self.refuses("/v1/messages", b"[]", "no JSON object")
        self.refuses("/v1/messages/count_tokens", {"model": MODEL, "messages": HELLO, "max_tokens": 1}, "max_tokens")

    def test_errors_before_the_route(self):
        for method, path, header, status, kind in [
                ("POST", "/v1/messages", "Transfer-Encoding: gzip", 501, "api_error"),
                ("POST", "/v1/messages", "Content-Length: 1000000000", 413, "request_too_large"),
                ("GET", "/v1/messages", "Accept: */*", 405, "invalid_request_error"),
                ("POST", "/v1/messages/none", "Content-Length: 0", 404, "not_found_error"),
                ("POST", "/v1/messages", "Host: evil.example", 400, "invalid_request_error")]:
            with self.subTest(header, path=path):
                connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
                connection.putrequest(method, path)
                connection.putheader(*header.split(": "))
                connection.endheaders()
                answer = connection.getresponse()
                body = json.loads(answer.read())
                connection.close()
                self.assertEqual((answer.status, body["type"], body["error"]["type"]), (status, "error", kind))
                self.assertEqual(set(body), {"type", "error"})

    def test_gone_client(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        body = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}
        connection.request("POST", "/completion", json.dumps(body))
        answer = connection.getresponse()
        answer.read(10)
        answer.close()
        connection.close()
        deadline = time.time() + 10
        while any(slot["is_processing"] for slot in self.server.get("/slots")):
            self.assertLess(time.time(), deadline)
            time.sleep(0.02)


class Tools(Case):
    template = TOOLS_TEMPLATE

    def body(self, **more):
        return {"model": MODEL, "max_tokens": 80, "messages": [{"role": "user", "content": "Weather in Paris?"}],
                "tools": [WEATHER], **more}

    def test_tool_use(self):
        for choice in ({"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
                       {"type": "any", "disable_parallel_tool_use": True}):
            whole = self.server.client.messages.create(**self.body(tool_choice=choice))
            self.assertEqual([b.type for b in whole.content], ["tool_use"])
            use = whole.content[0]
            self.assertEqual((use.name, whole.stop_reason), ("get_weather", "tool_use"))
            self.assertIn(use.input, [{"city": "Paris"}, {"city": "Rome"}])
            with self.server.client.messages.stream(**self.body(tool_choice=choice)) as stream:
                joined = stream.get_final_message()
            self.assertEqual([(b.type, b.name, b.input) for b in joined.content], [("tool_use", use.name, use.input)])
            self.assertEqual(joined.stop_reason, "tool_use")

    def test_tool_choice(self):
        none = self.server.client.messages.create(**self.body(tool_choice={"type": "none"}, max_tokens=8))
        self.assertEqual([b.type for b in none.content], ["text"])
        self.refuses("/v1/messages", self.body(tool_choice={"type": "tool", "name": "g"}), "none of the tools")
        self.refuses("/v1/messages", self.body(tool_choice={"type": "tool"}), "tool_choice.name is missing")

    def test_results(self):
        """Uses and results come to the template as calls and messages of role tool."""
        turn = [{"role": "user", "content": "Weather in Paris?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                    {"type": "text", "text": "And?"}]}]
        openai = [{"role": "user", "content": "Weather in Paris?"},
                  {"role": "assistant", "content": "I look.", "tool_calls": [
                      {"id": "t1", "type": "function",
                       "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}]},
                  {"role": "tool", "name": "get_weather", "tool_call_id": "t1", "content": "sunny"},
                  {"role": "user", "content": "And?"}]
        prompt = self.server.post("/apply-template", {"messages": openai})["prompt"]
        ids = self.server.post("/tokenize", {"content": prompt})["tokens"]
        count = self.server.client.messages.count_tokens(model=MODEL, messages=turn)
        self.assertEqual(count.input_tokens, len(ids))
        ollama = [turn[0], {"role": "assistant", "content": "I look.", "thinking": "hm", "tool_calls": [
            {"function": {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}}}]},
            {"role": "tool", "tool_name": "get_weather", "content": "sunny"}, openai[3]]
        body = {"model": MODEL, "messages": ollama, "stream": False, "options": {"num_predict": 1}}
        self.assertEqual(self.server.post("/api/chat", body)["prompt_eval_count"], len(ids))

    def test_ollama_calls(self):
        call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
        body = {"model": MODEL, "tools": [OLLAMA_WEATHER], "options": {"num_predict": 80},
                "messages": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": call}] * 3 +
                            [{"role": "user", "content": "Weather?"}]}
        whole = self.server.post("/api/chat", {**body, "stream": False})
        calls = [c["function"] for c in whole["message"]["tool_calls"]]
        self.assertEqual((calls[0]["index"], calls[0]["name"]), (0, "get_weather"))
        self.assertIn(calls[0]["arguments"], [{"city": "Paris"}, {"city": "Rome"}])
        lines = self.server.lines("/api/chat", body)
        self.assertEqual([c["function"] for x in lines for c in x["message"].get("tool_calls", [])], calls)
        self.assertEqual("".join(x["message"]["content"] for x in lines), whole["message"]["content"])
        self.assertEqual(lines[-1]["done_reason"], "stop")


class Thinking(Case):
    template = THINK_TEMPLATE

    def test_blocks(self):
        body = {"model": MODEL, "max_tokens": 40, "messages": HELLO,
                "thinking": {"type": "enabled", "budget_tokens": 8}}
        whole = self.server.client.messages.create(**body)
        self.assertEqual([b.type for b in whole.content], ["thinking", "text"])
        with self.server.client.messages.stream(**body) as stream:
            joined = stream.get_final_message()
        self.assertEqual([b.to_dict() for b in joined.content][0], whole.content[0].to_dict())
        self.assertEqual(joined.content[1].text, whole.content[1].text)
        names = [(n, d.get("index")) for n, d in self.server.events("/v1/messages", {**body, "stream": True})
                 if n in ("content_block_start", "content_block_stop", "ping")]
        self.assertEqual(names, [("content_block_start", 0), ("ping", None), ("content_block_stop", 0),
                                 ("content_block_start", 1), ("content_block_stop", 1)])
        for thinking in ({}, {"thinking": {"type": "disabled"}}):
            m = self.server.client.messages.create(model=MODEL, max_tokens=8, messages=HELLO, **thinking)
            self.assertEqual([b.type for b in m.content], ["text"])

    def test_ollama(self):
        body = {"model": MODEL, "messages": HELLO, "options": {"num_predict": 8}}
        whole = self.server.post("/api/chat", {**body, "stream": False, "think": True})
        self.assertTrue(whole["message"]["thinking"])
        lines = self.server.lines("/api/chat", {**body, "think": True})
        self.assertEqual("".join(x["message"].get("thinking", "") for x in lines), whole["message"]["thinking"])
        off = self.server.post("/api/chat", {**body, "stream": False, "think": False})
        self.assertNotIn("thinking", off["message"])
        generated = self.server.post("/api/generate", {"model": MODEL, "prompt": "Say hello.", "stream": False,
                                                       "think": True, "options": {"num_predict": 8}})
        self.assertEqual(generated["thinking"], whole["message"]["thinking"])
        self.assertIn("thinking", self.server.post("/api/show", {"model": MODEL})["capabilities"])
