"""--profile, its tables, JSON and Chrome trace; bench: its options, what it counts, and wrong ones."""
import json
import os
import statistics
import tempfile
import unittest

from harness import GEMMA, SMOL, Run

ASK = ["ask", "Say hello", "-n", "4", "--seed", "7"]


class Profile(unittest.TestCase):
    def phases(self, profile):
        self.assertEqual(set(profile), {"peaks", "barrier_after_each_op", "phases"})
        self.assertTrue(all(peak > 0 for peak in profile["peaks"].values()))
        return {phase["phase"]: phase for phase in profile["phases"]}

    def test_json_sums(self):
        answer = Run(*ASK, "--profile", "--json").json()
        phases = self.phases(answer["profile"])
        self.assertEqual(set(phases), {"prefill", "decode"})
        self.assertEqual(phases["prefill"]["tokens"], answer["usage"]["prompt_tokens"])
        self.assertEqual(phases["decode"]["steps"], 3)
        for phase in phases.values():
            self.assertIn("matmul", [op["op"] for op in phase["ops"]])
            seconds = [op["seconds"] for op in phase["ops"]]
            self.assertEqual(seconds, sorted(seconds, reverse=True))
            self.assertLessEqual(sum(seconds), phase["seconds"])
            self.assertGreater(min(seconds), 0)
            by_layer = {}
            for op in phase["ops"]:
                for key in ["count", "seconds", "bytes", "flops"]:
                    self.assertAlmostEqual(sum(layer[key] for layer in op["layers"]), op[key], delta=1e-6)
                self.assertTrue(0 <= op["wait_share"] <= 1, op)
                self.assertAlmostEqual(op["bytes_per_second"] * op["seconds"], op["bytes"], delta=1 + 1e-6 * op["bytes"])
                for layer in op["layers"]:
                    by_layer[layer["layer"]] = by_layer.get(layer["layer"], 0) + layer["seconds"]
            self.assertEqual(sorted(by_layer), list(range(-1, 30)))
            self.assertEqual([layer["layer"] for layer in phase["layers"]], list(range(30)))
            for layer in phase["layers"]:
                self.assertAlmostEqual(layer["seconds"], by_layer[layer["layer"]], delta=1e-6)
        weights = next(op for op in phases["decode"]["ops"] if op["op"] == "matmul")
        self.assertEqual(weights["peak"], "read")
        self.assertEqual(next(op for op in phases["decode"]["ops"] if op["op"] == "attention")["count"], 3 * 30)

    def test_a_profile_changes_no_text(self):
        self.assertEqual(Run(*ASK, "--profile", "-q").out, Run(*ASK, "-q").out)

    def test_tables(self):
        run = Run(*ASK, "--profile", "-q")
        for part in ["prefill: 1 step", "decode: 3 steps, 3 tokens", "% of peak", "layers 0-29", "min (layer", "slowest: layer",
                     "Each op ended with a barrier", "GB/s)", "int8"]:
            self.assertIn(part, run.err)
        self.assertRegex(run.err, r"\noutside\n(  .*\n)*  matmul ")  # the head; what is slowest differs from run to run
        self.assertNotRegex(run.err, r"\nlayer 17 ")
        layers = Run(*ASK, "--profile-layers", "-q").err
        for layer in range(30):
            self.assertIn(f"\nlayer {layer} ", layers)
        self.assertNotIn("slowest: layer", layers)

    def test_every_command_that_computes_has_it(self):
        text = "one two three four five " * 40
        complete = Run("complete", "Hello there, my friend", "-n", "2", "--profile", "--json").json()
        perplexity = Run("perplexity", "-f", "-", "-c", "32", "--chunks", "1", "--profile", "--json", stdin=text).json()
        chat = Run("chat", "-n", "2", "--profile", "--json", stdin="Hello\nAnd again?\n")
        answers = [json.loads(line) for line in chat.out.splitlines()]
        for report in [complete, perplexity, *answers]:
            self.assertIn("prefill", list(self.phases(report["profile"])))
        for answer in answers:  # each has its own
            self.assertEqual(self.phases(answer["profile"])["decode"]["tokens"], 1)
        self.assertEqual(Run("complete", "Hello", "-n", "1", "--device", "null", "--profile", "--json").json()["profile"]["peaks"],
                         {"read_bytes_per_second": 0, "int8_ops_per_second": 0, "f32_ops_per_second": 0})

    def test_trace(self):
        for threads in [1, 2]:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "trace.json")
                answer = Run(*ASK, "-t", threads, "--profile-trace", path, "--json").json()
                with open(path) as file:
                    trace = json.load(file)
            events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
            tracks = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
            self.assertEqual(sorted(tracks), list(range(threads + 1)))
            steps = [e for e in events if e["name"] in ("prefill", "decode")]
            self.assertEqual([e["name"] for e in steps], ["prefill"] + 3 * ["decode"])
            self.assertEqual(steps[0]["args"]["tokens"], answer["usage"]["prompt_tokens"])
            nodes = [e for e in events if e["tid"] == 0 and e not in steps]
            for before, after in zip(nodes, nodes[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.01)
            for node in nodes:
                self.assertEqual(sum(s["ts"] <= node["ts"] + 0.01 and node["ts"] + node["dur"] <= s["ts"] + s["dur"] + 0.01 for s in steps), 1)
                self.assertTrue({"node", "layer", "shape", "bytes", "flops", "GB/s", "GOP/s"} <= node["args"].keys())
            heads = [n for n in nodes if n["name"] == "matmul" and n["args"]["layer"] == -1]
            self.assertEqual(len(heads), 4)
            self.assertIn("[49152][576]", heads[0]["args"]["shape"])
            wall = {}
            for phase in self.phases(answer["profile"]).values():
                wall.update({op["op"]: wall.get(op["op"], 0) + op["seconds"] for op in phase["ops"]})
            for op, seconds in wall.items():
                self.assertAlmostEqual(sum(n["dur"] for n in nodes if n["name"] == op) * 1e-6, seconds, delta=1e-7 + 1e-5 * seconds)
            for thread in range(1, threads + 1):
                busy = [e for e in events if e["tid"] == thread]
                self.assertEqual(len(busy), len(nodes))
                self.assertLessEqual(sum(e["dur"] for e in busy), sum(n["dur"] for n in nodes) + 1)

    def test_a_trace_that_can_not_be_written(self):
        run = Run(*ASK, "--profile-trace", "/no/such/folder/trace.json")
        self.assertEqual((run.rc, run.out), (5, ""))
        self.assertEqual(len(run.err.splitlines()), 1)
        self.assertIn("--profile-trace /no/such/folder/trace.json", run.err)
        if os.path.exists("/dev/full"):
            run = Run(*ASK, "--profile-trace", "/dev/full", "-q")
            self.assertEqual(run.rc, 5)
            self.assertIn("/dev/full", run.err)


class Bench(unittest.TestCase):
    def rows(self, *args):
        rows = Run("bench", *args, "-o", "json").json()
        for row in rows:
            self.assertTrue({"test", "model", "backend", "n_threads", "n_prompt", "n_gen", "n_depth", "avg_ts", "stddev_ts", "samples_ts",
                             "bytes_per_token", "flops_per_token", "peaks", "read_share", "ops_share"} <= row.keys())
            self.assertGreater(row["avg_ts"], 0)
            shares = [row["bytes_per_token"] * ts / read for ts, read in zip(row["samples_ts"], row["samples_read_bytes_per_second"], strict=True)]
            self.assertAlmostEqual(row["read_share"], statistics.median(shares), places=6)
            self.assertEqual(row["peaks"]["read_bytes_per_second"], max(row["samples_read_bytes_per_second"]))
            self.assertTrue(0 < row["ops_share"] < 2, row["ops_share"])
        return {row["test"]: row for row in rows}

    def test_lists_in_order(self):
        rows = self.rows("-p", "1,8", "-n", "4,2", "--pg", "8,4", "--pg", "3,1", "-r", "2")
        self.assertEqual(list(rows), ["pp1", "pp8", "tg4", "tg2", "pp8+tg4", "pp3+tg1"])
        self.assertEqual((rows["pp8+tg4"]["n_prompt"], rows["pp8+tg4"]["n_gen"]), (8, 4))
        self.assertTrue(all(len(row["samples_ts"]) == 2 for row in rows.values()))
        # weights are read once for all tokens of a pass, the operations are done for each
        self.assertAlmostEqual(rows["pp1"]["bytes_per_token"] / rows["pp8"]["bytes_per_token"], 8, delta=0.2)
        self.assertGreater(rows["pp8"]["flops_per_token"], 0.7 * rows["pp1"]["flops_per_token"])

    def test_bytes_are_weights_and_kv(self):
        rows = self.rows("-p", "0", "-n", "4", "-d", "0,64", "-r", "1")
        self.assertEqual(list(rows), ["tg4", "tg4 @ d64"])
        tensors = Run("inspect", SMOL, "--json", "--tensors").json()
        weights = sum(t["bytes"] for t in tensors["tensors"] if "norm" not in t["name"])
        embed_row, a_position = 576 * 34 // 32, 2 * 30 * 3 * 64 * 2  # Q8_0 at most; K and V of all layers, f16
        mean_keys = (1 + 2 + 3 + 4) / 4
        self.assertAlmostEqual(rows["tg4"]["bytes_per_token"], weights + mean_keys * a_position, delta=embed_row)
        self.assertAlmostEqual(rows["tg4 @ d64"]["bytes_per_token"] - rows["tg4"]["bytes_per_token"], 64 * a_position, delta=1)
        wide = self.rows("-p", "0", "-n", "4", "-d", "64", "-r", "1", "--cache-type", "f32")["tg4 @ d64"]
        self.assertAlmostEqual(wide["bytes_per_token"] - rows["tg4 @ d64"]["bytes_per_token"], (64 + mean_keys) * a_position, delta=1)

    def test_a_window_bounds_the_keys(self):
        rows = {row["n_depth"]: row["bytes_per_token"]
                for row in Run("bench", GEMMA, "-p", "0", "-n", "1", "-d", "16,520,600", "-r", "1", "--device", "null", "-o", "json").json()}
        per_position = (rows[600] - rows[520]) / 80  # full layers alone grow beyond the window of 512
        self.assertLess(per_position, 0.5 * (rows[520] - rows[16]) / 504)

    def test_text(self):
        run = Run("bench", "-p", "8", "-n", "2", "-d", "16", "-r", "1")
        self.assertEqual(run.rc, 0, run.err)
        lines = run.out.splitlines()
        self.assertRegex(lines[0], r"^test +tokens/s +\+/- +MB a token +GB/s +% read +GOP/s +% ops ")
        self.assertRegex(lines[1], r"^pp8 @ d16 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +\d+ +[\d.]+ +\d+$")
        self.assertRegex(lines[2], r"^tg2 @ d16 ")
        self.assertRegex(lines[-1], r"^read [\d.]+ GB/s, int8 \d+ GOP/s, f32 \d+ GOP/s$")
        self.assertNotIn("read 0", Run("bench", "-p", "8", "-n", "0", "-r", "1", "--device", "null").out)

    def test_profile_of_each_test(self):
        rows = self.rows("-p", "8", "-n", "2", "-r", "2", "--profile")
        phases = {name: {p["phase"]: p["tokens"] for p in row["profile"]["phases"]} for name, row in rows.items()}
        self.assertEqual(phases, {"pp8": {"prefill": 16}, "tg2": {"decode": 4}})

    def test_wrong_options(self):
        for args, has in [(["-p", "0", "-n", "0"], "nothing to measure"), (["-p", "-3"], "-3"), (["-p", "x"], "x"), (["-r", "0"], "-r"),
                          (["--pg", "512"], "--pg 512"), (["--pg", "512,"], "--pg 512,"), (["--pg", "0,5"], "--pg 0,5"),
                          (["--pg", "5,0"], "--pg 5,0"), (["--pg", "5,5,5"], "--pg 5,5,5"), (["--pg", "-5,5"], "-5,5"),
                          (["-o", "csv"], "csv"), (["-p", "99999999"], "99999999"), (["-p", "8", "-d", "100", "-c", "64"], "108 positions")]:
            run = Run("bench", *args)
            self.assertEqual((run.rc, run.out), (2, ""), (args, run.err))
            self.assertEqual(len(run.err.splitlines()), 1, run.err)
            self.assertIn(has, run.err)


if __name__ == "__main__":
    unittest.main()
