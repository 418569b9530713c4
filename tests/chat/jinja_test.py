#!/usr/bin/env python3
"""Renders the same templates with argent's engine and with PyPI jinja2, set up as transformers does, and compares bytes.

    jinja_test.py PROBE [--seed N] [--count N] [--keep N]

PROBE is the program argent_template_probe. Compared are: the templates of templates/ and the built-in ones with the
conversations beside them, the chat template inside SmolLM2 when ARGENT_MODELS has the file, and --count random templates
from --seed on. An error on both sides counts as agreement; what argent refuses as unsupported is counted apart and may
only be a few in a hundred.
"""

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import warnings
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(Path(__file__).parent))
import jinja_cases  # noqa: E402

# What shows an address or another accident of Python is not compared.
ACCIDENTAL = re.compile(r" at 0x[0-9a-f]+|<built-in|<function|<class |<bound method|&lt;built-in|built-in method|missing", re.I)


class Lazy:
    """A one-pass iterable with the same repr everywhere, for the generators and iterators of jinja2's filters."""

    def __init__(self, it):
        self._it = it

    def __iter__(self):
        return self._it

    def __repr__(self):
        return "<generator object>"


def with_lazy_results(function):
    @functools.wraps(function)  # with the mark that asks for the context
    def wrapped(*args, **kwargs):
        result = function(*args, **kwargs)
        return Lazy(result) if hasattr(result, "__next__") else result

    return wrapped


class Generation(jinja2.ext.Extension):
    """{% generation %} as transformers has it: its body is the body of a call block."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(lineno)

    @jinja2.pass_eval_context
    def _support(self, context, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return datetime(2024, 3, 5, 14, 7, 9).strftime(format)

    for name in ("map", "select", "reject", "selectattr", "rejectattr", "unique", "items", "batch", "slice", "reverse"):
        env.filters[name] = with_lazy_results(env.filters[name])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def expected(env, case):
    """("text", text) or ("error", words)."""
    try:
        return "text", env.from_string(case["template"]).render(**case["context"])
    except Exception as e:  # every exception of a template is an error of it
        return "error", f"{type(e).__name__}: {e}"


def actual(probe, cases):
    lines = "".join(json.dumps(c) + "\n" for c in cases)
    done = subprocess.run([probe], input=lines.encode(), capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"{probe} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def corpus(probe):
    """Every template of templates/ and every built-in one with every conversation, with and without a generation prompt."""
    folder = Path(__file__).parent / "templates"
    conversations = json.loads((folder / "conversations.json").read_text())
    templates = {path.name: path.read_text() for path in sorted(folder.glob("*.jinja"))}
    builtins = ["chatml", "llama3", "gemma", "mistral"]
    for name, got in zip(builtins, actual(probe, [{"builtin": b} for b in builtins])):
        templates[f"the built-in {name}"] = got["text"]
    for template_name, template in templates.items():
        for name, conversation in conversations.items():
            for prompt in (False, True):
                context = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": prompt, **conversation}
                yield f"{template_name} with {name}", {"template": template, "context": context}


def model_template():
    path = Path(os.environ.get("ARGENT_MODELS", "")) / "smollm2-135m-instruct-q4_1.gguf"
    if not os.environ.get("ARGENT_MODELS") or not path.exists():
        return None
    import gguf

    field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
    return bytes(field.parts[field.data[0]]).decode()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("probe")
    args.add_argument("--seed", type=int, default=20240305)
    args.add_argument("--count", type=int, default=5000)
    args.add_argument("--keep", type=int, default=10, help="differences to show")
    args = args.parse_args()
    warnings.simplefilter("ignore")
    env = environment()

    named = list(corpus(args.probe))
    if template := model_template():
        named += [("SmolLM2's own", {"template": template, "context": c["context"]}) for _, c in named[:40]]
    named += [(f"seed {args.seed + i}", jinja_cases.case(args.seed + i)) for i in range(args.count)]

    counts = {"text": 0, "error": 0, "unsupported": 0, "accidental": 0}
    differences = 0
    for begin in range(0, len(named), 2000):
        chunk = named[begin : begin + 2000]
        for (name, case), got in zip(chunk, actual(args.probe, [c for _, c in chunk])):
            kind, want = expected(env, case)
            # jinja2 folds the slice of a constant that has no slices to undefined; here it is the error it is elsewhere.
            folded = "cannot be sliced" in got.get("error", "")
            if kind == "text" and got.get("text") != want and (folded or ACCIDENTAL.search(want)):
                counts["accidental"] += 1
            elif kind == "error" and "error" in got:
                counts["error"] += 1
            elif kind == "text" and got.get("text") == want:
                counts["text"] += 1
            elif got.get("unsupported"):
                counts["unsupported"] += 1
            else:
                differences += 1
                if differences <= args.keep:
                    print(f"--- {name}\n{case['template']!r}\n{json.dumps(case['context'], ensure_ascii=False)}")
                    print(f"jinja2 {kind}: {want!r}\nargent: {got.get('text')!r} {got.get('error', '')}\n")
    print(f"{len(named)} templates: {counts}, {differences} differences")
    too_few = counts["text"] < 0.3 * len(named) or counts["unsupported"] > 0.05 * len(named)
    if too_few:
        print("the cases compare too little")
    return 1 if differences or too_few else 0


if __name__ == "__main__":
    sys.exit(main())
