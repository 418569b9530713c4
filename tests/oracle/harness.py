"""What the oracle tests share: running argent, comparing logits, reporting, and a cache of oracle logits."""

import contextlib
import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import llama
import to_f32


def cache_folder():
    return Path(os.environ.get("ARGENT_CACHE") or Path.home() / ".cache" / "argent-tests")


class Report:
    """One line a comparison, a summary at the end."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, ok, detail=""):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        print(f"{'pass' if ok else 'FAIL'}  {what}{': ' if detail else ''}{detail}", flush=True)
        return ok

    def at_most(self, what, value, bound, form=".2e"):
        return self.check(what, value <= bound, f"{value:{form}} (at most {bound:{form}})")  # NaN fails

    def at_least(self, what, value, bound, form=".2f"):
        return self.check(what, value >= bound, f"{value:{form}} (at least {bound:{form}})")

    def note(self, text):
        print(f"      {text}", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0


@dataclass
class Difference:
    """Of two [n, n_vocab] arrays: squared error over squared oracle, in all and in the worst row; percent of rows
    with one best id."""

    nmse: float
    worst_row: float
    top1: float

    def __str__(self):
        return f"NMSE {self.nmse:.2e}, worst row {self.worst_row:.2e}, top-1 {self.top1:.2f} %"


def compare(ours, oracle):
    if ours.shape != oracle.shape:
        raise ValueError(f"logits of shape {ours.shape} against {oracle.shape}")
    error, power, same = [], [], 0
    step = max(1, (1 << 24) // oracle.shape[1])
    for i in range(0, len(oracle), step):
        a, b = np.asarray(ours[i : i + step], np.float32), np.asarray(oracle[i : i + step], np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            error += [float(np.dot(d, d)) for d in (a - b)]
        power += [float(np.dot(r, r)) for r in b]
        same += int((a.argmax(1) == b.argmax(1)).sum())
    error, power = np.array(error), np.array(power)
    return Difference(error.sum() / power.sum(), float((error / power).max()), 100 * same / len(oracle))


def perplexity(rows_of, tokens, n_ctx, bos, chunks=None):
    """Perplexity as llama-perplexity counts it, and its uncertainty.

    The text is cut into windows of n_ctx tokens, a rest is dropped, the first token of a window gives way to `bos`
    unless that is None, and the tokens after the middle of a window are scored: n_ctx - n_ctx // 2 - 1 each.
    rows_of(window, first) returns the logits after window[first:].
    """
    nll = []
    for start in range(0, len(tokens) // n_ctx * n_ctx if chunks is None else chunks * n_ctx, n_ctx):
        window, first = list(tokens[start : start + n_ctx]), n_ctx // 2
        if bos is not None:
            window[0] = bos
        for row, target in zip(rows_of(window, first)[:-1], window[first + 1 :]):
            top = float(row.max())
            nll.append(
                np.log(np.exp(row - np.float32(top), dtype=np.float32).sum(dtype=np.float64)) + top - float(row[target])
            )
    nll = np.array(nll)
    return float(np.exp(nll.mean())), float(np.exp(nll.mean()) * nll.std() / np.sqrt(len(nll) - 1))


class Oracle:
    """llama.cpp's answers for one file, each computed once and kept under the cache folder."""

    def __init__(self, path, threads=None, folder=None):
        self.path, self.threads = Path(path), threads
        self.folder = Path(folder or cache_folder())
        self.digest = to_f32.sha256(path)
        with llama.Model(path, vocab_only=True) as model:
            self.n_vocab, self.bos = model.n_vocab, model.bos if model.add_bos else None

    def file(self, mode):
        return to_f32.cached(self.path, self.folder, self.digest) if mode.f32_weights else self.path

    def settings(self, mode):
        return dict(flash_attn=mode.flash_attn, cache_type=mode.cache_type, threads=self.threads)

    def cached(self, tokens, mode):
        """(path, logits or None) of what the cache holds for these tokens."""
        key = hashlib.sha256(f"{llama.version()} {self.digest} {mode} {list(tokens)}".encode()).hexdigest()
        path, shape = self.folder / f"{key}.logits", (len(tokens), self.n_vocab)
        whole = path.exists() and path.stat().st_size == 4 * shape[0] * shape[1]
        return path, np.memmap(path, "<f4", "r", shape=shape) if whole else None

    def logits(self, tokens, mode):
        """float32 [len(tokens), n_vocab], mapped from the cache."""
        path, found = self.cached(tokens, mode)
        if found is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as out:
                    for _, rows in llama.stream_logits(self.file(mode), tokens, **self.settings(mode)):
                        out.write(rows.data)
                os.replace(part, path)
            finally:
                Path(part).unlink(missing_ok=True)
            found = self.cached(tokens, mode)[1]
        return found

    def perplexity(self, text, n_ctx, mode, chunks=None):
        """llama-perplexity's value and uncertainty; a window whose logits are cached is not computed again."""
        with contextlib.ExitStack() as stack:
            session = None

            def rows_of(window, first):
                nonlocal session
                found = self.cached(window, mode)[1]
                if found is not None:
                    return found[first:]
                if session is None:
                    model = stack.enter_context(llama.Model(self.file(mode)))
                    session = stack.enter_context(llama.Session(model, n_ctx, n_ubatch=n_ctx, **self.settings(mode)))
                session.clear()
                return session.decode(window, first)

            return perplexity(rows_of, llama.tokenize(self.path, text, parse_special=False), n_ctx, self.bos, chunks)


class ArgentError(Exception):
    pass


class Argent:
    """The program under test, through its command line."""

    def __init__(self, binary, folder, threads=None, timeout=600):
        self.binary, self.folder, self.timeout = str(binary), Path(folder), timeout
        self.threads = ["-t", str(threads)] if threads else []

    def run(self, *args, stdin=b""):
        """stdout as bytes."""
        try:
            done = subprocess.run(
                [self.binary, *map(str, args), *self.threads], input=stdin, capture_output=True, timeout=self.timeout
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ArgentError(f"argent {args[0]}: {error}") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise ArgentError(
                f"argent {args[0]} ends with {done.returncode}: {lines[-1] if lines else 'nothing on stderr'}"
            )
        return done.stdout

    def logits(self, model, tokens, n_vocab, *, activations="native", cache_type="f16", passes=None):
        """float32 [len(tokens), n_vocab], mapped from the file that argent wrote."""
        out = self.folder / "argent.logits"
        out.unlink(missing_ok=True)
        extra = ["--passes", ",".join(map(str, passes))] if passes else []
        self.run(
            "logits",
            model,
            "--tokens",
            ",".join(map(str, tokens)),
            "--all",
            "--activations",
            activations,
            "--cache-type",
            cache_type,
            "-c",
            len(tokens),
            *extra,
            "--out",
            out,
        )
        wanted = 4 * len(tokens) * n_vocab
        if not out.exists() or out.stat().st_size != wanted:
            raise ArgentError(f"argent logits wrote {out.stat().st_size if out.exists() else 'no'} bytes, not {wanted}")
        return np.memmap(out, "<f4", "r", shape=(len(tokens), n_vocab))
