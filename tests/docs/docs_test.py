#!/usr/bin/env python3
"""Runs every command that the documents show: the ```sh and ```python blocks of README.md, CONTRIBUTING.md and docs/.

    docs_test.py BINARY [PATTERN]

Set-up commands (./quickstart, ./test) are not run from here: the test script is one of them, and quickstart is checked to
exist. Nor are those that ./test has as suites, word for word. A command passes when it exits with 0 within its time. One that
ends in "&" is a server: it has to say where it serves, stays for the rest of its document, and has to end well on SIGTERM.
The ports of a document are free ones here, and curl fails where the server refuses. With a pattern, only documents whose name
contains it.
"""
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SKIPPED = ("./quickstart", "./test")
SUITES = set(re.findall(r"^(?:single|suite) \w+ (.*)$", (ROOT / "test").read_text(), re.M))
PORT = re.compile(r"\b8(?:080|081|443)\b")


def complete(command):
    if command.endswith("\\"):
        return False
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


def commands(text):
    """The languages and texts of a document's commands; a python block is one."""
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", text, re.M | re.S):
        if language == "python":
            yield language, block
            continue
        command = ""
        for line in block.splitlines():
            line = line if command else re.sub(r"\s+#.*", "", line).strip()
            command = f"{command}\n{line}" if command else line
            if complete(command):
                if command and not command.startswith("#"):
                    yield language, command
                command = ""
        assert not command, f"no end of: {command}"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Document:
    def __init__(self, path, binary, home):
        self.path, self.binary, self.ports, self.servers = path, binary, {}, []
        self.environment = {**os.environ, "CURL_HOME": home}

    def text(self, command):
        def port(match):
            if match[0] not in self.ports:
                self.ports[match[0]] = str(free_port())
            return self.ports[match[0]]
        if "build/argent serve" in command and "--port" not in command:
            command = command.replace("build/argent serve", "build/argent serve --port 8080")
        return PORT.sub(port, command).replace("build/argent", str(self.binary))

    def run(self, language, command):
        """Why it failed; none: it did not."""
        if command.startswith(SKIPPED):
            return None if os.access(ROOT / command.split()[0], os.X_OK) else "not executable"
        if command in SUITES:
            return None
        shell = self.text(command)
        if shell.endswith("&"):
            return self.start(shell[:-1])
        arguments = [sys.executable, "-c", shell] if language == "python" else ["bash", "-c", "set -o pipefail; " + shell]
        result = subprocess.run(arguments, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=300, errors="replace")
        return f"exit {result.returncode}: {(result.stdout + result.stderr).strip()[-300:]}" if result.returncode else None

    def start(self, shell):
        log = tempfile.TemporaryFile("w+", errors="replace")
        process = subprocess.Popen(["bash", "-c", "exec " + shell], cwd=ROOT, env=self.environment, stdout=log, stderr=log)
        self.servers.append((process, log))
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None:
            log.seek(0)
            if "serving at" in log.read():
                return None
            time.sleep(0.05)
        log.seek(0)
        return f"does not serve: {log.read()[-300:]}"

    def finish(self):
        """What went wrong with servers at their end."""
        for process, _ in self.servers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process, log in self.servers:
            try:
                status = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                status = "none within 60 s"
            if status != 0:
                log.seek(0)
                yield f"a server's exit is {status}: {log.read()[-300:]}"


def main():
    binary = Path(sys.argv[1]).resolve()
    pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    passed = failed = 0

    def count(name, command, wrong):
        nonlocal passed, failed
        passed, failed = passed + (not wrong), failed + bool(wrong)
        print(f"{'FAILED' if wrong else 'ok'}  {name}: {command}" + (f"  ({wrong})" if wrong else ""), flush=True)

    with tempfile.TemporaryDirectory() as home:
        (Path(home) / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
        for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
            if pattern not in path.name:
                continue
            document = Document(path, binary, home)
            for language, command in commands(path.read_text()):
                count(path.name, command, document.run(language, command))
            for wrong in document.finish():
                count(path.name, "the end", wrong)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
