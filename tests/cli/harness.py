"""What the tests of the command line share: running the binary, a terminal to type at, small GGUF files."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

SMOL = "smollm2-135m-instruct-q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
BINARY = None  # set by cli_test.py
HOME = None    # a scratch folder: history files and the like stay out of the user's


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("ARGENT_") or k == "ARGENT_MODELS"}
    env.update(HOME=HOME, XDG_STATE_HOME=os.path.join(HOME, "state"), LC_ALL="C.UTF-8")
    env.update(more)
    return env


class Run:
    def __init__(self, *args, stdin=None, env=None, timeout=60):
        command = [BINARY, *map(str, args)]
        data = stdin.encode() if isinstance(stdin, str) else stdin
        where = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
        done = subprocess.run(command, capture_output=True, env=environment(**(env or {})), timeout=timeout, **where)
        self.rc, self.raw = done.returncode, done.stdout
        self.out, self.err = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")

    def json(self):
        assert self.rc == 0, (self.rc, self.err)
        return json.loads(self.out)


def model(name=SMOL):
    return os.path.join(os.environ["ARGENT_MODELS"], name)


class Terminal:
    """The binary at a terminal of its own."""

    def __init__(self, *args, columns=80, rows=24, **env):
        self.seen = b""
        self.mark = 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execve(BINARY, [BINARY, *map(str, args)], environment(TERM="xterm", **env))
            finally:
                os._exit(127)
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, size)

    def _read(self, timeout):
        ready, _, _ = select.select([self.fd], [], [], timeout)
        if not ready:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the other side is gone
            data = b""
        self.seen += data
        return bool(data)

    def expect(self, pattern, timeout=20):
        """Waits until what came since the last match matches; returns the text up to there."""
        deadline = time.time() + timeout
        wanted = re.compile(pattern.encode() if isinstance(pattern, str) else pattern)
        while True:
            found = wanted.search(self.seen, self.mark)
            if found:
                text = self.seen[self.mark:found.end()]
                self.mark = found.end()
                return text.decode("utf-8", "replace")
            left = deadline - time.time()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"{pattern!r} did not come; seen: {self.seen[self.mark:]!r}")

    def send(self, text):
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def close(self, timeout=10):
        """Waits for the end; returns the exit code."""
        deadline = time.time() + timeout
        while time.time() < deadline:
            if not self._read(0.05):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    os.close(self.fd)
                    return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"it did not end; seen: {self.seen[self.mark:]!r}")


def _string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path, keys, tensors=()):
    """keys: {name: str | int | float}; tensors: (name, dims, type id, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        head += _string(key)
        if isinstance(value, str):
            head += struct.pack("<I", 8) + _string(value)
        elif isinstance(value, float):
            head += struct.pack("<If", 6, value)
        else:
            head += struct.pack("<II", 4, value)
    data = b""
    for name, dims, kind, raw in tensors:
        data += b"\0" * (-len(data) % 32)
        head += _string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", kind, len(data))
        data += raw
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % 32) + data)
