"""inspect, check, template, graph, gguf, tokenize: what they say of files."""
import json
import os
import subprocess
import tempfile
import unittest

import harness
from harness import GEMMA, SMOL, Run, environment, model


class Inspect(unittest.TestCase):
    def test_text_and_json(self):
        run = Run("inspect")
        for fact in ["llama", "Q4_1", "49152", "8192", "chat template", "in the file"]:
            self.assertIn(fact, run.out)
        info = Run("inspect", GEMMA, "--json").json()
        self.assertEqual((info["architecture"], info["supported"], info["context"]), ("gemma3", True, 32768))
        self.assertEqual(sum(f["bytes"] for f in info["formats"]), info["tensor_bytes"])
        self.assertEqual(info["file_bytes"], os.path.getsize(model(GEMMA)))
        self.assertEqual(info["tokenizer"]["bos"], 2)
        self.assertEqual(info["chat_template"], "built-in gemma")
        # 3 of 18 layers see everything: one KV head of 256, K and V, 2 bytes each
        self.assertEqual(info["kv"]["bytes_per_1024_positions"], 3 * 256 * 2 * 2 * 1024)
        self.assertEqual(info["kv"]["window"], 512)

    def test_keys_and_tensors(self):
        info = Run("inspect", "--keys", "--tensors", "--json").json()
        self.assertEqual(info["keys"]["llama.block_count"]["value"], 30)
        self.assertEqual(len(info["tensors"]), info["n_tensors"])
        self.assertEqual(len(info["keys"]), info["n_keys"])
        text = Run("inspect", "--keys", "--tensors").out
        self.assertIn("token_embd.weight", text)
        self.assertIn("tokenizer.ggml.tokens", text)

    def test_closed_pipe(self):
        process = subprocess.Popen([harness.BINARY, "inspect", "--keys", "--tensors"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, env=environment())
        process.stdout.close()
        self.assertEqual(process.stderr.read(), b"")
        process.stderr.close()
        self.assertEqual(process.wait(), 5)


class Check(unittest.TestCase):
    def test_fits(self):
        report = Run("check", "--json", "-c", "512", "-t", "1").json()
        self.assertTrue(report["fits"])
        self.assertEqual(report["unsupported"], [])
        device = report["devices"][0]
        self.assertEqual(device["name"], "cpu")
        self.assertEqual(device["total_bytes"], device["weights_bytes"] + device["kv_bytes"] + device["workspace_bytes"])
        self.assertEqual(device["kv_bytes"], 30 * 3 * 64 * 2 * 2 * 512)
        twice = Run("check", "--json", "-c", "512", "--cache-type", "f32").json()["devices"][0]
        self.assertEqual(twice["kv_bytes"], 2 * device["kv_bytes"])
        mixed = Run("check", "--json", "-c", "512", "--cache-type", "f32,f16").json()["devices"][0]
        self.assertEqual(mixed["kv_bytes"] * 2, 3 * device["kv_bytes"])
        for args in [("--cache-type", "q8_0"), ("-ctk", "q8_0", "-ctv", "q8_0"), ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")]:
            report = Run("check", "--json", "-c", "512", *args).json()
            self.assertEqual(report["devices"][0]["kv_bytes"] * 32, 17 * device["kv_bytes"])
            self.assertEqual(report["cache_type"], "q8_0")
        self.assertEqual(Run("check", "--json", "-c", "512", "-ctv", "bf16").json()["cache_type"], "f16,bf16")

    def test_does_not_fit(self):
        run = Run("check", "--json", "-c", "500000000")
        self.assertEqual(run.rc, 6)
        self.assertFalse(json.loads(run.out)["fits"])
        self.assertEqual(len(run.err.splitlines()), 1)
        self.assertIn("--ctx", run.err)
        self.assertEqual(Run("ask", "x", "-c", "500000000").rc, 6)
        self.assertIn("does not fit", Run("check", "-c", "500000000").out)


class Template(unittest.TestCase):
    MESSAGES = '[{"role":"system","content":"S"},{"role":"user","content":"Grüße"}]'

    def test_without_a_model(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write("{{ bos_token }}|{{ flag }}|{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ add_generation_prompt }}")
            file.flush()
            args = ["template", "--chat-template", file.name, "--messages", "-"]
            none = {"ARGENT_MODELS": "/no/such/folder"}
            run = Run(*args, "--var", 'bos_token="<s>"', "--var", "flag=[1, true]", stdin=self.MESSAGES, env=none)
            self.assertEqual((run.rc, run.out), (0, "<s>|[1, True]|system:S;user:Grüße;True"), run.err)
            run = Run(*args, "--no-generation-prompt", stdin=self.MESSAGES, env=none)
            self.assertEqual(run.out, "||system:S;user:Grüße;False")
            spans = Run(*args, "--json", stdin=self.MESSAGES, env=none).json()
            self.assertEqual(spans["prompt"], "||system:S;user:Grüße;True")

    def test_models_and_names(self):
        own = Run("template", "--messages", "-", stdin=self.MESSAGES).out
        self.assertEqual(own, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nGrüße<|im_end|>\n<|im_start|>assistant\n")
        self.assertEqual(Run("template", "--chat-template", "chatml", "--messages", "-", stdin=self.MESSAGES).out, own)
        self.assertIn("Grüße", Run("template", GEMMA, "--messages", "-", stdin=self.MESSAGES).out)
        wrapped = Run("template", "--messages", "-", stdin='{"messages": %s}' % self.MESSAGES).out
        self.assertEqual(wrapped, own)

    def test_errors_have_a_place(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write("line\n{% for %}")
            file.flush()
            run = Run("template", "--chat-template", file.name, "--messages", "-", stdin="[]")
            self.assertEqual(run.rc, 2)
            self.assertIn(":2:", run.err)
            self.assertEqual(Run("ask", "x", "--chat-template", file.name).rc, 2)


class Graph(unittest.TestCase):
    def test_stages_and_formats(self):
        nodes = {}
        for stage in ["built", "rows", "placed", "fused", "aliased", "planned"]:
            graph = Run("graph", "--stage", stage, "--format", "json").json()
            nodes[stage] = len(graph["nodes"])
        self.assertLess(nodes["fused"], nodes["placed"])
        self.assertTrue(Run("graph", "--format", "dot").out.startswith("digraph"))
        self.assertRegex(Run("graph", "--tokens", "512", "--depth", "1000").out, r"512 tokens.*1000 positions before")
        self.assertEqual(Run("graph", "--stage", "x").rc, 2)
        self.assertEqual(Run("graph", "--outputs", "2").rc, 2)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "g.txt")
            self.assertEqual(Run("graph", "-o", path).out, "")
            self.assertIn("nodes", open(path).read())
            self.assertEqual(Run("graph", "-o", "/no/such/folder/g").rc, 5)


class Gguf(unittest.TestCase):
    def test_split_and_merge(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix, whole = os.path.join(folder, "m"), os.path.join(folder, "whole.gguf")
            files = Run("gguf", "split", SMOL, prefix, "--max-size", "40M", "--json").json()["files"]
            self.assertEqual(len(files), 3)
            again = Run("gguf", "split", SMOL, prefix, "--max-size", "40M")
            self.assertEqual(again.rc, 2)
            self.assertIn("--force", again.err)
            self.assertEqual(Run("inspect", files[1]["path"], "--json").json()["shards"], 3)
            self.assertEqual(Run("gguf", "merge", files[2]["path"], whole).rc, 0)
            with open(whole, "rb") as a, open(model(), "rb") as b:
                self.assertEqual(a.read(), b.read())
            self.assertEqual(Run("gguf", "merge", files[0]["path"], whole).rc, 2)
            self.assertEqual(Run("gguf", "merge", files[0]["path"], whole, "--force").rc, 0)
            os.remove(files[1]["path"])
            run = Run("inspect", files[0]["path"])
            self.assertEqual(run.rc, 4)
            self.assertIn("00002-of-00003", run.err)
            self.assertEqual(len(Run("gguf", "split", "-m", SMOL, os.path.join(folder, "t"), "--max-tensors", "100", "--json").json()["files"]), 3)
        for args in [["split", SMOL], ["split", SMOL, "x"], ["merge", SMOL], ["split", SMOL, "x", "--max-size", "0"],
                     ["split", SMOL, "x", "--max-size", "5Q"]]:
            self.assertEqual(Run("gguf", *args).rc, 2, args)


class Tokenize(unittest.TestCase):
    def test_options(self):
        ids = lambda *args, **kw: [int(i) for i in Run("tokenize", *args, "--ids", **kw).out.split()]
        self.assertEqual(ids(GEMMA, "hi")[0], 2)
        self.assertEqual(ids(GEMMA, "hi", "--no-bos"), ids(GEMMA, "hi")[1:])
        self.assertEqual(ids("<|im_end|>"), [2])
        self.assertGreater(len(ids("<|im_end|>", "--no-special")), 1)
        self.assertEqual(ids("--stdin", stdin="a\n"), ids("a\n"))
        self.assertTrue(ids("--stdin", stdin=b"\xff\x00\xfe"))


if __name__ == "__main__":
    unittest.main()
