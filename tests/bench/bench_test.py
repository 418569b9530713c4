#!/usr/bin/env python3
"""The programs of bench/: python tests/bench/bench_test.py BUILD_FOLDER. compare.py runs against scripts that stand for
other engines, argent_bench_kernels measures a few cases for an instant."""
import json
import os
import resource
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = None

# A llama-bench of fixed speeds; prints what it was called with into a file beside it.
FAKE = """#!{python}
import json, pathlib, sys
args = sys.argv[1:]
if "--help" in args:
    print("{help}")
    sys.exit()
with open(pathlib.Path(__file__).with_suffix(".calls"), "a") as log:
    log.write(json.dumps(args) + "\\n")
value = lambda flag: args[args.index(flag) + 1] if flag in args else "0"
p, n = int(value("-p")), int(value("-n"))
if "-gp" in args:
    n = int(value("-gp").split(",")[1])
print("warming up")
print(json.dumps([dict(n_prompt=p, n_gen=n, avg_ts={speed} * (100 if p else 1) * (2 if "-rtr" in args else 1))], indent=2))
"""


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = self.folder.name
        self.argent = self.fake("argent", 30)
        self.peer = self.fake("llama bench", 10)

    def tearDown(self):
        self.folder.cleanup()

    def fake(self, name, speed, help="-d, --n-depth"):
        path = os.path.join(self.path, name)
        with open(path, "w") as file:
            file.write(FAKE.format(python=sys.executable, speed=speed, help=help))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def calls(self, path):
        with open(os.path.splitext(path)[0] + ".calls") as file:
            return [json.loads(line) for line in file]

    def run_it(self, *args):
        done = subprocess.run([sys.executable, ROOT / "bench/compare.py", self.argent, "m.gguf", *args], capture_output=True, text=True)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def lines(self, *args):
        done = self.run_it("--json", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_several_peers_and_the_better_counts(self):
        lines = self.lines("--peer", f"plain='{self.peer}'", "--peer", f"repacked='{self.peer}' -rtr 1 -fa 0", "--rounds", "2", "-p", "8", "-n", "4")
        self.assertEqual([line["test"] for line in lines], ["pp8"] * 3 + ["tg4"] * 3)
        self.assertEqual(lines[0]["speeds"], {"argent": 3000, "plain": 1000, "repacked": 2000})
        self.assertEqual((lines[0]["best_other"], lines[0]["ratio"]), ("repacked", 1.5))
        self.assertEqual((lines[2]["median_ratio"], lines[2]["rounds"], lines[2]["median_speeds"]["plain"]), (1.5, 2, 1000))
        self.assertEqual(self.calls(self.argent)[0], ["bench", "m.gguf", "-p", "8", "-n", "0", "-t", "2", "-r", "3", "-o", "json"])
        plain, repacked = self.calls(self.peer)[:2]
        self.assertEqual(plain, ["-m", "m.gguf", "-p", "8", "-n", "0", "-t", "2", "-r", "3", "-o", "json", "-fa", "1"])
        self.assertEqual(repacked[-4:], ["-rtr", "1", "-fa", "0"])

    def test_depths_and_passes(self):
        tests = [line["test"] for line in self.lines("--peer", f"'{self.peer}'", "--rounds", "1", "-p", "1,4", "-n", "0", "-d", "0,64") if "round" in line]
        self.assertEqual(tests, ["pp1", "pp4", "pp1 @ d64", "pp4 @ d64"])
        self.assertIn("-d", self.calls(self.peer)[-1])
        old = self.fake("old", 10, help="-gp <pg,tg>")
        self.lines("--peer", f"old={old}", "--rounds", "1", "-p", "0", "-n", "4", "-d", "64")
        call = self.calls(old)[0]
        self.assertNotIn("-d", call)
        self.assertEqual(call[call.index("-gp") + 1], "64,4")
        done = self.run_it("--peer", f"old={old}", "-p", "4", "-n", "0", "-d", "64")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("old: its llama-bench times no prompts at a depth", done.stderr)

    def test_any_command(self):
        done = self.run_it("--other", "mine=echo {model} took {n} and {d}: 1,200.5 tokens/s", "--pattern", r"([\d.,]+) tokens/s",
                           "--rounds", "1", "-p", "0", "-n", "7", "-d", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tg7 @ d3 round 1: argent 30.0  mine 1200.5  ratio 0.02", done.stdout)
        self.assertIn("medians", done.stdout)

    def test_what_goes_wrong(self):
        for code, has, args in [(2, "nobody to compare with", []), (2, "nothing to measure", ["--peer", "x", "-p", "0", "-n", "0"]),
                                (2, "one name", ["--peer", "a=x", "--peer", "a=y"]), (2, "--pattern", ["--other", "a=echo 1"]),
                                (2, "group", ["--other", "a=echo 1", "--pattern", "1"]), (2, "--pattern", ["--other", "a=echo 1", "--pattern", "("]),
                                (2, "wanted numbers", ["--peer", "x", "-p", "8,y"]), (1, "No such file", ["--peer", "a=/no/such/bench"]),
                                (1, "a ended with 3", ["--other", "a=exit 3", "--pattern", "(1)"]),
                                (1, "is not in what it printed: hello", ["--other", "a=echo hello", "--pattern", r"(\d)"]),
                                (1, "0 rows", ["--peer", "a=echo"])]:
            done = self.run_it(*args)
            self.assertEqual(done.returncode, code, (args, done.stderr))
            self.assertIn(has, done.stderr, args)


class Kernels(unittest.TestCase):
    def run_it(self, *args, code=0, **more):
        done = subprocess.run([KERNELS, *args], capture_output=True, text=True, timeout=60, **more)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_every_family(self):
        pattern = r"^pool/barrier|smollm2.*f16/1@255|prefill.*smollm2.*f16/512@0|silu_mul/576|quantize_q8/576/n16|q4_k/smollm2.*down.*/n4$"
        done = self.run_it("--filter", pattern, "--seconds", "0", "--json")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        machine, rows = lines[0], [line for line in lines if "name" in line]  # the machine comes again where cases take long
        self.assertTrue({"cpu", "isa", "threads", "read_bytes_per_second", "int8_ops_per_second", "f32_ops_per_second"} <= machine.keys())
        self.assertEqual(sorted({row["name"].split("/")[0] for row in rows}),
                         ["attention_decode", "attention_prefill", "matmul", "matmul_decoded", "pool", "prepare", "vector"])
        for row in rows:
            self.assertGreater(row["seconds"], 0)
            self.assertEqual((row["isa"], row["threads"]), (machine["isa"], machine["threads"]))
        at = next(i for i, line in enumerate(lines) if line.get("name", "").startswith("matmul/"))
        product, machine = lines[at], [line for line in lines[:at] if "name" not in line][-1]
        self.assertEqual((product["peak"], product["ops"]), ("int8", 2 * 4 * 1536 * 576))
        self.assertAlmostEqual(product["ops_share"], product["ops_per_second"] / machine["int8_ops_per_second"], places=9)
        self.assertAlmostEqual(product["read_share"], product["bytes_per_second"] / machine["read_bytes_per_second"], places=9)
        self.assertEqual(product["bytes"], 1536 * 576 / 256 * 148)  # Q4_K's 144 bytes, scales unpacked
        text = self.run_it("--filter", "pool/claim", "--seconds", "0").stdout
        self.assertRegex(text, r"^\d+ threads, \w+: read [\d.]+ GB/s, int8 \d+ GOP/s, f32 \d+ GOP/s\n")
        self.assertIn("\npool/claim ", text)

    def test_names(self):
        usual, every = (self.run_it(*args, "--list").stdout.splitlines() for args in ([], ["--all", "--isa", "all"]))
        cases = [name for name in every if not name.startswith("pool/")]  # the pool's are those of no ISA
        self.assertEqual(len(set(cases)), len(cases))
        self.assertLess(set(usual), set(every))
        for part in ["baseline", "mxfp4", "bf16", "smollm2-135m", "gemma3-270m", "qwen2.5-0.5b", "qwen3-0.6b", "qwen2.5-7b", "/n8", ".w512"]:
            self.assertTrue(any(part in name for name in every), part)

    def test_a_case_that_fails(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))  # the cache alone is more
        done = self.run_it("--filter", "attention_decode/.*/qwen3-0.6b.f32/1@8191", "--seconds", "0", "-t", "1", code=1, preexec_fn=limit)
        self.assertRegex(done.stderr, r"^attention_decode/\w+/qwen3-0.6b.f32/1@8191: .*memory\n1 of 1 cases failed\n$")

    def test_wrong_options(self):
        self.assertIn("no case", self.run_it("--filter", "nothing like it", code=2).stderr)
        self.assertIn("no regular expression", self.run_it("--filter", "(", code=2).stderr)
        self.assertNotEqual(subprocess.run([KERNELS, "--isa", "neon"], capture_output=True).returncode, 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: bench_test.py BUILD_FOLDER")
    KERNELS = os.path.join(sys.argv.pop(1), "argent_bench_kernels")
    if not os.access(KERNELS, os.X_OK):
        sys.exit(f"{KERNELS} is no program")
    unittest.main()
