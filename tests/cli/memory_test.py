"""Where weights are, what that takes, how many threads run."""
import json
import os
import re
import subprocess
import tempfile
import time
import unittest

import harness
from harness import GEMMA, SMOL, Run, environment


def resident_kb(*args):
    """Memory of a run that has begun to answer, by the names of /proc."""
    process = subprocess.Popen([harness.BINARY, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment())
    process.stdout.read(1)
    with open(f"/proc/{process.pid}/status") as status:
        text = status.read()
    process.kill()
    process.wait()
    process.stdout.close()
    return {name: int(re.search(rf"^{name}:\s+(\d+) kB", text, re.M)[1]) for name in ["VmRSS", "RssAnon", "RssFile"]}


class Weights(unittest.TestCase):
    def test_texts_do_not_depend_on_where_weights_are(self):
        for model in [SMOL, GEMMA]:
            run = lambda weights: Run("complete", model, "The capital of France is", "-n", "12", "--temp", "0", "--weights", weights)
            resident, mapped = run("resident"), run("mapped")
            self.assertEqual(resident.rc, 0, resident.err)
            self.assertEqual(resident.out, mapped.out)
            self.assertTrue(resident.out)

    def test_the_mapping_is_dropped(self):
        tensors = os.path.getsize(harness.model(SMOL))
        args = ["complete", SMOL, "Once upon a time", "--ignore-end", "-n", "500", "--temp", "0", "--ctx", "512"]
        report = Run("check", SMOL, "--ctx", "512", "--json").json()["devices"][0]
        self.assertEqual(report["weights"], "resident")
        self.assertLessEqual(report["weights_bytes"], 1.04 * tensors)
        used = resident_kb(*args)
        rest = used["VmRSS"] * 1024 - report["kv_bytes"] - report["workspace_bytes"]
        self.assertLessEqual(rest, 1.04 * tensors + (64 << 20), used)
        self.assertLess(used["RssFile"] * 1024, tensors / 2)
        mapped = resident_kb(*args, "--weights", "mapped")
        self.assertLess(mapped["RssAnon"] * 1024, used["RssAnon"] * 1024 - tensors / 2)

    def test_policy(self):
        check = lambda *args: Run("check", SMOL, "--json", *args).json()["devices"][0]
        self.assertEqual((check("--weights", "mapped")["weights"], check("--weights", "mapped")["weights_bytes"]), ("mapped", 0))
        self.assertIn("resident", Run("check", SMOL).out)
        self.assertIn("mapped", Run("check", SMOL, "--weights", "mapped").out)
        wrong = Run("check", SMOL, "--weights", "here")
        self.assertEqual((wrong.rc, wrong.err.count("\n")), (2, 1))
        self.assertIn("wanted auto, resident or mapped", wrong.err)
        other = Run("complete", SMOL, "a", "-n", "1", "--device", "reference", "--weights", "resident")
        self.assertNotEqual(other.rc, 0)
        self.assertIn("reference cannot keep weights in a copy of its own", other.err)


class Layers(unittest.TestCase):
    """Layers on a device and on the CPU: any device but the CPU takes --gpu-layers."""

    def test_the_plan_is_printed(self):
        report = Run("check", SMOL, "--device", "null", "-ngl", "12", "--json").json()
        self.assertRegex(report["layers"], r"^12 of 30 layers on null \(\d+\.\d GiB\), 18 and the embeddings on the CPU; context 8,192$")
        self.assertEqual([(d["name"], d["layers"]) for d in report["devices"]], [("cpu", 18), ("null", 12)])
        whole = Run("check", SMOL, "--json").json()["devices"][0]
        self.assertEqual(sum(d["kv_bytes"] for d in report["devices"]), whole["kv_bytes"])
        self.assertLess(report["devices"][0]["weights_bytes"], whole["weights_bytes"])
        text = Run("check", SMOL, "--device", "null", "--gpu-layers", "12").out
        self.assertIn(report["layers"] + "\ndevice cpu: ", text)
        self.assertIn(", 12 layers\n", text)
        for layers, devices, says in [("0", ["cpu"], "no layers on null: all 30 on the CPU; "), ("all", ["null"], "all 30 layers on null ("),
                                      ("30", ["null"], "all 30 layers on null ("), ("99", ["null"], "all 30 layers on null (")]:
            report = Run("check", SMOL, "--device", "null", "--gpu-layers", layers, "--json").json()
            self.assertEqual([d["name"] for d in report["devices"]], devices)
            self.assertTrue(report["layers"].startswith(says), report["layers"])
        for args in [[], ["--gpu-layers", "auto"], ["--gpu-layers", "0"]]:
            self.assertNotIn("layers", Run("check", SMOL, "--json", *args).json())

    def test_texts_are_the_cpus(self):
        args = ["complete", SMOL, "The capital of France is", "-n", "8", "--temp", "0", "--ctx", "512"]
        cpu = Run(*args)
        for layers in ["0", "1", "2"]:
            run = Run(*args, "--device", "reference", "--gpu-layers", layers)
            self.assertEqual((run.rc, run.out), (0, cpu.out), run.err)
            self.assertIn(" layers on reference", run.err.split("\n")[0])
        self.assertNotIn(" layers on ", cpu.err)

    def test_what_cannot_be(self):
        for args, rc, says in [(["--gpu-layers", "3"], 3, "--gpu-layers 3: --device cpu has no layers on a GPU"),
                               (["--gpu-layers", "all"], 3, "--gpu-layers all: --device cpu has no layers on a GPU"),
                               (["--device", "null", "--gpu-layers", "-1"], 2, "wanted a number of layers, all or auto"),
                               (["--device", "null", "--gpu-layers", "some"], 2, "wanted a number of layers, all or auto")]:
            run = Run("complete", SMOL, "a", "-n", "1", *args)
            self.assertEqual((run.rc, run.err.count("\n")), (rc, 1), run.err)
            self.assertIn(says, run.err)


class Outputs(unittest.TestCase):
    def test_the_model_is_never_overwritten(self):
        with tempfile.TemporaryDirectory() as folder:
            model, link = os.path.join(folder, "m.gguf"), os.path.join(folder, "link")
            subprocess.run(["cp", harness.model(SMOL), model], check=True)
            os.symlink(model, link)
            size = os.path.getsize(model)
            for args in [["logits", model, "--tokens", "1,2", "--out"], ["graph", model, "-o"],
                         ["bench", model, "-p", "4", "-n", "0", "-r", "1", "--profile-trace"]]:
                for target in [model, link]:
                    run = Run(*args, target)
                    self.assertEqual((run.rc, run.err.count("\n"), os.path.getsize(model)), (2, 1, size), run.err)
                    self.assertIn("that is the model", run.err)
            kept = os.path.join(folder, "kept")
            with open(kept, "w") as file:
                file.write("precious")
            self.assertEqual(Run("logits", model, "--tokens", "99999999", "--out", kept).rc, 2)
            self.assertEqual(os.path.getsize(kept), 8)

    def test_a_mapped_file_that_is_cut_short(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "m.gguf")
            subprocess.run(["cp", harness.model(SMOL), model], check=True)
            process = subprocess.Popen([harness.BINARY, "complete", model, "Once upon a time", "--ignore-end", "-n", "500", "--weights", "mapped"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
            process.stdout.read(1)
            os.truncate(model, 1000)
            _, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, err), (5, b"argent: a file in use was cut short, or cannot be read\n"))

    def test_limits_of_the_process(self):
        # 345,000 KiB of address space, of which 135 MB are taken before memory is planned (98 of them the file's mapping).
        # 330,000 leave the workspace no place, 340,000 do.
        run = subprocess.run(["bash", "-c", f"ulimit -v 345000; exec {harness.BINARY} complete {SMOL} 'The capital' -n 2 --temp 0 -t 2"],
                             capture_output=True, text=True, env=environment())
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, r"argent: weights are used where they lie in the file, .* [\d.]+ MB are wanted, [\d.]+ MB are free\n")


class Group:
    """A control group with a memory limit (cgroup 2, else 1), for runs of the binary; unittest.SkipTest where none can be made."""

    KINDS = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]

    def __init__(self, limit):
        for root, name in self.KINDS:
            self.path = os.path.join(root, f"argent_test_{os.getpid()}")
            try:
                os.mkdir(self.path)
            except OSError:
                continue
            try:
                with open(os.path.join(self.path, name), "r+") as file:
                    file.write(str(limit))
                return
            except OSError:
                self.close()
        raise unittest.SkipTest("no control group with a memory limit can be made here")

    def run(self, *args):
        procs = os.path.join(self.path, "cgroup.procs")
        return subprocess.run(["bash", "-c", 'echo $$ > "$0" && exec "$@"', procs, harness.BINARY, *args],
                              capture_output=True, text=True, env=environment(), timeout=120)

    def close(self):
        for _ in range(50):  # the kernel may still be taking leave of the last process
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.1)


class ControlGroups(unittest.TestCase):
    def within(self, limit, *args):
        group = Group(limit)
        try:
            return group.run(*args)
        finally:
            group.close()

    def check(self, limit, weights, *args):
        run = self.within(limit, *args)
        self.assertEqual(run.returncode, 0, (limit, args, run.stderr))
        told = re.search(r"with a copy of them ([\d.]+) MB are wanted, ([\d.]+) MB are free\n", run.stderr)
        self.assertEqual(told is not None, weights == "mapped", run.stderr)
        if told:
            self.assertGreater(float(told[1]), float(told[2]))
        return run.stdout

    def test_what_fits_is_chosen_and_nothing_is_killed(self):
        for limit, weights in [(150 << 20, "mapped"), (250 << 20, "resident"), (600 << 20, "resident")]:
            # peaks are measured in memory of their own where that is free
            out = self.check(limit, weights, "bench", SMOL, "-p", "64", "-n", "4", "-r", "1", "-o", "json")
            row = json.loads(out)[0]
            self.assertEqual(row["weights"], weights)
            self.assertEqual(row["peaks"]["read_bytes_per_second"] > 0, limit == 600 << 20)
        self.check(150 << 20, "mapped", "complete", SMOL, "The capital of France is", "-n", "4", "--temp", "0", "--profile")

    def test_an_unasked_context_shrinks_before_weights_are_mapped(self):
        for limit, weights in [(240_000_000, "mapped"), (275_000_000, "resident")]:
            report = json.loads(self.within(limit, "check", SMOL, "--json").stdout)
            self.assertEqual(report["devices"][0]["weights"], weights)
            self.assertGreaterEqual(report["n_ctx"], 2048)

    def test_what_does_not_fit_is_refused(self):
        run = self.within(60 << 20, "complete", SMOL, "a", "-n", "1")
        self.assertEqual((run.returncode, run.stderr.count("\n")), (6, 1), run.stderr)
        needed, free = re.search(r"needs ([\d.]+) MB .*; ([\d.]+) MB are free", run.stderr).groups()
        self.assertGreater(float(needed), float(free))


class Threads(unittest.TestCase):
    def test_no_more_than_can_run_at_once(self):
        usable = len(os.sched_getaffinity(0))
        run = Run("complete", SMOL, "a", "-n", "2", "-t", "1000")
        self.assertEqual(run.rc, 0)
        self.assertRegex(run.err, r"argent: 1000 threads were asked for, (\d+) can run at once here: \1 do\n")
        self.assertLessEqual(int(re.search(r"for, (\d+) can", run.err)[1]), usable)
        for pin in ["0", "1"]:
            self.assertEqual(Run("complete", SMOL, "a", "-n", "2", "--temp", "0", env={"ARGENT_PIN": pin}).rc, 0)

