#!/usr/bin/env python3
"""Runs every command that the documents show: the ```sh blocks of README.md, CONTRIBUTING.md and docs/.

    docs_test.py BINARY

Set-up commands (./quickstart, ./test) are not run from here: the test script is one of them, and quickstart is checked to
exist. A command passes when it exits with 0 within its time.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SKIPPED = ("./quickstart", "./test")


def blocks():
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for document in documents:
        for block in re.findall(r"^```sh\n(.*?)^```", document.read_text(), re.M | re.S):
            for line in block.splitlines():
                command = re.sub(r"\s+#.*", "", line).strip()
                if command and not command.startswith("#"):
                    yield document.name, command


def main():
    binary = Path(sys.argv[1]).resolve()
    passed = failed = 0
    for document, command in blocks():
        if command.startswith(SKIPPED):
            ok = os.access(ROOT / command.split()[0], os.X_OK)
            reason = "not executable"
        else:
            shell = command.replace("build/argent", str(binary))
            result = subprocess.run(["bash", "-c", "set -o pipefail; " + shell], cwd=ROOT, capture_output=True, text=True, timeout=300, errors="replace")
            ok, reason = result.returncode == 0, f"exit {result.returncode}: {result.stderr.strip()[-300:]}"
        passed, failed = passed + ok, failed + (not ok)
        print(f"{'ok' if ok else 'FAILED'}  {document}: {command}" + ("" if ok else f"  ({reason})"))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
