"""Help, positionals, options, exit codes and messages of wrong input."""
import json
import os
import subprocess
import tempfile
import unittest

import harness
from harness import GEMMA, SMOL, Run, model, write_gguf

COMMANDS = "ask chat complete bench perplexity inspect check tokenize template logits graph".split()


class Help(unittest.TestCase):
    def test_every_command_has_help_with_examples(self):
        for command in [[c] for c in COMMANDS] + [["gguf", "split"], ["gguf", "merge"]]:
            run = Run(*command, "--help")
            self.assertEqual(run.rc, 0, command)
            self.assertIn("argent " + " ".join(command), run.out, command)
            for option in ["--model", "--device", "--isa", "--threads", "--ctx", "--json"]:
                self.assertIn(option, run.out, command)

    def test_root(self):
        run = Run("--help")
        self.assertEqual(run.rc, 0)
        for command in COMMANDS + ["gguf"]:
            self.assertIn(command, run.out)
        self.assertIn("ARGENT_MODELS", run.out)
        self.assertRegex(Run("--version").out, r"^argent \d+\.\d+\.\d+")


class WrongInput(unittest.TestCase):
    def fails(self, code, *args, has="", **kw):
        run = Run(*args, **kw)
        self.assertEqual(run.rc, code, (args, run.out, run.err))
        self.assertEqual(run.out, "", args)
        lines = run.err.splitlines()
        self.assertEqual(len(lines), 1, (args, run.err))
        self.assertTrue(lines[0].startswith("argent: "), run.err)
        self.assertIn(has, lines[0])
        return lines[0]

    def test_flags(self):
        self.fails(2, "ask", "--nonsense", "x", has="--nonsense")
        self.fails(2, "nonsense")
        self.fails(2, has="subcommand")
        self.fails(2, "gguf", has="subcommand")
        self.fails(2, "ask", "x", "--ctx", "0", has="--ctx")
        self.fails(2, "ask", "x", "-t", "-3")
        self.fails(2, "ask", "x", "--cache-type", "q9", has="wanted f16, bf16, f32 or q8_0")
        self.fails(2, "ask", "x", "--cache-type", "f16,q9", has="--cache-type f16,q9: wanted")
        self.fails(2, "ask", "x", "--cache-type", "f16,f32,q8_0", has="--cache-type f16,f32,q8_0: wanted")
        self.fails(2, "ask", "x", "--cache-type", "f16,", has="--cache-type f16,: wanted")
        self.fails(2, "ask", "x", "-ctk", "q9", has="--cache-type-k q9")
        self.fails(2, "ask", "x", "-ctv", "", has="the value is empty")
        self.fails(2, "ask", "x", "--activations", "f64", has="f64")
        self.fails(3, "ask", "x", "--device", "tpu", has="tpu")
        self.fails(2, "ask", "x", "--max-token", "3", has="did you mean --max-tokens?")
        self.fails(2, "ask", "x", "--cxt", "3", has="did you mean --ctx?")
        self.fails(2, "inpsect", has="did you mean inspect?")
        self.fails(2, "gguf", "mrege", "a", "b", has="did you mean merge?")
        self.fails(2, "ask", "x", env={"ARGENT_THREADS": "many"}, has="ARGENT_THREADS")

    def test_where_weights_are_to_be(self):
        for args in [["ask", "x"], ["complete", "x"], ["bench"], ["check"], ["graph"], ["inspect"], ["tokenize", "x"],
                     ["template", "--messages", "m.json"], ["gguf", "split", "m"], ["gguf", "merge", "m"]]:
            self.fails(2, *args, "--weights", "bogus", has="--weights bogus: wanted auto, resident or mapped")

    def test_device_and_isa(self):
        for args in [["ask", "x"], ["complete", "x"], ["bench"], ["graph"], ["inspect"], ["tokenize", "x"],
                     ["template", "--messages", "m.json"], ["gguf", "split", "m"], ["gguf", "merge", "m"]]:
            self.fails(3, *args, "--device", "tpu", has="--device tpu: wanted cpu, cuda:0")
            self.fails(2, *args, "--isa", "sse9", has="--isa sse9: wanted baseline, avx2, avxvnni or avx512")

    def test_cuda_devices(self):
        for name in ["cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cuda:4294967296"]:
            self.fails(2, "ask", "x", "--device", name, has=f"--device {name}: wanted cuda, cuda:0")
        self.fails(3, "ask", "x", "--device", "cuda0", has="--device cuda0: wanted cpu, cuda:0")
        self.fails(3, "ask", "x", "--device", "cuda:999", has="--device cuda:999: ")

    def test_empty_values(self):
        for args in [("ask", "x", "-m", ""), ("ask", "x", "--device", ""), ("complete", "x", "-n", ""),
                     ("logits", "--tokens", "1", "--out", ""), ("template", "--messages", "m.json", "--tools", "")]:
            self.fails(2, *args, has="the value is empty")

    def test_sampling_ranges(self):
        for flag, value in [("--temp", "-1"), ("--temp", "nan"), ("--top-p", "0"), ("--top-p", "1.5"), ("--min-p", "2"),
                            ("--repeat-penalty", "0"), ("--seed", "-1"), ("--top-k", "x")]:
            self.fails(2, "ask", "x", flag, value, has=value)

    def test_models(self):
        self.fails(4, "ask", "no-such-model", "x", has="no-such-model")
        self.fails(4, "inspect", "/no/such/file.gguf", has="/no/such/file.gguf")
        self.fails(4, "ask", "x", env={"ARGENT_MODELS": "/no/such/folder"}, has="/no/such/folder")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.gguf")
            for content in [b"", b"GGUF", b"hello" * 100]:
                with open(path, "wb") as file:
                    file.write(content)
                for command in [["inspect"], ["check"], ["graph"]]:
                    self.fails(2, *command, path, has=path)
            self.fails(2, "ask", path, "x", has=path)

    def test_unknown_architecture_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.gguf")
            write_gguf(path, {"general.architecture": "frobnicator", "frobnicator.block_count": 3},
                       [("w", [32], 0, b"\0" * 128)])
            for command in [["ask", path, "x"], ["chat", path], ["graph", path], ["complete", path, "x"]]:
                line = self.fails(3, *command, has="frobnicator")
                self.assertIn("llama", line)  # what there is
            run = Run("inspect", path)
            self.assertEqual(run.rc, 0, run.err)
            self.assertIn("frobnicator", run.out)
            self.assertRegex(run.out, r"runs +no: ")
            info = Run("inspect", path, "--json").json()
            self.assertEqual((info["architecture"], info["supported"], info["sizes"]["layers"]), ("frobnicator", False, 3))
            run = Run("check", path, "--json")
            self.assertEqual(run.rc, 3)
            report = json.loads(run.out)
            self.assertFalse(report["fits"])
            self.assertTrue(any("frobnicator" in s for s in report["unsupported"]))

    def test_too_many_words(self):
        self.fails(2, "ask", SMOL, "x", "y")
        self.fails(2, "ask", "-m", SMOL, "x", "y", has="-m")
        self.fails(2, "inspect", "x", "y")
        self.fails(2, "ask", has="nothing to ask")
        self.fails(2, "complete", has="no text")

    def test_files(self):
        self.fails(4, "ask", "x", "-f", "/no/such.txt", has="/no/such.txt")
        self.fails(4, "perplexity", "-f", "/no/such.txt", has="/no/such.txt")
        self.fails(2, "perplexity", has="-f")
        self.fails(2, "template", has="--messages")
        self.fails(2, "template", "--messages", "-", stdin="{", has="--messages")
        self.fails(2, "template", "--messages", "-", "--var", "x", stdin="[]", has="--var")
        self.fails(2, "template", "--messages", "-", "--var", "x=y", stdin="[]", has="JSON")

    def test_unwritable_standard_streams(self):
        for args, code in [(["tokenize"], 2), (["--nonsense"], 2), (["complete", "x", "-n", "1"], 0)]:
            with open("/dev/full", "w") as full:
                done = subprocess.run([harness.BINARY, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=full, env=harness.environment(), timeout=60)
            self.assertEqual(done.returncode, code, args)
        with open("/dev/full", "w") as full:
            for args in ["--help"], ["ask", "--help"], ["tokenize", "x"]:
                done = subprocess.run([harness.BINARY, *args], stdout=full, stderr=subprocess.PIPE,
                                      env=harness.environment(), timeout=60)
                self.assertEqual(done.returncode, 5, args)
        with tempfile.TemporaryDirectory() as folder:  # a closed stream's number is not the file's
            path = os.path.join(folder, "x.f32")
            done = subprocess.run(["sh", "-c", 'exec "$0" logits --tokens 1 --out "$1" <&- >&- 2>&-', harness.BINARY, path],
                                  env=harness.environment(), timeout=60)
            self.assertEqual((done.returncode, os.path.getsize(path)), (0, 49152 * 4))

    def test_templates_that_need_more_than_a_user_message(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.jinja")
            for source, var, out in [("{{ bos_token + messages[0].content }}", 'bos_token="<s>"', "<s>a"),
                                     ("{{ messages[1].content }}", "x=1", "b")]:
                with open(path, "w") as file:
                    file.write(source)
                run = Run("template", "--chat-template", path, "--messages", "-", "--var", var,
                          stdin='[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]')
                self.assertEqual((run.rc, run.out), (0, out), run.err)
            with open(path, "w") as file:
                file.write("{{ raise_exception(messages[0].content) }}")
            line = self.fails(2, "template", "--chat-template", path, "--messages", "-",
                              stdin='[{"role":"user","content":"\\u001b[31m"}]')
            self.assertIn("x.jinja:1:19: \\x1b[31m", line)

    def test_deep_json(self):
        deep = "[" * 100000 + "]" * 100000
        self.fails(2, "template", "--messages", "-", stdin=deep, has="deep")
        self.fails(2, "template", "--messages", "-", stdin='[{"role":"user","content":"x","y":%s}]' % deep, has="deep")
        self.fails(2, "template", "--messages", "-", "--var", "x=" + deep[50000:-50000], stdin="[]", has="deep")

    def test_context(self):
        line = self.fails(2, "ask", "word " * 200, "--ctx", "64")
        self.assertIn("64", line)


class Devices(unittest.TestCase):
    def test_what_there_is_and_why_not(self):
        listed = Run("devices", "--json").json()
        names = [d["name"] for d in listed["devices"]]
        self.assertEqual(names[0], "cpu")
        for d in listed["devices"]:
            self.assertTrue(d["description"], d)
            self.assertLessEqual(d["free_bytes"], d["memory_bytes"], d)
        self.assertGreater(listed["devices"][0]["free_bytes"], 0)
        missing = {m["name"]: m["why"] for m in listed["missing"]}
        self.assertNotEqual("cuda:0" in names, "cuda" in missing)
        run = Run("devices")
        self.assertEqual((run.rc, run.err), (0, ""))
        lines = run.out.splitlines()
        self.assertEqual([line.split()[0] for line in lines], names + list(missing))
        self.assertRegex(lines[0], r"^cpu +CPU, .+ GiB, +\d+\.\d GiB free$")
        for name, why in missing.items():
            self.assertIn(f"none: {why}", run.out)
            self.assertNotIn("of another build", why)


class Positionals(unittest.TestCase):
    def test_single_is_text(self):
        ids = Run("tokenize", "hello", "--ids").out
        self.assertEqual(Run("tokenize", SMOL, "hello", "--ids").out, ids)
        self.assertEqual(Run("tokenize", "-m", SMOL, "hello", "--ids").out, ids)
        self.assertEqual(Run("tokenize", "-m", model(), "hello", "--ids").out, ids)
        self.assertEqual(Run("tokenize", SMOL[:-5], "hello", "--ids").out, ids)

    def test_single_is_model_with_stdin(self):
        gemma = Run("tokenize", GEMMA, "--stdin", "--ids", stdin="hello").out
        self.assertEqual(gemma, Run("tokenize", GEMMA, "hello", "--ids").out)
        self.assertNotEqual(gemma, Run("tokenize", "--stdin", "--ids", stdin="hello").out)

    def test_ask_single_is_text(self):
        run = Run("ask", SMOL, "-n", "1", "--json", "--device", "null")  # the file's name as a question
        self.assertEqual(run.rc, 0, run.err)
        self.assertIn(SMOL, run.json()["model"])
        run = Run("ask", GEMMA, "--stdin", "-n", "1", "--json", "--device", "null", stdin="hello")
        self.assertIn(GEMMA, run.json()["model"])


if __name__ == "__main__":
    unittest.main()
