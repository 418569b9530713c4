#!/usr/bin/env python3
"""Holds the source tree to its rules: which room may include which, how long files may be, where the environment is read,
how JSON is included.

    check_layout.py [--selftest]
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A room may include itself and what stands here; what it may include, it may include directly only.
MAY_INCLUDE = {
    "base": set(),
    "quant": {"base"},
    "gguf": {"base", "quant"},
    "tokenizer": {"base", "gguf"},
    "chat": {"base"},
    "grammar": {"base", "tokenizer", "gguf"},
    "graph": {"base", "quant", "gguf"},
    "models": {"base", "gguf", "graph", "quant"},
    "sample": {"base", "quant", "graph"},
    "kv": {"base"},
    "hub": {"base"},
    "backends": {"base", "quant", "graph", "sample"},
    "reference": {"base", "quant", "graph", "sample", "backends/backend.h"},
    "engine": {"base", "quant", "gguf", "graph", "models", "tokenizer", "chat", "kv", "sample", "backends/backend.h"},
    "server": {"base", "quant", "gguf", "graph", "models", "tokenizer", "chat", "kv", "sample", "grammar", "engine", "hub", "server", "backends/backend.h"},
    "cli": {"base", "quant", "gguf", "graph", "models", "tokenizer", "chat", "kv", "sample", "engine", "hub", "server", "backends/backend.h"},
}
MAX_LINES = 600
GENERATED = {"unicode_tables.cc", "unicode_tables.inc"}
INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.M)


def problems_of(path, text):
    """Lines that say what is wrong with one file, given by its path below src."""
    found = []
    room = path.split("/")[0]
    if room not in MAY_INCLUDE:
        return [f"src/{path}: no room '{room}'"]
    if path.split("/")[-1] not in GENERATED and text.count("\n") > MAX_LINES:
        found.append(f"src/{path}: {text.count(chr(10))} lines, at most {MAX_LINES}")
    for target in INCLUDE.findall(text):
        other = target.split("/")[0]
        allowed = MAY_INCLUDE[room]
        if other == room and (room != "backends" or target == "backends/backend.h" or target.split("/")[1] == path.split("/")[1]):
            continue
        if other not in allowed and target not in allowed:
            found.append(f"src/{path}: includes {target}; {room} may include {', '.join(sorted(allowed)) or 'nothing else'}")
    if "getenv" in text and path != "base/switches.cc":
        found.append(f"src/{path}: reads the environment; base/switches.def is the place")
    if "nlohmann/json.hpp" in text and path != "base/json.h":
        found.append(f"src/{path}: includes nlohmann/json.hpp; base/json.h is the place")
    if room == "models" and re.search(r"\bcuda|metal\b|avx|#if", text, re.I):
        found.append(f"src/{path}: an architecture names no device")
    return found


def selftest():
    bad = {
        "models/x.cc": '#include "backends/cpu/matmul.h"\n',
        "base/x.cc": "const char* h = getenv(\"HOME\");\n",
        "kv/x.cc": '#include "graph/step.h"\n',
        "chat/x.cc": "#include <nlohmann/json.hpp>\n",
        "backends/cpu/x.cc": '#include "backends/cuda/y.h"\n',
        "gguf/x.cc": "\n" * (MAX_LINES + 1),
        "nosuch/x.cc": "",
    }
    missed = [path for path, text in bad.items() if not problems_of(path, text)]
    good = problems_of("engine/x.cc", '#include "backends/backend.h"\n#include "kv/kv.h"\n')
    if missed or good:
        sys.exit(f"check_layout.py --selftest: missed {missed}, wrongly found {good}")


def main():
    if "--selftest" in sys.argv[1:]:
        selftest()
        return
    found = []
    for path in sorted((ROOT / "src").rglob("*")):
        # The shim's files are named as Metal's headers are, without a suffix.
        if path.suffix in {".h", ".cc", ".cu", ".cuh", ".metal", ".inc"} or "shim" in path.parts and path.is_file():
            found += problems_of(str(path.relative_to(ROOT / "src")), path.read_text())
    for folder in ("tests", "tools", "fuzz", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cc", ".cu", ".cuh", ".metal", ".py", ".sh"} and path.read_text().count("\n") > MAX_LINES:
                found.append(f"{path.relative_to(ROOT)}: more than {MAX_LINES} lines")
            if path.suffix in {".h", ".cc"} and "nlohmann/json.hpp" in path.read_text():  # another destructor would be another definition
                found.append(f"{path.relative_to(ROOT)}: includes nlohmann/json.hpp; base/json.h is the place")
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
