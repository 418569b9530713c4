#!/usr/bin/env python3
"""Breaks kernels in one place at a time and asks whether the tests notice: every barrier and guard must be needed by some case.

  mutate.py BUILD                      all mutants of all kernels; BUILD holds test_metal_checked and compile_commands.json
  mutate.py BUILD --sample N --seed S  a random choice of N
  mutate.py BUILD --since REVISION     those of kernels whose text differs from that git revision; with --sample, and N of the rest
  mutate.py BUILD --only WORD          those whose description contains the word
  mutate.py BUILD --every-format       a place for each kernel that reaches it; otherwise for one of those that share it, in turn
  mutate.py BUILD --list               what there is, without running anything

A mutant removes a barrier, names the other memory in its flags, makes a condition of an `if` or `?:` (or one part of an `&&`)
true, turns a < of one into <=, or takes away a clamp: min(x, ...), max(x, ...) or clamp(x, ...). Mutants of a file are compiled together, each in a namespace
of its own, and loaded by the test program; each runs in a process of its own against the cases of the kernels that it touches. A line with the comment
`not mutated: WHY` is left out: where a change makes no difference to any result. With `held by KERNEL` it is that kernel's, where the cases of others
that share the line cannot tell; `<= not mutated: WHY` leaves out that one change.

Headers that only kernels include are broken as well: a mutant of one holds its text, and that of the headers above it, in its own namespace.
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
    file: pathlib.Path    # what is broken: a kernel file or a header
    line: int
    kind: str
    what: str
    text: str             # of the broken file
    kernel: str           # whose cases must notice
    of: pathlib.Path      # the kernel's file
    number: int = 0

    def __str__(self):
        return f"{self.file.name}:{self.line}: {self.what} [{self.kernel}]"


@dataclasses.dataclass
class Function:
    file: pathlib.Path
    start: int            # from its name to the end of its body, in the file's text
    end: int
    name: str
    parameters: str
    body: str


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
    for m in re.finditer(r"\b(?:min|max|clamp)\(", text):
        end = gen.closing(text, m.end() - 1)
        first = gen.split_commas(text[m.end():end - 1])[0]
        yield "clamp", f"no {text[m.start():end]}", m.start(), end, f"({first})"


def headers_of(text):
    """Headers of kernels that a text includes and no host code does, those that they need before them."""
    found = []
    for name in re.findall(r'^#include "backends/metal/kernels/(\w+\.h)"', text, re.M):
        path = KERNELS / name
        if not name.startswith("args") and name != "dialect.h":
            found += [h for h in [*headers_of(path.read_text()), path] if h not in found]
    return found


def functions_of(path, text):
    """Functions of a file; positions are those of its text."""
    blanked = gen.read(text, path.name).text
    for name, position, _, parameters, body in gen.functions(blanked):
        yield Function(path, position, blanked.index(body, position) + len(body), name, parameters, body)


def reachable(functions, kernel):
    """The functions that a kernel reaches, by name. Of several with one name, those for a Reader only where that one is named."""
    names = [f.name for f in functions]
    reached, words = [], {kernel}
    while True:
        more = [f for f in functions if f not in reached and f.name in words and
                (names.count(f.name) == 1 or words.issuperset(re.findall(r"\b[A-Z]\w*Reader\b", f.parameters)))]
        if not more:
            return reached
        reached += more
        for f in more:
            words.update(re.findall(r"\w+", f.body))


class Kernels:
    """A kernel file with the headers below it: what each kernel reaches there, and which kernels all formats have."""
    def __init__(self, path, load=pathlib.Path.read_text):
        raw = load(path)
        self.path, self.source, self.headers = path, gen.read(raw, path.name), headers_of(raw)
        functions = [f for p in [*self.headers, path] for f in functions_of(p, load(p))]
        self.reach = {k.name: reachable(functions, k.name) for k in self.source.kernels}
        self.shared = {k.name for k in gen.read("\n".join(body for _, _, made in gen.stamps(raw) for _, body in made), path.name).kernels}


def places(path, among, every_format):
    """Mutants of a file. Kernels that all formats have, and kernels that share a header, take a place in turn."""
    raw = path.read_text()
    source = gen.read(raw, path.name)
    if source.errors:
        sys.exit(f"{path} breaks the dialect; see tools/metal/gen.py check")
    lines = raw.split("\n")
    turn = 0
    for kind, what, start, end, replacement in changes(source.text):
        line = raw.count("\n", 0, start) + 1
        left_out = re.search(r"(<= )?not mutated:", lines[line - 1])
        if left_out and (kind == "edge" or not left_out[1]):
            continue
        reaching = [(kernel, k.path) for k in among for kernel, functions in k.reach.items()
                    if any(f.file == path and f.start <= start < f.end for f in functions)]
        held = re.search(r"\bheld by (\w+)", lines[line - 1])
        if held:
            reaching = [(kernel, of) for kernel, of in reaching if kernel == held[1]]
        if not reaching:
            sys.exit(f"{path}:{line}: no kernel comes here" + (f" of the name {held[1]}" if held else ""))
        in_turn = path.suffix == ".h" or among[0].shared.issuperset(kernel for kernel, _ in reaching)
        if in_turn and not every_format:
            reaching = [reaching[turn % len(reaching)]]
            turn += 1
        for kernel, of in reaching:
            yield Mutant(path, line, kind, " ".join(what.split()), raw[:start] + replacement + raw[end:], kernel, of)


def mutants(every_format):
    among = [Kernels(path) for path in sorted(KERNELS.glob("*.metal"))]
    for k in among:
        yield from places(k.path, [k], every_format)
    for header in sorted({h for k in among for h in k.headers}):
        yield from places(header, [k for k in among if header in k.headers], every_format)


def changed_kernels(revision):
    """(file, kernel) of kernels whose own or reached text differs from the revision's; none without that revision."""
    known = subprocess.run(["git", "rev-parse", "--verify", "--quiet", revision + "^{commit}"], cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        print(f"no revision {revision} to compare with")
        return

    def then(path):
        return subprocess.run(["git", "show", f"{revision}:{path.relative_to(ROOT)}"], cwd=ROOT, capture_output=True, text=True, check=False).stdout

    def words(functions):
        return sorted((f.name, " ".join((f.parameters + f.body).split())) for f in functions)
    for path in sorted(KERNELS.glob("*.metal")):
        now, old = Kernels(path), Kernels(path, then)
        for kernel, functions in now.reach.items():
            if words(functions) != words(old.reach.get(kernel, [])):
                yield path, kernel


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
    broken = group[0].file

    def above(header):
        return header == broken or broken in headers_of(header.read_text())
    includes, parts = [], []
    for mutant in group:
        own = mutant.text if mutant.of == broken else mutant.of.read_text()
        inside = [h for h in headers_of(own) if above(h)]
        texts = [(h, mutant.text if h == broken else h.read_text()) for h in inside]
        for line in re.findall(r"^#include [^\n]*$", "\n".join([own] + [text for _, text in texts]), re.M):
            if line not in includes and not line.endswith('.def"') and not any(line.endswith(f'/{h.name}"') for h in inside):
                includes.append(line)
        source = gen.read(own, mutant.of.name)
        source.kernels = [k for k in source.kernels if k.name == mutant.kernel]
        parts.append(f"namespace mutant_{mutant.number} {{")
        if texts:
            parts.append("namespace argent { using namespace ::argent; }")
        for h, text in texts:
            parts += [f'#line 1 "{h.name}"', re.sub(r'^#(?:include [^\n]*[>h"](?<!\.def")|pragma once)$', "", text, flags=re.M)]
        text = re.sub(r"^#include[^\n]*", "", gen.stamped_only(own, mutant.kernel), flags=re.M)
        parts += [f'#line 1 "{mutant.of.name}"', text, '#line 1 "tables"', gen.host_tables(source, mutant.number), "}"]
    path.write_text("\n".join(includes + parts) + "\n")


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
    finding = re.search(r"first: ([a-z ]+): ", result.stdout)
    said = re.search(r'Which is: "([^"]*)', result.stdout)  # what a case found wrong
    if finding or not said:
        return finding[1] if finding else result.stdout.strip()[-200:]
    return "wrong results" if re.search(r"wanted|written|became", said[1]) else said[1]


def choose(everything, options):
    if options.only:
        return [m for m in everything if options.only in str(m) or options.only in m.kind]
    chosen = []
    if options.since:
        changed = set(changed_kernels(options.since))
        chosen = [m for m in everything if (m.of, m.kernel) in changed]
    if options.sample is not None:
        rest = [m for m in everything if m not in chosen]
        chosen += random.Random(options.seed).sample(rest, min(options.sample, len(rest)))
    return chosen if options.since or options.sample is not None else everything


def judge(build, chosen, jobs):
    """(mutant, how it was noticed or None) of all. Ends the program where a file unchanged does not pass."""
    build = build.resolve()
    command, directory = compile_command(build)
    groups = {}
    for number, mutant in enumerate(chosen, 1):
        mutant.number = number
        groups.setdefault(mutant.file, []).append(mutant)
    # The unchanged text as a mutant: it must pass, or the rest says nothing.
    for i, (path, group) in enumerate(groups.items()):
        group.append(Mutant(path, 0, "control", "unchanged", path.read_text(), group[0].kernel, group[0].of, len(chosen) + 1 + i))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        def prepare(group):
            source = pathlib.Path(folder) / f"{group[0].file.name.replace('.', '_')}.cc"
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
    for mutant, noticed in zip(all_of_them, results):
        if mutant.kind == "control" and noticed:
            sys.exit(f"{mutant.file.name} unchanged does not pass: {noticed}")
    return [(m, noticed) for m, noticed in zip(all_of_them, results) if m.kind != "control"]


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
    everything = list(mutants(options.every_format))
    chosen = choose(everything, options)
    if options.only and not chosen:
        parser.error(f"--only {options.only}: no mutant is described so")
    if options.list:
        print("\n".join(f"{m.kind:8} {m}" for m in chosen))
        return
    how, survivors = {}, []
    for mutant, noticed in judge(options.build, chosen, options.jobs):
        if noticed:
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
