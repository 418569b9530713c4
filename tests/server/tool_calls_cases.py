"""Calls that a model may make or not, through every interface. Run by adapters_test.py.

The model here is small and calls nothing by itself: a message of the assistant that has begun a call is gone on with, or
calls before show it how. Whatever it then draws has to be a call of one of the tools.
"""
import json

from adapters_harness import HELLO, MODEL, TOOLS_TEMPLATE, Case

CHAT = "/v1/chat/completions"
TRIP = {"type": "object", "additionalProperties": False, "required": ["city", "days", "tags"], "properties": {
    "city": {"enum": ["Paris", "Rome", "Saint \"X\""]}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "tags": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 8}},
    "price": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0, "maximum": 1000}]}}}
CODE = {"type": "object", "additionalProperties": False, "required": ["code"],
        "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"}}}
TOOLS = [{"type": "function", "function": {"name": "book_trip", "description": "Books.", "parameters": TRIP}},
         {"type": "function", "function": {"name": "check-code", "parameters": CODE}}]
ASK = [{"role": "user", "content": "Book me a trip to Rome."}]
SHOWN = '<tool_call>\n{"name": "check-code", "arguments": {"code": "ABC-12"}}\n</tool_call>'
HABIT = [{"role": "user", "content": "Check."}, {"role": "assistant", "content": SHOWN}] * 3 + \
        [{"role": "user", "content": "Check."}]


def begun(text):
    return ASK + [{"role": "assistant", "content": text}]


class FreeCalls(Case):
    template = TOOLS_TEMPLATE

    def chat(self, messages, **more):
        body = {"messages": messages, "tools": TOOLS, "max_tokens": 250, "temperature": 1.5, "top_p": 1, "min_p": 0,
                "top_k": 0, **more}
        choice = self.server.post(CHAT, body)["choices"][0]
        return choice["message"], choice["finish_reason"]

    def good(self, name, arguments):
        """Keeps to the schema of its tool."""
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if name == "check-code":
            self.assertEqual(set(arguments), {"code"})
            self.assertRegex(arguments["code"], "^[A-Z]{3}-[0-9]{2}$")
            return
        self.assertEqual(name, "book_trip")
        self.assertIn(set(arguments) - {"price"}, [{"city", "days", "tags"}])
        self.assertIn(arguments["city"], TRIP["properties"]["city"]["enum"])
        self.assertTrue(type(arguments["days"]) is int and 1 <= arguments["days"] <= 14, arguments)
        self.assertTrue(len(arguments["tags"]) <= 3 and all(len(t) <= 8 for t in arguments["tags"]), arguments)
        self.assertTrue(arguments.get("price") is None or 0 <= arguments["price"] <= 1000, arguments)

    def ids(self, text):
        return self.server.post("/tokenize", {"content": text, "add_special": False})["tokens"]

    def ending(self):
        """A liking for the end of the answer, which may only come behind a call that has begun."""
        return {str(self.server.post("/tokenize", {"content": "<|im_end|>", "add_special": False, "parse_special": True})
                    ["tokens"][0]): 100}

    def test_ten_seeds(self):
        for seed in range(10):
            message, finish = self.chat(begun("<tool_call>\n"), seed=seed, logit_bias=self.ending())
            self.assertEqual((finish, len(message["tool_calls"])), ("tool_calls", 1))
            self.assertFalse((message["content"] or "").strip())
            call = message["tool_calls"][0]["function"]
            self.good(call["name"], call["arguments"])

    def test_begun_in_the_middle(self):
        message, finish = self.chat(begun('I look. <tool_call>\n{"name": "book_trip", "arguments": {"city": "Saint \\"'),
                                    seed=1, logit_bias=self.ending())
        call = message["tool_calls"][0]["function"]
        self.good(call["name"], call["arguments"])
        self.assertEqual((call["name"], json.loads(call["arguments"])["city"]), ("book_trip", 'Saint "X"'))
        # A token that ends the mark, and has more: what cannot begin a call does not come.
        for text, may in ((">{", True), (">\n", True), ("><", False), (">.", False)):
            first = self.ids(text)[0]
            if self.server.post("/detokenize", {"tokens": [first]})["content"] != text:
                continue  # two tokens
            message, _ = self.chat(begun("I look. <tool_call"), seed=1, logit_bias={str(first): 100}, max_tokens=1,
                                   logprobs=True)
            self.assertEqual(message["content"] == "" if may else message["content"] != text, True, (text, message))

    def test_streams_are_the_answers(self):
        for seed, messages in ((1, begun("<tool_call>\n")), (2, HABIT)):
            body = {"messages": messages, "tools": TOOLS, "max_tokens": 120, "temperature": 1.2, "seed": seed}
            whole = self.server.post(CHAT, body)["choices"][0]
            status, _, text = self.server.raw("POST", CHAT, {**body, "stream": True})
            content, calls, finish = "", [], None
            for line in text.split("\n\n")[:-2]:
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                content += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls", []):
                    if "id" in call:
                        calls.append([call["function"]["name"], ""])
                    calls[call["index"]][1] += call["function"]["arguments"]
                finish = choice["finish_reason"] or finish
            wanted = [[c["function"]["name"], c["function"]["arguments"]] for c in whole["message"].get("tool_calls", [])]
            self.assertEqual((content, calls, finish),
                             (whole["message"]["content"] or "", wanted, whole["finish_reason"]))

    def test_one_call(self):
        several = 0
        for seed in range(3):
            message, _ = self.chat(HABIT, seed=seed, temperature=0.3, max_tokens=100, ignore_eos=True,
                                   parallel_tool_calls=False)
            self.assertLessEqual(len(message.get("tool_calls", [])), 1)
            message, _ = self.chat(HABIT, seed=seed, temperature=0.3, max_tokens=100, ignore_eos=True)
            several += len(message.get("tool_calls", [])) > 1
        self.assertGreater(several, 0, "nothing was held back")

    def test_calls_beside_a_format(self):
        """An answer is a call, or keeps to the format."""
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        seen = set()
        for messages in (HABIT, HELLO):
            for seed in range(2):
                message, finish = self.chat(messages, seed=seed, temperature=0.2, response_format=form, max_tokens=60)
                if "tool_calls" in message:
                    self.good(message["tool_calls"][0]["function"]["name"],
                              message["tool_calls"][0]["function"]["arguments"])
                    self.assertEqual((message["content"], finish), (None, "tool_calls"))
                    seen.add("call")
                else:
                    self.assertEqual(set(json.loads(message["content"])), {"ok"})
                    seen.add("text")
        self.assertEqual(seen, {"call", "text"})

    def test_strict(self):
        odd = {"type": "object", "properties": {"x": {"not": {"type": "null"}}}}
        tool = {"type": "function", "function": {"name": "odd", "parameters": odd}}
        for choice in ("auto", "required"):
            body = {"messages": ASK, "tools": [{**tool, "function": {**tool["function"], "strict": True}}],
                    "tool_choice": choice, "max_tokens": 4}
            self.refuses(CHAT, body, "tools/0/parameters#/properties/x: 'not'")
        self.refuses("/v1/messages", {"model": MODEL, "max_tokens": 4, "messages": ASK,
                                      "tools": [{"name": "odd", "input_schema": odd, "strict": True}]}, "tools/0/parameters#")
        self.refuses("/v1/responses", {"input": "x", "tools": [{"type": "function", "name": "odd", "parameters": odd,
                                                                "strict": True}]}, "tools/0/parameters#")
        for messages, choice in ((begun('<tool_call>{"name": "odd", "arguments": {"y": 1'), "auto"), (ASK, "required")):
            message, _ = self.chat(messages, tools=[tool] + TOOLS[1:], tool_choice=choice, max_tokens=400, temperature=0.5,
                                   parallel_tool_calls=False, logit_bias={**self.closers(), **self.ending()})
            self.assertIsInstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)

    def test_ollama_tools(self):
        for tools, words in (([5], "tools[0] is a number"), ([{"function": {}}], "tools[0].function.name is missing"),
                             ([{"type": "function"}], "tools[0].function is missing")):
            self.refuses("/api/chat", {"model": MODEL, "messages": ASK, "tools": tools}, words)
        odd = {"type": "object", "properties": {"x": {"not": {}}}}
        self.refuses("/api/chat", {"model": MODEL, "messages": ASK, "format": odd}, "format: #/properties/x: 'not'")

    def closers(self):
        """A liking for what ends objects and strings."""
        return {str(self.ids(t)[0]): 8 for t in ('"', "}", '"}', "}}")}

    def test_cut(self):
        message, finish = self.chat(begun("Look: <tool_call>\n"), max_tokens=5, seed=1)
        self.assertEqual((finish, "tool_calls" in message), ("length", False))
        self.assertTrue(message["content"].startswith(("{", "\n", " ")), message)  # what came, not what was given

    def test_other_interfaces(self):
        tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
        for seed in range(2):
            body = {"model": MODEL, "max_tokens": 120, "temperature": 1, "tools": tools, "messages": begun("<tool_call>")}
            blocks = [b for b in self.server.post("/v1/messages", body)["content"] if b["type"] == "tool_use"]
            self.assertTrue(blocks)
            for block in blocks:
                self.good(block["name"], block["input"])
            body = {"model": MODEL, "stream": False, "tools": TOOLS, "messages": begun("<tool_call>"),
                    "options": {"num_predict": 120, "temperature": 1.2, "seed": seed}}
            calls = self.server.post("/api/chat", body)["message"]["tool_calls"]
            for call in calls:
                self.good(call["function"]["name"], call["function"]["arguments"])
            turns = [{"role": m["role"], "content": m["content"]} for m in HABIT]
            body = {"input": turns, "max_output_tokens": 60, "temperature": 0.8,
                    "tools": [{"type": "function", **t["function"]} for t in TOOLS]}
            for item in self.server.post("/v1/responses", body)["output"]:
                if item["type"] == "function_call":
                    self.good(item["name"], item["arguments"])
