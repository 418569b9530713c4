"""ask, complete, perplexity, logits: what they print and where."""
import json
import math
import signal
import struct
import subprocess
import tempfile
import unittest

import harness
from harness import GEMMA, SMOL, Run, environment

GREEDY = ["--temp", "0"]


class Ask(unittest.TestCase):
    def test_answer_on_stdout_statistics_on_stderr(self):
        run = Run("ask", SMOL, "What colour is the sky?", *GREEDY, "-n", "24")
        self.assertEqual(run.rc, 0, run.err)
        self.assertIn("blue", run.out)
        self.assertFalse(run.out.endswith("\n"))
        self.assertNotIn("<|im", run.out)
        self.assertRegex(run.err, r"^prompt \d+ tokens \(0 reused\) in [\d.]+ s, [\d.]+ tokens/s; answer \d+ tokens in .*seed \d+\n$")
        self.assertNotIn("\033", run.out + run.err)
        quiet = Run("ask", SMOL, "What colour is the sky?", *GREEDY, "-n", "24", "-q")
        self.assertEqual((quiet.out, quiet.err), (run.out, ""))

    def test_json(self):
        answer = Run("ask", "Say hello", "-n", "5", "--seed", "7", "--json").json()
        self.assertEqual(answer["usage"]["completion_tokens"], 5)
        self.assertEqual(answer["stop"], "length")
        self.assertEqual(answer["seed"], 7)
        self.assertGreater(answer["timings"]["prompt_tokens_per_second"], 0)
        self.assertEqual(Run("ask", "Say hello", "-n", "5", "--seed", "7", "--json").json()["answer"], answer["answer"])

    def test_pipe_files_and_system(self):
        count = lambda *args, **kw: Run("ask", *args, "-n", "1", "--json", "--device", "null", **kw).json()["usage"]["prompt_tokens"]
        plain = count("Summarise")
        tokens = len(Run("tokenize", "\n\nsome notes here", "--ids").out.split())
        self.assertEqual(count("Summarise", stdin="some notes here\n"), plain + tokens)
        self.assertEqual(count("Summarise", "--no-stdin", stdin="some notes here\n"), plain)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("some notes here")
            file.flush()
            self.assertEqual(count("Summarise", "-f", file.name), plain + tokens)
            self.assertGreater(count("Summarise", "-f", file.name, stdin="more"), plain + tokens)
            self.assertGreater(count("-f", file.name), 0)
        self.assertEqual(count("--stdin", stdin="Summarise"), plain)
        self.assertEqual(count(stdin="Summarise\n"), plain)
        self.assertNotEqual(count("Summarise", "--system", "You are a pirate who answers in rhymes"), plain)

    def test_control_tokens_in_a_message_are_text(self):
        count = lambda text: Run("ask", text, "-n", "1", "--json", "--device", "null").json()["usage"]["prompt_tokens"]
        self.assertEqual(count("a<|im_end|>") - count("a"), len(Run("tokenize", "<|im_end|>", "--no-special", "--ids").out.split()))

    def test_utf8(self):
        answer = Run("ask", "Repeat after me: „Grüße“ 日本語 🦊", *GREEDY, "-n", "30", "--json").json()["answer"]
        self.assertTrue(answer)
        Run("ask", "--stdin", "-n", "3", "--json", "--device", "null", stdin=b"\xff\xfe broken \xc3").json()

    def test_gemma_has_no_template_of_its_own(self):
        run = Run("ask", GEMMA, "Hi", "-n", "1", "--device", "null", "--json")
        begin = Run("template", GEMMA, "--messages", "-", stdin='[{"role":"user","content":"Hi"}]').out
        self.assertEqual(begin, "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n")
        self.assertEqual(run.json()["usage"]["prompt_tokens"], len(Run("tokenize", GEMMA, begin, "--no-bos", "--ids").out.split()))

    def test_full_context_is_told(self):
        run = Run("ask", "Count to a thousand", *GREEDY, "--ctx", "64", "-q")
        self.assertEqual(run.rc, 0)
        self.assertIn("the context of 64 positions is full", run.err)

    def test_ctrl_c_stops_it(self):
        process = subprocess.Popen([harness.BINARY, "ask", "Write a very long story", "-n", "4000", *GREEDY], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.assertTrue(process.stdout.read(1))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"argent: stopped", err)
        self.assertIn(b"prompt ", err)

    def test_closed_pipe(self):
        process = subprocess.Popen([harness.BINARY, "ask", "Write a very long story", "-n", "2000", *GREEDY, "-q"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=20), 5)
        self.assertEqual(err, b"")


class Complete(unittest.TestCase):
    def test_continuation_alone(self):
        run = Run("complete", "The capital of France is", *GREEDY, "-n", "2")
        self.assertEqual(run.out, " Paris.")
        self.assertEqual(Run("complete", "--stdin", *GREEDY, "-n", "2", stdin="The capital of France is").out, " Paris.")
        run = Run("complete", GEMMA, "The capital of France is", *GREEDY, "-n", "8")
        self.assertTrue(run.out.startswith(" the capital of the country of France."), run.out)


class Measures(unittest.TestCase):
    TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm sun. " * 40

    def test_perplexity(self):
        run = Run("perplexity", "-f", "-", "-c", "64", "--chunks", "3", stdin=self.TEXT)
        self.assertEqual(run.rc, 0, run.err)
        self.assertRegex(run.out.splitlines()[-1], r"^PPL = \d+\.\d{4} \+/- \d+\.\d{4}$")
        report = Run("perplexity", "-f", "-", "-c", "64", "--chunks", "3", "--json", "--activations", "f32", "--cache-type", "f32", stdin=self.TEXT).json()
        self.assertEqual((report["chunks"], report["counted_tokens"]), (3, 3 * 31))
        self.assertAlmostEqual(report["ppl"], float(run.out.split()[2]), delta=0.1 * report["ppl"])
        run = Run("perplexity", "-f", "-", stdin="too short")
        self.assertEqual(run.rc, 2)
        self.assertIn("at least 1024", run.err)

    def test_perplexity_counts_the_second_halves(self):
        """Against log softmaxes of argent logits over the same windows, for a model with BOS and one without."""
        for model in [SMOL, GEMMA]:
            n_ctx = 16
            ids = [int(i) for i in Run("tokenize", model, "--stdin", "--no-special", "--ids", stdin=self.TEXT[:600]).out.split()]
            bos = ids[0] if model == GEMMA else None
            total, count = 0.0, 0
            for chunk in range(2):
                window = ids[chunk * n_ctx:(chunk + 1) * n_ctx]
                if bos is not None:
                    window[0] = bos
                with tempfile.NamedTemporaryFile() as out:
                    run = Run("logits", model, "--tokens", ",".join(map(str, window)), "--all", "--out", out.name)
                    self.assertEqual(run.rc, 0, run.err)
                    raw = open(out.name, "rb").read()
                width = len(raw) // 4 // n_ctx
                for i in range(n_ctx // 2, n_ctx - 1):
                    row = struct.unpack_from(f"<{width}f", raw, 4 * width * i)
                    most = max(row)
                    total += math.log(sum(math.exp(x - most) for x in row)) + most - row[window[i + 1]]
                    count += 1
            report = Run("perplexity", model, "-f", "-", "-c", n_ctx, "--chunks", "2", "--json", stdin=self.TEXT[:600]).json()
            self.assertEqual(report["counted_tokens"], count)
            self.assertAlmostEqual(report["mean_nll"], total / count, places=4)


if __name__ == "__main__":
    unittest.main()
