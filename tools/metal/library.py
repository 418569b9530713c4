#!/usr/bin/env python3
"""Makes libraries of the Metal kernels: each .metal file with its includes joined in, so that it can be compiled where the
project's headers are not.

  library.py source FILE               the joined text
  library.py embed OUT FILE...         C++ with all texts, and what they say of arguments (src/backends/metal/apple/library.h)
  library.py metallib [--keep-going] FOLDER FILE...
                                       compiles each by xcrun to FOLDER/<stem>-<hash>.metallib; nothing where there is no compiler.
                                       --keep-going: what does not compile is left out, and compiled when the program starts
  library.py --selftest                shows what is refused
"""
import contextlib
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gen  # noqa: E402
import lint  # noqa: E402

SOURCES = gen.ROOT / "src"
# Types of Metal that arguments by reference have besides structs.
SIZES = {"bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "long": 8, "ulong": 8}
KINDS = {"buffer": "buffer", "constant": "buffer", "threadgroup": "threadgroup"}


class Wrong(Exception):
    pass


def named(path):
    """A path as texts and messages say it: the same on every machine, since texts are hashed."""
    path = pathlib.Path(path).resolve()
    return str(path.relative_to(gen.ROOT)) if path.is_relative_to(gen.ROOT) else path.name


def join(path, text, seen):
    """The text with project includes in place of their lines; headers with #pragma once once."""
    out, name, depth = [f'#line 1 "{named(path)}"'], named(path), 0
    for number, line in enumerate(text.split("\n"), 1):
        word = re.match(r'\s*#\s*(if|endif|pragma\s+once|include\s*"([^"]+)")', line)
        if not word:
            out.append(line)
            continue
        if word[1] in ("if", "endif"):
            depth += 1 if word[1] == "if" else -1
            out.append(line)
            continue
        if not word[2]:
            out.append("")  # means nothing outside a header
            continue
        target = SOURCES / word[2]
        if not target.is_file():
            raise Wrong(f"{name}:{number}: there is no src/{word[2]}")
        body = gen.load(target)
        once = re.search(r"^\s*#\s*pragma\s+once", body, re.M)
        if once and depth:
            raise Wrong(f"{name}:{number}: {word[2]} is included under a condition, and would be missing elsewhere")
        if not once or target not in seen:
            seen.add(target)
            out.append(join(target, body, seen))
            out.append(f'#line {number + 1} "{name}"')
        else:
            out.append("")
    return "\n".join(out)


def source(path):
    """(joined text, its hash, headers of argument structs)"""
    seen = set()
    text = join(path, gen.load(path), seen) + "\n"
    headers = sorted(str(p.relative_to(SOURCES)) for p in seen if re.fullmatch(r"args(_\w+)?\.h", p.name))
    return text, hashlib.sha256(text.encode()).hexdigest()[:12], headers


def size_of(parameter, kernel):
    if not parameter.reference:
        return "0"
    if parameter.type in SIZES:
        return str(SIZES[parameter.type])
    if not re.fullmatch(r"(argent::)?[A-Z]\w+", parameter.type):
        raise Wrong(f"{kernel.name}: the host does not know the size of {parameter.name}, a {parameter.type}")
    return f"sizeof({parameter.type})"


def embedded(paths):
    headers, out, rows, names = set(), [], [], {}
    for path in paths:
        text, digest, used = source(path)
        headers |= set(used)
        read = gen.read(gen.load(path), str(path))
        if read.errors:
            raise Wrong("\n".join(f"{named(path)}:{line}: {message}" for line, message in read.errors))
        stem = pathlib.Path(path).stem
        out.append(f"// ---- {stem}\n")
        kernels = []
        for k in read.kernels:
            if names.setdefault(k.name, stem) != stem:
                raise Wrong(f"kernel {k.name} is in {names[k.name]}.metal and {stem}.metal")
            arguments = [p for p in k.parameters if p.kind in KINDS]
            # By value is what a reference to constant memory is for.
            for p in arguments:
                kind = "value" if p.kind == "constant" and p.reference else KINDS[p.kind]
                p.row = f'{{Argument::{kind}, {p.index}, {"true" if p.writable else "false"}, {size_of(p, k)}, "{p.name}"}}'
            spans = ["{}", "{}"]
            if arguments:
                out.append(f"constexpr KernelArgument arguments_{k.name}[] = {{{', '.join(p.row for p in arguments)}}};")
                spans[0] = f"arguments_{k.name}"
            if k.constants:
                out.append(f"constexpr uint8_t constants_{k.name}[] = {{{', '.join(map(str, k.constants))}}};")
                spans[1] = f"constants_{k.name}"
            kernels.append(f'    {{"{k.name}", {spans[0]}, {spans[1]}}},')
        if not kernels:
            raise Wrong(f"{named(path)}: no kernel")
        out.append(f"constexpr KernelText kernels_{stem}[] = {{\n" + "\n".join(kernels) + "\n};")
        constants = "{}"
        if read.constants:
            row = ", ".join(f'{{"{n}", {i}, \'{gen.CONSTANT_TYPES[t]}\'}}' for t, n, i in read.constants)
            out.append(f"constexpr KernelConstant all_constants_{stem}[] = {{{row}}};")
            constants = f"all_constants_{stem}"
        if ')metal"' in text:
            raise Wrong(f'{named(path)}: )metal" ends the text')
        # Pieces, since a compiler need not take a literal of more than 64 KB.
        pieces = "".join(f'R"metal({part})metal"\n' for part in re.findall(r"(?:[^\n]*\n){1,400}", text))
        out.append(f"constexpr char text_{stem}[] =\n{pieces};\n")
        rows.append(f'    {{"{stem}", "{digest}", {{text_{stem}, sizeof(text_{stem}) - 1}}, kernels_{stem}, {constants}}},')
    head = ["// Written by tools/metal/library.py.", '#include "backends/metal/apple/library.h"']
    head += [f'#include "{h}"' for h in sorted(headers)]
    return ("\n".join(head) + "\n\nnamespace argent::metal {\nnamespace {\n\n" + "\n".join(out) +
            "\nconstexpr KernelFile all_files[] = {\n" + "\n".join(rows) +
            "\n};\n\n}  // namespace\n\nstd::span<const KernelFile> kernel_files() { return all_files; }\n\n}  // namespace argent::metal\n")


def metallibs(folder, paths, keep_going):
    """Compiles what is not there yet and takes away what is old. Says so and leaves the folder empty without a compiler."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    compiler = ["xcrun", "-sdk", "macosx", "metal"]
    if not shutil.which("xcrun") or subprocess.run(compiler + ["--version"], capture_output=True).returncode != 0:
        print("library.py: no Metal compiler (xcrun metal); the kernels are compiled when the program starts")
        return
    wanted = set()
    for path in paths:
        text, digest, _ = source(path)
        out = folder / f"{pathlib.Path(path).stem}-{digest}.metallib"
        wanted.add(out)
        if out.exists():
            continue
        with tempfile.TemporaryDirectory() as work:
            joined = pathlib.Path(work) / (pathlib.Path(path).stem + ".metal")
            joined.write_text(text)
            made = pathlib.Path(work) / "made.metallib"
            ran = subprocess.run(compiler + ["-std=metal3.1", "-O2", str(joined), "-o", str(made)], capture_output=True, text=True)
            if ran.returncode != 0:
                if not keep_going:
                    raise Wrong(f"{named(path)} does not compile:\n{ran.stderr}")
                print(f"library.py: {named(path)} does not compile:\n{ran.stderr}")
                continue
            shutil.move(made, out)
    for old in set(folder.glob("*.metallib")) - wanted:
        old.unlink()


def compile_selftest(files):
    """With a program in xcrun's place that refuses one kernel: the others are compiled, once, and what is old goes."""
    with tempfile.TemporaryDirectory() as work:
        xcrun, out = pathlib.Path(work) / "xcrun", pathlib.Path(work) / "out"
        xcrun.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exit 0;; *{files[0].name}*) exit 1;; esac\n'
                         f'echo x >>{work}/log\nshift $(($# - 3))\ncp "$1" "$3"\n')
        xcrun.chmod(0o755)
        old_path = os.environ["PATH"]
        os.environ["PATH"] = work + os.pathsep + old_path
        try:
            out.mkdir()
            (out / "gone-0123.metallib").write_text("")
            with contextlib.redirect_stdout(io.StringIO()) as said:
                metallibs(out, files, True)
                metallibs(out, files, True)
            try:
                metallibs(out, files, False)
                strict = False
            except Wrong:
                strict = True
        finally:
            os.environ["PATH"] = old_path
        runs = (pathlib.Path(work) / "log").read_text().count("x")
        return strict and "does not compile" in said.getvalue() and runs == len(files) - 1 == len(list(out.iterdir()))


def selftest():
    files = sorted((SOURCES / "backends/metal/kernels").glob("*.metal"))
    texts = [source(f)[0] for f in files]
    bad = [bool(re.search(r'^\s*#\s*include\s*"|#\s*pragma\s+once', t, re.M)) for t in texts]
    refused = 0
    for text in ('#include "no/such.h"\n', '#if 1\n#include "quant/portable.h"\n#endif\n'):
        try:
            join(gen.ROOT / "x.metal", text, set())
        except Wrong:
            refused += 1
    # As Apple's compiler would read them, with nothing but the library's headers.
    with tempfile.TemporaryDirectory() as work:
        for text, file in zip(texts, files):
            joined = pathlib.Path(work) / file.name
            joined.write_text(text)
            for name, command in lint.PASSES.items() if shutil.which("clang++") else ():
                ran = subprocess.run([*command, str(joined)], capture_output=True, text=True)
                bad.append(ran.returncode != 0)
                if ran.returncode:
                    print(f"{named(file)}, joined, {name}: {ran.stderr.splitlines()[0]}")
    compiled = compile_selftest(files)
    twice = join(gen.ROOT / "x.metal", '#include "quant/portable.h"\n#include "quant/q4_0.h"\n', set())
    once = twice.count("qk_spread(u32") == 1
    print(f"{len(texts)} texts joined, {refused} of 2 bad ones refused")
    return texts and not any(bad) and refused == 2 and once and compiled


def main():
    arguments = sys.argv[1:]
    if arguments == ["--selftest"]:
        sys.exit(0 if selftest() else 1)
    if len(arguments) == 2 and arguments[0] == "source":
        sys.stdout.write(source(arguments[1])[0])
    elif len(arguments) >= 3 and arguments[0] == "embed":
        pathlib.Path(arguments[1]).write_text(embedded(arguments[2:]))
    elif len(arguments) >= 3 and arguments[0] == "metallib":
        keep_going = "--keep-going" in arguments
        folder, *files = [a for a in arguments[1:] if a != "--keep-going"]
        metallibs(folder, files, keep_going)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except Wrong as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")
