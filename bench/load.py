#!/usr/bin/env python3
"""How long argent takes to load a model, against two threads that read the file into fresh huge pages.

    bench/load.py build/argent MODEL.gguf [--rounds 9] [--json]

The two alternate and the medians are compared. Before each, as many fresh huge pages are written and given back, so
that both find memory in the same state (virtual machines give pages back to their host, and get them again slowly).
The file should be in the page cache.
"""
import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time

PIECE = 2 << 20


def fill(file: int, size: int, read: bool) -> float:
    """Seconds that two threads take to fill `size` bytes of fresh huge pages, from the file or with a constant."""
    start = time.perf_counter()
    pages = mmap.mmap(-1, (size + 2 * PIECE - 1) // PIECE * PIECE + PIECE,
                      flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    view, constant = memoryview(pages), bytes(PIECE)
    offsets = iter(range(0, size, PIECE))

    def work() -> None:
        for at in offsets:
            part = view[at:at + min(PIECE, size - at)]
            if read:
                os.preadv(file, [part], at)
            else:
                part[:] = memoryview(constant)[:len(part)]

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    view.release()
    pages.close()
    return seconds


def load(argent: str, model: str) -> float:
    command = [argent, "bench", model, "-t", "2", "-p", "0", "-n", "1", "-r", "1", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"load.py: {argent} bench ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)[0]["load_seconds"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("argent")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=9, help="default 9")
    parser.add_argument("--json", action="store_true", help="one JSON line instead of text")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: wanted at least 1")
    if not os.access(args.argent, os.X_OK):
        parser.error(f"{args.argent}: no program")
    path = args.model
    if not os.path.exists(path):  # as argent finds it
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        path = os.path.join(os.environ.get("ARGENT_MODELS") or os.path.join(cache, "argent/models"), path)
    load(args.argent, args.model)  # what argent refuses ends here, with its reason
    file = os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    reads, loads = [], []
    room = size + size // 16 + (256 << 20)  # what argent takes: the model, and what it computes with
    for _ in range(args.rounds):
        fill(file, room, False)
        reads.append(fill(file, size, True))
        fill(file, room, False)
        loads.append(load(args.argent, args.model))
    read, loaded = statistics.median(reads), statistics.median(loads)
    if args.json:
        print(json.dumps({"model": args.model, "bytes": size, "read_seconds": reads, "load_seconds": loads,
                          "ratio": loaded / read}))
    else:
        print(f"{os.path.basename(args.model)}: {size / 1e6:.0f} MB; two threads read it in {read:.4f} s "
              f"({size / read / 1e9:.1f} GB/s), argent loads it in {loaded:.4f} s: {loaded / read:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
