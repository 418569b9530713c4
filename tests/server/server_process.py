"""`argent serve` for a test: a free port, ready when entered, ended by SIGTERM."""
import re
import signal
import subprocess
import tempfile
import time


class Server:
    def __init__(self, binary, model=None, *flags, seconds=120):
        self.command = [binary, "serve", *([model] if model else []), "--port", "0", *flags]
        self.seconds = seconds

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def __enter__(self):
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(self.command, stderr=self._log, stdout=subprocess.DEVNULL)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and self._process.poll() is None:
            if found := re.search(r"serving at (http\S+)", self.log()):
                self.url = found[1]
                return self
            time.sleep(0.05)
        self.__exit__()
        raise RuntimeError(f"{' '.join(self.command)} does not serve:\n{self.log()[-2000:]}")

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
