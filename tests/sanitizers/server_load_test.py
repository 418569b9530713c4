#!/usr/bin/env python3
"""`argent serve`, built with a sanitizer, under load: every interface, streams, clients that die, crawl or send nonsense,
models that come and go, and the end while all of that runs. Nothing may be found.

    ARGENT_MODELS=FOLDER server_load_test.py BINARY [--seconds N]
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
import harness_server as harness  # noqa: E402
import traffic  # noqa: E402
from harness_server import CHAT, EMBED, TEXT, Stream  # noqa: E402
from tiny_models_test import OPTIONS, found  # noqa: E402


def check(server, code):
    log = "\n".join(line for line in server.lines if line)
    if code != 0 or found(log):
        sys.exit(f"FAILED ({code}):\n{log[-12000:]}")


def busy(folder, seconds):
    """The load of the long test, without its pauses."""
    server = traffic.serve(folder)
    try:
        load = traffic.Traffic(server, share=0)
        load.resume()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not load.over:
            time.sleep(0.1)
        load.stop()
        if not load.errors:
            load.check_rest()
        code = server.stop(timeout=120)
    finally:
        server.process.kill()
    check(server, code)
    if load.errors:
        sys.exit("FAILED: a client saw what it must not\n" + "\n".join(load.errors))
    print(f"{sum(load.counts.values())} acts: {load.counts}")


def ended(folder, signals):
    """Ends while answers run and wait, models load, and clients come."""
    server = traffic.serve(folder, "--drain", 2)
    try:
        long = {"max_tokens": 400, "ignore_eos": True}
        bodies = [(TEXT, {"prompt": "a ship", "n": 3, **long}), (CHAT, {"messages": traffic.user("a lamp"), **long}),
                  (EMBED, {"input": ["fog and rain"] * 20}), (TEXT, {"model": traffic.OTHERS[0], "prompt": [1, 2], **long})]
        clients = [Stream(server.port, path, {**body, **({} if path == EMBED else {"stream": i % 2 == 0})})
                   for i, (path, body) in enumerate(bodies * 4)]
        time.sleep(0.5)

        def read(client):
            try:
                while client.socket.recv(65536):
                    pass
            except OSError:
                pass
            client.close()

        readers = [threading.Thread(target=read, args=(client,)) for client in clients]
        for r in readers:
            r.start()
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        code = server.process.wait(120)
        for r in readers:
            r.join()
        server.reader.join()
    finally:
        server.process.kill()
    check(server, code)
    print(f"ended by {signals} signal{'s' * (signals > 1)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    harness.PROGRAM = args.binary.resolve()
    os.environ.update(OPTIONS)
    for part in (lambda folder: busy(folder, args.seconds), lambda folder: ended(folder, 1), lambda folder: ended(folder, 2)):
        with tempfile.TemporaryDirectory() as folder:
            part(folder)
    print("ok")


if __name__ == "__main__":
    main()
