#!/usr/bin/env python3
"""contrib/argent.service: systemd reads it without a complaint, and the program has its flags.

    service_test.py BINARY
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
UNIT = ROOT / "contrib/argent.service"
MOST_EXPOSED = "20"  # tenths of systemd's scale from 0 (nothing) to 10


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def main():
    binary = Path(sys.argv[1]).resolve()
    unit = UNIT.read_text()
    known = run(binary, "serve", "--help").stdout
    for flag in set(re.findall(r"(--[a-z-]+)", unit)):
        assert re.search(rf"^\s+(-\w,)?{flag}\b", known, re.M), f"argent serve has no {flag}"
    if not shutil.which("systemd-analyze"):
        print("no systemd-analyze here: flags are checked only")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / UNIT.name
        copy.write_text(unit.replace("/usr/local/bin/argent", str(binary)))
        for command in (("verify", copy), ("security", "--offline=yes", f"--threshold={MOST_EXPOSED}", copy)):
            result = run("systemd-analyze", *command)
            said = [line for line in result.stderr.splitlines() if UNIT.name in line]
            assert result.returncode == 0 and not said, f"{command}: exit {result.returncode}: {result.stderr}{result.stdout[-300:]}"
    print("ok")


if __name__ == "__main__":
    main()
