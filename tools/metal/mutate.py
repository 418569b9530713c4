#!/usr/bin/env python3
"""Breaks kernels in one place at a time and asks whether the tests notice: every barrier and guard must be needed by some case.

  mutate.py BUILD                      all mutants of all kernels; BUILD holds test_metal_checked and compile_commands.json
  mutate.py BUILD --sample N --seed S  a random choice of N
  mutate.py BUILD --since REVISION     those of kernels whose text differs from that git revision; with --sample, and N of the rest
  mutate.py BUILD --only WORD          those whose description contains the word
  mutate.py BUILD --every-format       a helper's places for each of its formats; otherwise each for one of them, in turn
  mutate.py BUILD --list               what there is, without running anything

A mutant removes a barrier, names the other memory in its flags, makes a condition of an `if` or `?:` (or one part of an `&&`)
true, turns a < of one into <=, or takes away a clamp min(x, ...). Mutants of a kernel file are compiled together, each in a namespace of its own, and loaded
by the test program; each runs in a process of its own against the cases of the kernels that it touches. A line with the comment
`not mutated: WHY` is left out: where a change makes no difference to any result.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile

import gen

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "src/backends/metal/kernels"
TIMEOUT_S = 60  # of a mutant's run; one that never ends has been noticed


@dataclasses.dataclass
class Mutant:
    file: pathlib.Path
    line: int
    kind: str
    what: str
    text: str
    kernel: str    # whose cases must notice
    number: int = 0

    def __str__(self):
        return f"{self.file.name}:{self.line}: {self.what} [{self.kernel}]"


def top_level_and(condition):
    """(start, end) of the parts of a conjunction."""
    depth, start = 0, 0
    for m in re.finditer(r"[(\[]|[)\]]|&&|\|\|", condition):
        depth += (m[0] in "([") - (m[0] in ")]")
        if m[0] == "||" and depth == 0:
            return []
        if m[0] == "&&" and depth == 0:
            yield start, m.start()
            start = m.end()
    if start:
        yield start, len(condition)


def changes(text):
    """(kind, description, start, end, replacement) of every place."""
    for m in re.finditer(r"\b(threadgroup|simdgroup)_barrier\(mem_flags::mem_(\w+)\);", text):
        yield "barrier", f"no {m[0]}", m.start(), m.end(), ";"
        other = {"threadgroup": "device", "device": "threadgroup"}.get(m[2])
        if other:
            yield "flags", f"mem_{other} in {m[1]}_barrier", m.start(2), m.end(2), other
    for m in re.finditer(r"\bif \(", text):
        start, end = m.end(), gen.closing(text, m.end() - 1) - 1
        condition = text[start:end]
        yield "guard", f"if (true) for if ({condition})", start, end, "true"
        for a, b in list(top_level_and(condition)):
            yield "guard", f"if without {condition[a:b].strip()}", start + a, start + b, " true "
        for c in re.finditer(" < ", condition):
            yield "edge", f"<= in if ({condition})", start + c.start(), start + c.end(), " <= "
    operand = r"[\w.\[\]]+(?: [-+*/%] [\w.\[\]]+)*"
    for m in re.finditer(rf"({operand} (?:<|>=|==) {operand}|\bk[A-Z]\w+) \?", text):
        yield "guard", f"true ? for {m[0]}", m.start(1), m.end(1), "true"
        if " < " in m[1]:
            at = m.start(1) + m[1].index(" < ")
            yield "edge", f"<= in {m[0]}", at, at + 3, " <= "
    for m in re.finditer(r"\bmin\(", text):
        end = gen.closing(text, m.end() - 1)
        first = gen.split_commas(text[m.end():end - 1])[0]
        yield "clamp", f"no {text[m.start():end]}", m.start(), end, f"({first})"


def mutants(path, every_format):
    raw = path.read_text()
    source = gen.read(raw, path.name)
    if source.errors:
        sys.exit(f"{path} breaks the dialect; see tools/metal/gen.py check")
    lines = raw.split("\n")
    spans = []  # (start, end, name) of functions; positions are those of the raw text
    for name, position, _, _, body in gen.functions(source.text):
        start = source.text.index(body, position)
        spans.append((position, start + len(body), name))
    reach = {k.name: reachable(source.text, k.name) for k in source.kernels}
    formats = {k.name for k in gen.read("\n".join(body for _, _, made in gen.stamps(raw) for _, body in made), path.name).kernels}
    turn = 0
    for kind, what, start, end, replacement in changes(source.text):
        line = raw.count("\n", 0, start) + 1
        if "not mutated:" in lines[line - 1]:
            continue
        inside = next((name for a, b, name in spans if a <= start < b), None)
        kernels = [k for k in reach if inside in reach[k]]  # a helper's places once for each kernel
        if kernels and formats.issuperset(kernels) and not every_format:
            kernels = [kernels[turn % len(kernels)]]
            turn += 1
        for kernel in kernels:
            yield Mutant(path, line, kind, " ".join(what.split()), raw[:start] + replacement + raw[end:], kernel)


def reachable(text, kernel):
    bodies = {}
    for name, _, _, _, body in gen.functions(text):
        bodies[name] = bodies.get(name, "") + body
    seen, waiting = set(), [kernel]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [w for w in set(re.findall(r"\w+", bodies.get(name, ""))) if w in bodies]
    return seen


def changed_kernels(revision):
    """(file name, kernel) of kernels whose own or reached text differs from the revision's."""
    for path in sorted(KERNELS.glob("*.metal")):
        then = subprocess.run(["git", "show", f"{revision}:{path.relative_to(ROOT)}"], cwd=ROOT, capture_output=True, text=True, check=False)
        now, old = gen.read(path.read_text(), path.name), gen.read(then.stdout, path.name)

        def words(source):
            return {name: " ".join(body.split()) for name, _, _, _, body in gen.functions(source.text)}
        new, before = words(now), words(old)
        for kernel in now.kernels:
            if any(new.get(f) != before.get(f) for f in reachable(now.text, kernel.name)):
                yield path.name, kernel.name


def compile_command(build):
    """The command that the build uses for checked kernels, to compile one source to a shared object."""
    entries = json.loads(gen.load(build / "compile_commands.json"))
    entry = next((e for e in entries if "argent_metal_kernels_checked" in e["command"] and e["file"].endswith("mul_mv.cc")), None)
    if not entry:
        sys.exit(f"{build}/compile_commands.json has no kernels with checks: is the build configured with ARGENT_TESTS, by g++?")
    words = shlex.split(entry["command"])
    words = words[1:] if "ccache" in words[0] else words
    command, skip = [], False
    for word in words:
        if skip or word in ("-c", entry["file"]):
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        elif word != "-MD":
            command.append(word)
    return [*command, "-fPIC", "-w", "-c"], entry["directory"]


def write_together(group, path):
    """One translation unit with all mutants of a file, each in its namespace; includes once, before."""
    includes = [line for line in group[0].file.read_text().split("\n") if line.startswith("#include") and not line.endswith('.def"')]
    parts = includes
    for mutant in group:
        source = gen.read(mutant.text, mutant.file.name)
        source.kernels = [k for k in source.kernels if k.name == mutant.kernel]
        text = re.sub(r"^#include[^\n]*", "", gen.stamped_only(mutant.text, mutant.kernel), flags=re.M)
        parts += [f"namespace mutant_{mutant.number} {{", f'#line 1 "{mutant.file.name}"', text, '#line 1 "tables"', gen.host_tables(source, mutant.number), "}"]
    path.write_text("\n".join(parts) + "\n")


def run(build, library, mutant):
    """How the mutant was noticed, or None."""
    filters = ":".join(f"*Right/{order}_{mutant.kernel}_*" for order in ("ascending", "descending", "shuffled"))
    command = [str(build / "test_metal_checked"), f"--kernels={library}", f"--variant={mutant.number}", f"--gtest_filter={filters}", "--gtest_fail_fast",
               "--gtest_brief=1"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "never ends"
    if result.returncode == 0:
        return None if re.search(r"\[  PASSED  \] [1-9]", result.stdout) else sys.exit(f"no case ran: {shlex.join(command)}")
    if result.returncode not in (0, 1):
        return f"exit {result.returncode}: {result.stderr[-300:]}"
    finding = re.search(r"first: ([a-z ]+): |(row \d+ column \d+ is)", result.stdout)
    return "wrong results" if finding and finding[2] else finding[1] if finding else result.stdout.strip()[-200:]


def choose(everything, options):
    if options.only:
        return [m for m in everything if options.only in str(m) or options.only in m.kind]
    chosen = []
    if options.since:
        changed = set(changed_kernels(options.since))
        chosen = [m for m in everything if (m.file.name, m.kernel) in changed]
    if options.sample is not None:
        rest = [m for m in everything if m not in chosen]
        chosen += random.Random(options.seed).sample(rest, min(options.sample, len(rest)))
    return chosen if options.since or options.sample is not None else everything


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--since")
    parser.add_argument("--only")
    parser.add_argument("--every-format", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.sample is not None and options.sample < 0 or options.jobs < 1:
        parser.error("--sample is 0 or more, --jobs 1 or more")
    everything = [m for path in sorted(KERNELS.glob("*.metal")) for m in mutants(path, options.every_format)]
    chosen = choose(everything, options)
    if options.only and not chosen:
        parser.error(f"--only {options.only}: no mutant is described so")
    if options.list:
        print("\n".join(f"{m.kind:8} {m}" for m in chosen))
        return
    build = options.build.resolve()
    command, directory = compile_command(build)
    groups = {}
    for number, mutant in enumerate(chosen, 1):
        mutant.number = number
        groups.setdefault(mutant.file, []).append(mutant)
    # The unchanged text as a mutant: it must pass, or the rest says nothing.
    for i, (path, group) in enumerate(groups.items()):
        group.append(Mutant(path, 0, "control", "unchanged", path.read_text(), group[0].kernel, len(chosen) + 1 + i))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        def prepare(group):
            source = pathlib.Path(folder) / f"{group[0].file.stem}.cc"
            write_together(group, source)
            steps = [[*command, str(source), "-o", str(source.with_suffix(".o"))],
                     # Linked without the sanitizers' libraries: the program has their functions.
                     [command[0], "-shared", str(source.with_suffix(".o")), "-o", str(source.with_suffix(".so"))]]
            for step in steps:
                made = subprocess.run(step, cwd=directory, capture_output=True, text=True, check=False)
                if made.returncode:
                    sys.exit(f"mutants of {group[0].file.name} do not compile:\n{made.stderr[:2000]}")
            return source.with_suffix(".so")
        libraries = dict(zip(groups, pool.map(prepare, groups.values())))
        all_of_them = [m for group in groups.values() for m in group]
        results = list(pool.map(lambda m: run(build, libraries[m.file], m), all_of_them))
    how, survivors = {}, []
    for mutant, noticed in zip(all_of_them, results):
        if mutant.kind == "control":
            if noticed:
                sys.exit(f"{mutant.file.name} unchanged does not pass: {noticed}")
        elif noticed:
            how[noticed] = how.get(noticed, 0) + 1
        else:
            survivors.append(mutant)
    for mutant in survivors:
        print(f"NOT NOTICED {mutant.kind} {mutant}")
    ways = ", ".join(f"{n} by {w}" for w, n in sorted(how.items(), key=lambda item: -item[1]))
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants noticed ({len(everything)} in all): {ways}")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
