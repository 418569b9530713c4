#!/usr/bin/env python3
"""Real models through the emulated Metal backend: their text is the CPU's with float activations, fused or not, with 16-bit factors
or without, one request or several. Arguments: the argent program; models are in $ARGENT_MODELS."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

ARGENT = sys.argv.pop(1)
MODELS = pathlib.Path(os.environ.get("ARGENT_MODELS") or pathlib.Path.home() / ".cache/argent/models")
SMOLLM2, GEMMA = MODELS / "smollm2-135m-instruct-q4_1.gguf", MODELS / "gemma-3-270m-q4_k_m.gguf"


def complete(model, text, n, *options, without=""):
    env = dict(os.environ, ARGENT_METAL_WITHOUT=without)
    done = subprocess.run([ARGENT, "complete", "-m", model, text, "-n", str(n), "--temperature", "0", "-c", "512", "--quiet", *options],
                          capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Text(unittest.TestCase):
    def same(self, model, text, n):
        cpu = complete(model, text, n, "--activations", "f32")
        metal = complete(model, text, n, "--device", "metal-emu")
        self.assertEqual(metal, cpu)
        return metal

    def test_smollm2(self):
        self.assertIn("Paris", self.same(SMOLLM2, "The capital of France is", 6))

    def test_gemma(self):
        self.same(GEMMA, "The capital of France is", 4)

    # What is left out where the arithmetic is the same changes nothing.
    def test_without_fusing(self):
        text = "Once upon a time"
        fused = complete(SMOLLM2, text, 2, "--device", "metal-emu", without="matrix,flash")
        self.assertEqual(complete(SMOLLM2, text, 2, "--device", "metal-emu", without="matrix,flash,glu,qkv,qkv_store,add_norm_mul"), fused)

    def test_errors(self):
        def refused(*options, **env):
            done = subprocess.run([ARGENT, "complete", "-m", SMOLLM2, "x", "-n", "1", *options], capture_output=True, text=True, env=dict(os.environ, **env))
            return done.returncode, done.stderr.strip().splitlines()[-1]
        code, line = refused("--device", "metal-emu", ARGENT_METAL_WITHOUT="nonsense")
        self.assertEqual(code, 2)
        self.assertIn("no 'nonsense' to leave out, there are matrix", line)
        code, line = refused("--device", "metal-emu", "--weights", "resident")
        self.assertEqual(code, 3)
        self.assertIn("metal-emu cannot keep weights in a copy of its own", line)

    def test_bench(self):
        done = subprocess.run([ARGENT, "bench", "-m", SMOLLM2, "--device", "metal-emu", "-p", "0", "-n", "1", "-r", "1", "--json"], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        json.loads(done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
