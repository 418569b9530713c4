#!/usr/bin/env python3
"""Compares src/backends/metal/apple/api.h with other bindings of Metal: classes, selectors, types and values.

  api_test.py [--metal-cpp FOLDER] [--pyobjc FILE]

FOLDER holds metal-cpp's Foundation and Metal (in PyPI's mlx-metal: mlx/include/metal_cpp), FILE is Metal/_metadata.py of PyPI's
pyobjc-framework-Metal. Without arguments both are looked for among the installed packages; what is not there is skipped.
"""
import argparse
import importlib.util
import pathlib
import re
import sys

API = pathlib.Path(__file__).resolve().parent.parent.parent / "src/backends/metal/apple/api.h"
# Where api.h names another type than metal-cpp, and why that is the same: (metal-cpp's, api.h's).
SAME = {("MTLAllocation*", "MTLBuffer*"),  # a buffer is an allocation
        ("MTLEvent*", "MTLSharedEvent*"),  # a shared event is an event
        ("void(^)(void*,NSUInteger)", "void*"),  # a block, always null
        ("MTLAutoreleasedComputePipelineReflection*", "MTLComputePipelineReflection**"),  # a typedef of the latter
        ("CFTimeInterval", "double"),
        ("StringEncoding", "NSStringEncoding"), ("String*", "NSString*"), ("Object*", "NSObject*")}  # inside namespace NS
# Methods of a class that are its base's.
BASES = {"MTLComputeCommandEncoder": "MTLCommandEncoder", "MTLBuffer": "MTLResource"}
# Of every object, as templates in metal-cpp.
OF_ALL = {"retain", "release", "alloc", "init", "respondsToSelector:"}


def plain(type_text):
    """Without const, spaces and namespaces' colons."""
    return re.sub(r"\s+|\bconst\b|\bclass\b", "", type_text).replace("MTL::", "MTL").replace("NS::", "NS")


def split(text):
    parts, depth, current = [], 0, ""
    for c in text:
        depth += (c in "(<[") - (c in ")>]")
        if c == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += c
    return [p.strip() for p in parts + [current] if p.strip()]


def read_api():
    """([(class, selector, result, [types])], {name: value})"""
    text = re.sub(r"//[^\n]*", "", API.read_text())
    methods = []
    for c in re.finditer(r"struct (\w+) : NSObject \{(.*?)\n?\};|struct (NSObject) \{(.*?)\n\};", text, re.S):
        for m in re.finditer(r"ARGENT_(?:CLASS_)?METHOD\((.*?)\)\s*(?=ARGENT|\Z)", (c[2] or c[4] or "").strip() + "\n", re.S):
            result, _, selector, *types = split(" ".join(m[1].split()))
            methods.append((c[1] or c[3], selector.strip('"'), plain(result), [plain(t) for t in types]))
    values = {}
    for e in re.finditer(r"enum \w+ : \w+ \{(.*?)\}", text, re.S):
        values |= {n: int(v, 0) for n, v in re.findall(r"(\w+) = (\w+)", e[1])}
    return methods, values


def read_metal_cpp(folder):
    """The same of metal-cpp, as {(class, selector): (result, [types])}."""
    methods, values, selectors = {}, {}, {}
    text = "\n".join(p.read_text() for f in ("Foundation", "Metal") for p in sorted((folder / f).glob("*.hpp")))
    text = re.sub(r"//[^\n]*", "", text)
    for name, selector in re.findall(r'_PRIVATE_DEF_SEL\(\s*(\w+),\s*"([^"]+)"\s*\)', text):
        selectors[name] = selector
    definition = (r"_(?:MTL|NS)_INLINE\s+([\w:<>*&\s]+?)\s*\b(MTL|NS)::(\w+)::(\w+)\(((?:[^()]|\([^()]*\))*)\)\s*(?:const)?\s*\{"
                  r"[^{}]*?_PRIVATE_SEL\(\s*(\w+)\s*\)")
    for result, space, owner, _, parameters, name in re.findall(definition, text):
        types = []
        for p in split(parameters):
            if "(^" in p:
                types.append(plain(re.sub(r"\(\^\s*\w*\)", "(^)", p)))
            else:
                types.append(plain(re.sub(r"\b\w+$", "", p) if re.search(r"[\s*&]\w+$", p) else p))
        if name in selectors:
            methods.setdefault((space + owner, selectors[name]), []).append((plain(result), types))
    for space, body in re.findall(r"_(MTL|NS)_(?:ENUM|OPTIONS)\([^)]*\)\s*\{(.*?)\}", text, re.S):
        for n, v in re.findall(r"(\w+)\s*=\s*([^,\n]+)", body):
            if re.fullmatch(r"[\d\sxa-fA-F<|()+-]+", v.strip()):
                values[space + n] = eval(v, {"__builtins__": {}})  # digits and operators only
    return methods, values


def compare_metal_cpp(folder, methods, values):
    theirs, their_values = read_metal_cpp(folder)
    wrong = []
    for owner, selector, result, types in methods:
        if selector in OF_ALL:
            continue
        found = theirs.get((owner, selector)) or theirs.get((BASES.get(owner), selector))
        if not found:
            wrong.append(f"{owner} {selector}: metal-cpp has no such method")
            continue
        want = [result, *types]
        if not any(len(want) == 1 + len(t) and all(a == b or (a, b) in SAME for a, b in zip([r, *t], want)) for r, t in found):
            wrong.append(f"{owner} {selector}: {want}, in metal-cpp {found}")
    compared = 0
    for name, value in values.items():
        theirs_value = their_values.get(name)
        if theirs_value is None:
            print(f"metal-cpp: no plain value of {name}")
        elif theirs_value != value:
            wrong.append(f"{name} is {value}, in metal-cpp {theirs_value}")
        else:
            compared += 1
    print(f"metal-cpp: {len([m for m in methods if m[1] not in OF_ALL])} methods and {compared} values compared, {len(wrong)} differ")
    return wrong


def compare_pyobjc(path, methods, values):
    text = path.read_text()
    theirs = {n: int(v) for n, v in re.findall(r"\$(\w+)@(-?\d+)(?=\$)", text)}
    wrong = [f"{n} is {v}, in pyobjc {theirs[n]}" for n, v in values.items() if n in theirs and theirs[n] != v]
    compared = [n for n in values if n in theirs]
    print(f"pyobjc: {len(compared)} values compared, {len(wrong)} differ")
    return wrong + ([] if compared else ["no value found in pyobjc's metadata"])


def installed(package, path):
    spec = importlib.util.find_spec(package)
    places = [pathlib.Path(p) / path for p in (spec.submodule_search_locations or [])] if spec else []
    return next((p for p in places if p.exists()), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metal-cpp", type=pathlib.Path)
    parser.add_argument("--pyobjc", type=pathlib.Path)
    options = parser.parse_args()
    metal_cpp = options.metal_cpp or installed("mlx", "include/metal_cpp")
    pyobjc = options.pyobjc or installed("Metal", "_metadata.py")
    methods, values = read_api()
    if len(methods) < 50 or len(values) < 25:
        sys.exit(f"api.h: only {len(methods)} methods and {len(values)} values were read")
    selectors = [(owner, selector) for owner, selector, _, _ in methods]
    wrong = [f"{owner} {selector} stands twice" for owner, selector in set(selectors) if selectors.count((owner, selector)) > 1]
    # As many arguments as the selector has colons.
    wrong += [f"{o} {s}: {len(t)} arguments" for o, s, _, t in methods if s.count(":") != len(t)]
    print(f"api.h: {len(methods)} methods, {len(values)} values")
    wrong += compare_metal_cpp(metal_cpp, methods, values) if metal_cpp else []
    wrong += compare_pyobjc(pyobjc, methods, values) if pyobjc else []
    if not metal_cpp or not pyobjc:
        print("skipped, not installed:", ", ".join(n for n, p in (("mlx-metal", metal_cpp), ("pyobjc-framework-Metal", pyobjc)) if not p))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
