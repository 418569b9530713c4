#!/usr/bin/env python3
"""Anthropic's, Ollama's and llama-server's interfaces of `argent serve`: python tests/server/adapters_test.py BINARY.

ARGENT_MODELS names the folder of the models. The last line is "N passed, M failed".
"""
import json
import os
import struct
import sys
import tempfile
import unittest

import adapters_harness
from adapters_harness import HELLO, MODEL, OLLAMA_WEATHER, Case, Server
from anthropic_cases import Messages, Thinking, Tools  # noqa: F401
from tool_calls_cases import FreeCalls  # noqa: F401


class Ollama(Case):
    def body(self, **more):
        return {"model": MODEL, "messages": HELLO, "options": {"num_predict": 12}, **more}

    def check_done(self, line):
        self.assertIs(line["done"], True)
        for key in ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
                    "eval_duration"):
            self.assertIsInstance(line[key], int)
            self.assertGreaterEqual(line[key], 0)
        self.assertRegex(line["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")

    def test_chat(self):
        whole = self.server.post("/api/chat", self.body(stream=False))
        self.check_done(whole)
        self.assertEqual((whole["model"], whole["message"]["role"], whole["done_reason"], whole["eval_count"]),
                         (MODEL, "assistant", "length", 12))
        lines = self.server.lines("/api/chat", self.body())  # streams unless told otherwise
        self.assertEqual("".join(x["message"]["content"] for x in lines), whole["message"]["content"])
        self.assertTrue(all(x["done"] is False for x in lines[:-1]))
        self.check_done(lines[-1])
        self.assertEqual(lines[-1]["message"], {"role": "assistant", "content": ""})

    def test_latest(self):
        self.assertEqual(self.server.post("/api/chat", self.body(stream=False, model=MODEL + ":latest"))["model"],
                         MODEL + ":latest")

    def test_generate(self):
        body = {"model": MODEL, "prompt": "Say hello.", "options": {"num_predict": 12}}
        whole = self.server.post("/api/generate", {**body, "stream": False})
        self.check_done(whole)
        chat = self.server.post("/api/chat", self.body(stream=False))
        self.assertEqual(whole["response"], chat["message"]["content"])  # through the chat template
        lines = self.server.lines("/api/generate", body)
        self.assertEqual("".join(x["response"] for x in lines), whole["response"])
        raw = self.server.post("/api/generate", {**body, "stream": False, "raw": True,
                                                 "prompt": "The capital of France is"})
        self.assertIn("Paris", raw["response"])
        self.assertEqual(raw["prompt_eval_count"], 5)
        stop = self.server.post("/api/generate", {**body, "stream": False, "options": {"stop": "help", "num_predict": 60}})
        self.assertEqual(stop["done_reason"], "stop")
        self.assertNotIn("help", stop["response"])
        seeded = {**body, "stream": False, "options": {"seed": 5, "temperature": 1, "num_predict": 12}}
        self.assertEqual(self.server.post("/api/generate", seeded)["response"],
                         self.server.post("/api/generate", seeded)["response"])

    def test_format(self):
        schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"],
                  "additionalProperties": False}
        answer = self.server.post("/api/chat", self.body(stream=False, format=schema, options={"num_predict": 30}))
        self.assertEqual(json.loads(answer["message"]["content"]), {"n": 7})
        answer = self.server.post("/api/generate", {"model": MODEL, "prompt": "Answer in JSON.", "stream": False,
                                                    "format": "json", "options": {"num_predict": 200}})
        if answer["done_reason"] == "stop":
            self.assertIsInstance(json.loads(answer["response"]), dict)
        self.assertTrue(answer["response"].startswith("{"))

    def test_logprobs(self):
        answer = self.server.post("/api/chat", self.body(stream=False, logprobs=True, top_logprobs=2))
        self.assertEqual("".join(t["token"] for t in answer["logprobs"]), answer["message"]["content"])
        self.assertEqual(answer["logprobs"][0]["top_logprobs"][0]["token"], answer["logprobs"][0]["token"])

    def test_models(self):
        names = {m["name"]: m for m in self.server.get("/api/tags")["models"]}
        details = names[MODEL]["details"]
        self.assertEqual((details["family"], details["parameter_size"], details["quantization_level"]),
                         ("llama", "134.5M", "Q4_1"))
        self.assertRegex(names[MODEL]["digest"], "^[0-9a-f]{64}$")
        self.assertEqual([m["name"] for m in self.server.get("/api/ps")["models"]], [MODEL])
        show = self.server.post("/api/show", {"model": MODEL})
        self.assertEqual(show["details"], details)
        self.assertEqual(show["capabilities"], ["completion"])
        self.assertEqual(show["model_info"]["general.architecture"], "llama")
        self.assertEqual(show["model_info"]["llama.block_count"], 30)
        self.assertIsNone(show["model_info"]["tokenizer.ggml.tokens"])
        self.assertIn("im_start", show["template"])
        self.assertRegex(self.server.get("/api/version")["version"], r"^\d+\.\d+\.\d+$")

    def test_keep_alive(self):
        self.assertEqual(self.server.post("/api/generate", {"model": MODEL, "stream": False})["done_reason"], "load")
        self.assertEqual(self.server.post("/api/chat", {"model": MODEL, "messages": [], "stream": False,
                                                        "keep_alive": 0})["done_reason"], "unload")
        self.assertEqual(self.server.get("/api/ps")["models"], [])
        answer = self.server.post("/api/chat", self.body(stream=False, keep_alive="0s"))  # answers, then unloads
        self.assertEqual(answer["eval_count"], 12)
        self.assertGreater(answer["load_duration"], 1000)
        self.assertEqual(self.server.get("/api/ps")["models"], [])
        self.server.post("/api/chat", self.body(stream=False, keep_alive="5m"))
        self.assertEqual(len(self.server.get("/api/ps")["models"]), 1)

    def test_embeddings(self):
        one = self.server.post("/api/embed", {"model": MODEL, "input": "a cat"})
        two = self.server.post("/api/embed", {"model": MODEL, "input": ["a dog", "a cat"]})
        self.assertEqual(two["embeddings"][1], one["embeddings"][0])
        self.assertEqual(two["prompt_eval_count"], 4)
        self.assertAlmostEqual(sum(x * x for x in one["embeddings"][0]), 1, places=5)
        short = self.server.post("/api/embed", {"model": MODEL, "input": "a cat", "dimensions": 8})["embeddings"][0]
        self.assertEqual(len(short), 8)
        self.assertAlmostEqual(sum(x * x for x in short), 1, places=5)
        old = self.server.post("/api/embeddings", {"model": MODEL, "prompt": "a cat"})
        self.assertEqual(old, {"embedding": one["embeddings"][0]})
        self.assertEqual(self.server.post("/api/embed", {"model": MODEL, "input": []})["embeddings"], [])
        self.server.post("/api/embed", {"model": MODEL, "input": "word " * 3000})  # cut
        self.refuses("/api/embed", {"model": MODEL, "input": "word " * 3000, "truncate": False}, "the context 1024")
        self.refuses("/api/embed", {"model": MODEL, "input": ["a", ""]}, "the prompt has no tokens")

    def test_refusals(self):
        for more, words in [({"wrong": 1}, "unsupported field 'wrong'"),
                            ({"options": {"wrong": 1}}, "unsupported field 'options.wrong'"),
                            ({"options": {"num_ctx": 4096}}, "options.num_ctx is 4096"),
                            ({"options": {"mirostat": 1}}, "mirostat"),
                            ({"options": {"temperature": "hot"}}, "options.temperature is a string"),
                            ({"format": "xml"}, "format wants"),
                            ({"keep_alive": "soon"}, "keep_alive wants"),
                            ({"think": "hard"}, "think is 'hard'"),
                            ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
                            ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
                            ({"tools": [OLLAMA_WEATHER]}, "knows no tools"),
                            ({"model": None}, "model is missing")]:
            with self.subTest(words):
                self.refuses("/api/chat", self.body(**more), words)
        for more, words in [({"template": "x"}, "template"), ({"context": [1]}, "context"),
                            ({"suffix": "x"}, "no prefix"), ({"raw": True, "system": "x"}, "exclude")]:
            with self.subTest(words):
                self.refuses("/api/generate", {"model": MODEL, "prompt": "a", **more}, words)
        self.server.post("/api/chat", self.body(model="nobody"), 404)
        for path in ("pull", "push", "create", "copy"):
            self.refuses("/api/" + path, {"model": MODEL}, "not supported", 501)
        self.assertEqual(self.server.raw("DELETE", "/api/delete", {"model": MODEL})[0], 501)
        fine = {"num_ctx": 512, "num_thread": 8, "mirostat": 0, "num_predict": 1, "repeat_last_n": -1, "top_k": -1}
        self.server.post("/api/chat", self.body(stream=False, options=fine))


class LlamaServer(Case):
    PROMPT = "The capital of France is"

    def body(self, **more):
        return {"prompt": self.PROMPT, "n_predict": 8, **more}

    def test_completion(self):
        whole = self.server.post("/completion", self.body())
        self.assertTrue(whole["content"].startswith(" Paris"))
        self.assertEqual((whole["stop"], whole["stop_type"], whole["stopping_word"], whole["tokens_predicted"],
                          whole["tokens_evaluated"], whole["prompt"], whole["model"], whole["tokens"]),
                         (True, "limit", "", 8, 5, self.PROMPT, MODEL, []))
        self.assertEqual(whole["timings"]["predicted_n"], 8)
        events = self.server.events("/completion", self.body(stream=True))
        self.assertEqual({name for name, _ in events}, {None})
        data = [d for _, d in events]
        self.assertEqual("".join(d["content"] for d in data), whole["content"])
        self.assertEqual([d["stop"] for d in data], [False] * (len(data) - 1) + [True])
        same = ("stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "prompt", "has_new_line")
        self.assertEqual({k: data[-1][k] for k in same}, {k: whole[k] for k in same})

    def test_prompts(self):
        ids = self.server.post("/tokenize", {"content": self.PROMPT})["tokens"]
        whole = self.server.post("/completion", self.body())["content"]
        for prompt in (ids, ["The capital", *ids[2:]], [ids[0], " capital", *ids[2:]], [self.PROMPT]):
            self.assertEqual(self.server.post("/completion", self.body(prompt=prompt))["content"], whole)
        special = self.server.post("/completion", self.body(prompt="<|im_start|>user", n_predict=1))
        self.assertEqual(special["tokens_evaluated"], 2)

    def test_stop(self):
        word = self.server.post("/completion", self.body(n_predict=40, stop=["\n"]))
        self.assertEqual((word["stop_type"], word["stopping_word"]), ("word", "\n"))
        self.assertNotIn("\n", word["content"])
        prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        end = self.server.post("/completion", self.body(prompt=prompt, n_predict=60))
        self.assertEqual(end["stop_type"], "eos")
        on = self.server.post("/completion", self.body(prompt=prompt, n_predict=60, ignore_eos=True))
        self.assertEqual((on["stop_type"], on["tokens_predicted"]), ("limit", 60))

    def test_probabilities(self):
        whole = self.server.post("/completion", self.body(n_probs=3, return_tokens=True))
        probs = whole["completion_probabilities"]
        self.assertEqual([p["id"] for p in probs], whole["tokens"])
        self.assertEqual("".join(p["token"] for p in probs), whole["content"])
        for p in probs:
            self.assertEqual(len(p["top_logprobs"]), 3)
            self.assertEqual(p["top_logprobs"][0]["id"], p["id"])
            self.assertEqual(bytes(p["bytes"]).decode(), p["token"])
            self.assertLessEqual(p["logprob"], 0)
        data = [d for _, d in self.server.events("/completion", self.body(n_probs=3, return_tokens=True, stream=True))]
        self.assertEqual([t for d in data for t in d["tokens"]], whole["tokens"])
        self.assertEqual([p for d in data for p in d.get("completion_probabilities", [])], probs)

    def test_bias(self):
        paris = self.server.post("/tokenize", {"content": " Paris"})["tokens"][0]
        for bias in ([[paris, False]], [[" Paris", -100]], {str(paris): False}, {" Paris": -1000.0}):
            answer = self.server.post("/completion", self.body(logit_bias=bias))
            self.assertFalse(answer["content"].startswith(" Paris"), bias)
        answer = self.server.post("/completion", self.body(logit_bias=[[paris, 1000]], n_predict=3))
        self.assertEqual(answer["content"], " Paris Paris Paris")
        for bias in ([[10**9, 1]], [[1]], [[1, "x"]], 7, [[1, True]]):
            self.refuses("/completion", self.body(logit_bias=bias), "logit_bias")

    def test_grammars(self):
        answer = self.server.post("/completion", self.body(grammar='root ::= " Rome" | " Oslo"', n_predict=20))
        self.assertIn(answer["content"], (" Rome", " Oslo"))
        self.assertEqual(answer["stop_type"], "eos")
        answer = self.server.post("/completion", self.body(json_schema={"enum": [42]}, n_predict=20))
        self.assertEqual(json.loads(answer["content"]), 42)
        self.refuses("/completion", self.body(grammar="root ::= x"), "x")
        self.refuses("/completion", self.body(grammar='root ::= "a"', json_schema={}), "exclude")

    def test_known_fields(self):
        """What clients of llama-server send by habit is taken where it changes nothing, and refused where it would."""
        whole = self.server.post("/completion", self.body())["content"]
        habits = {"cache_prompt": True, "id_slot": -1, "n_keep": 0, "typical_p": 1.0, "mirostat": 0, "mirostat_tau": 5,
                  "mirostat_eta": 0.1, "dry_multiplier": 0, "dry_base": 1.75, "xtc_probability": 0,
                  "xtc_threshold": 0.1, "dynatemp_range": 0, "dynatemp_exponent": 1, "top_n_sigma": -1,
                  "repeat_last_n": 64, "repeat_penalty": 1.0, "seed": -1, "image_data": [], "lora": [], "min_keep": 0,
                  "samplers": ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
                  "temperature": -1, "top_k": 0, "timings_per_token": False, "post_sampling_probs": False,
                  "stop": [], "grammar": "", "logit_bias": [], "t_max_predict_ms": 0}
        self.assertEqual(self.server.post("/completion", self.body(**habits))["content"], whole)
        for more, words in [({"wrong": 1}, "unsupported field 'wrong'"), ({"mirostat": 2}, "mirostat"),
                            ({"dry_multiplier": 0.8}, "dry_multiplier"), ({"typical_p": 0.5}, "typical_p"),
                            ({"samplers": ["temperature", "top_k"]}, "the order is"),
                            ({"samplers": ["magic"]}, "there is no"), ({"lora": [{"id": 0}]}, "lora"),
                            ({"n_predict": 0}, "n_predict is 0"), ({"prompt": None}, "prompt is missing"),
                            ({"prompt": ["a", "b"]}, "several prompts"), ({"prompt": []}, "no tokens"),
                            ({"prompt": [[1]]}, "wants token ids"), ({"prompt": [-1]}, "wants token ids"),
                            ({"prompt": "word " * 2000}, "the context 1024")]:
            with self.subTest(words):
                answer = self.refuses("/completion", self.body(stream=True, **more), words)
                self.assertEqual((answer["error"]["code"], answer["error"]["type"]), (400, "invalid_request_error"))

    def test_tokens(self):
        text = "héllo 日本 🦜 <|im_end|>"
        pieces = self.server.post("/tokenize", {"content": text, "with_pieces": True})["tokens"]
        joined = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces)
        self.assertEqual(joined.decode(), text)
        ids = self.server.post("/tokenize", {"content": text})["tokens"]
        self.assertEqual([p["id"] for p in pieces], ids)
        self.assertEqual(self.server.post("/detokenize", {"tokens": ids})["content"], text)
        plain = self.server.post("/tokenize", {"content": text, "parse_special": False})["tokens"]
        self.assertGreater(len(plain), len(ids))
        self.assertEqual(self.server.post("/detokenize", {"tokens": plain})["content"], text)
        self.refuses("/detokenize", {"tokens": [1.5]}, "tokens wants token ids")
        self.refuses("/tokenize", {}, "content is missing")
        half = self.server.post("/detokenize", {"tokens": ids[2:5]})["content"]  # inside of a character
        self.assertIsInstance(half, str)

    def test_bytes(self):
        """Tokens that are no whole characters, one at a time and at the end of an answer."""
        bird = self.server.post("/tokenize", {"content": " 🦜"})["tokens"]
        self.assertGreater(len(bird), 1)
        answer = self.server.post("/completion", self.body(n_probs=1, logit_bias=[[bird[0], 1000]], n_predict=3))
        self.assertIn("\ufffd", answer["content"])
        self.assertEqual([p["id"] for p in answer["completion_probabilities"]], [bird[0]] * 3)
        raw = bytes(b for p in answer["completion_probabilities"] for b in p["bytes"])
        with self.assertRaises(UnicodeDecodeError):
            raw.decode()

    def test_properties(self):
        props = self.server.get("/props")
        self.assertEqual(props["default_generation_settings"]["n_ctx"], 1024)
        self.assertEqual((props["total_slots"], props["model_alias"], props["eos_token"]), (4, MODEL, "<|im_end|>"))
        self.assertEqual(len(self.server.get("/slots")), 4)
        prompt = self.server.post("/apply-template", {"messages": HELLO})["prompt"]
        self.assertTrue(prompt.endswith("Say hello.<|im_end|>\n<|im_start|>assistant\n"))
        self.refuses("/infill", {"input_prefix": "a", "input_suffix": "b"}, "no prefix, no suffix, no middle token")
        self.refuses("/infill", {"input_prefix": "a"}, "input_suffix is missing")

    def test_embedding(self):
        one = self.server.post("/embedding", {"content": "a cat"})
        ids = self.server.post("/tokenize", {"content": "a cat"})["tokens"]
        self.assertEqual([e["index"] for e in one], [0])
        self.assertEqual(self.server.post("/embedding", {"content": ids}), one)
        two = self.server.post("/embedding", {"content": ["a dog", "a cat"]})
        self.assertEqual(two[1]["embedding"], one[0]["embedding"])
        ollama = self.server.post("/api/embed", {"model": MODEL, "input": "a cat"})["embeddings"]
        self.assertEqual(one[0]["embedding"], ollama)


def with_fim_tokens(path, target):
    """A copy of a model file that names tokens 8, 9 and 10 as those of fill-in-the-middle prompts."""
    with open(path, "rb") as file:
        magic, version, n_tensors, n_keys = struct.unpack("<4sIQQ", file.read(24))
        rest = file.read()
    keys = b""
    for name, value in ((b"fim_pre", 8), (b"fim_suf", 9), (b"fim_mid", 10)):
        name = b"tokenizer.ggml." + name + b"_token_id"
        keys += struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, value)
    name = b"general.padding"  # the tensors' data stays on its alignment of 32 bytes
    keys += struct.pack("<Q", len(name)) + name + struct.pack("<I", 8)
    n = -(len(keys) + 8) % 32
    keys += struct.pack("<Q", n) + b"x" * n
    with open(target, "wb") as file:
        file.write(struct.pack("<4sIQQ", magic, version, n_tensors, n_keys + 4) + keys + rest)


class FillInTheMiddle(unittest.TestCase):
    def test_prompts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "fim.gguf")
            with_fim_tokens(os.path.join(os.environ["ARGENT_MODELS"], MODEL + ".gguf"), path)
            server = Server(model=path)
            try:
                self.check(server)
            finally:
                server.stop()

    def check(self, server):
        pre, suf, mid = (server.post("/detokenize", {"tokens": [i]})["content"] for i in (8, 9, 10))
        body = {"input_prefix": "def f(<|im_end|>", "input_suffix": "  return x", "n_predict": 4}
        answer = server.post("/infill", body)
        self.assertEqual(answer["prompt"], f"{pre}def f(<|im_end|>{suf}  return x{mid}")
        self.assertIn(answer["tokens_predicted"], range(5))
        n = sum(len(server.post("/tokenize", {"content": text, "parse_special": False})["tokens"])
                for text in (body["input_prefix"], body["input_suffix"]))
        self.assertEqual(answer["tokens_evaluated"], n + 3)  # what a text spells is no control token
        more = server.post("/infill", {**body, "prompt": "y", "input_extra": [{"filename": "a.py", "text": "A = 1\n"}]})
        self.assertTrue(more["prompt"].endswith(f"{pre}def f(<|im_end|>y{suf}  return x{mid}"), more["prompt"])
        self.assertIn("a.py", more["prompt"])
        self.assertIn("A = 1", more["prompt"])
        self.assertEqual(server.post("/api/show", {"model": "fim"})["capabilities"], ["completion", "insert"])
        ollama = server.post("/api/generate", {"model": "fim", "prompt": body["input_prefix"], "stream": False,
                                               "suffix": body["input_suffix"], "options": {"num_predict": 4}})
        self.assertEqual((ollama["response"], ollama["prompt_eval_count"]), (answer["content"], n + 3))


def main():
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK) or not os.environ.get("ARGENT_MODELS"):
        sys.exit("usage: ARGENT_MODELS=FOLDER python adapters_test.py BINARY [TEST ...]")
    adapters_harness.BINARY = os.path.abspath(sys.argv[1])
    names = sys.argv[2:]
    loader = unittest.defaultTestLoader
    module = sys.modules["__main__"]
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    # a test with several failed subtests counts once
    failed = len({getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
