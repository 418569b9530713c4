#!/usr/bin/env python3
"""Holds the block-format headers, src/quant/<format>.h, to the subset that C++20, CUDA C++ and MSL share, and to their shape.

  lint_formats.py [--root DIR]   checks the header of each FORMAT row of src/quant/formats.def
  lint_formats.py --selftest     shows that each rule rejects a header that breaks it

A header has a drawing that ends at the block's size, struct block_<format>, static_assert of its size, k<FORMAT>Block,
and value-level decoders, one of them <format>_value. It includes quant/portable.h or another format's header, and uses no
pointers, references, arrays outside the struct, templates, macros, double, library, or names that MSL or CUDA reserve.
"""
import argparse
import pathlib
import re
import sys

TYPES = {"u8", "i8", "u16", "u32", "i32", "float", "bool", "void"}
FORBIDDEN = {
    "no templates": "template typename concept requires auto decltype",
    "no classes with behaviour": "class union virtual operator friend private protected public this new delete",
    "no exceptions": "throw try catch noexcept",
    "no double": "double",
    "only the types of portable.h": "char short int long unsigned signed size_t wchar_t int8_t uint8_t int16_t uint16_t "
                                    "int32_t uint32_t int64_t uint64_t uint uchar ushort ulong",
    "no library": "std memcpy assert printf bit_cast",
    "no casts by pattern": "reinterpret_cast dynamic_cast const_cast",
    "QK_FN and QK_CONST say how": "inline constexpr consteval static extern thread_local volatile mutable",
    "a name that MSL reserves": "half kernel device constant thread threadgroup vertex fragment sampler texture metal as_type "
                                "ray_data object_data mesh visible",
    "a name that CUDA reserves": "__global__ __device__ __host__ __shared__ __constant__ asm",
    "no goto": "goto",
    "not in MSL": "nullptr typeid lambda co_await co_yield co_return import module",
}
RULE_OF = {word: rule for rule, words in FORBIDDEN.items() for word in words.split()}
TOKEN = re.compile(r"[A-Za-z_]\w*|0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?\w*|\d[\w.]*(?:(?<=[eE])[+-]\d+)?\w*|::|->|&&|\|\||<<|>>|\[\[|\S")


class Rows(list):
    """(name, NAME, elements of a block, bytes of a block) of formats.def."""

    def __init__(self, text):
        super().__init__((n, c, int(b), int(s)) for n, c, b, s in
                         re.findall(r"^FORMAT\((\w+),\s*(\w+),\s*\d+,\s*(\d+),\s*(\d+)\)", text, re.M))


def strip(text):
    """Comments and strings to spaces, lines kept."""
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def check_lines(text, names):
    """Yields (line, message) for preprocessor lines, and code without them."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith("#"):
            continue
        include = re.fullmatch(r'#include "quant/(\w+)\.h"', line)
        if not (line == "#pragma once" or include and (include[1] == "portable" or include[1] in names)):
            yield number, f"only #pragma once and portable.h or another format's header: {line.strip()}"


def check_tokens(code):
    """Yields (line, message) for tokens outside the subset."""
    previous, depth_of_struct, depth, in_struct = "", None, 0, False
    structs = set(re.findall(r"\bstruct\s+(\w+)", code))
    types = TYPES | structs
    for number, line in enumerate(code.split("\n"), 1):
        for token in TOKEN.findall(line):
            value = re.fullmatch(r"\w+|\)|\]", previous) and previous not in types | {"return", "const", "case"}
            if token in RULE_OF:
                yield number, f"{RULE_OF[token]}: {token}"
            elif token == "*" and not value:
                yield number, "no pointers: *"
            elif token in ("&", "&&") and not value:
                yield number, f"no references, no addresses: {token}"
            elif token == "->":
                yield number, "no pointers: ->"
            elif token == "[[":
                yield number, "attributes differ between the languages: [["
            elif token == "[" and not in_struct:
                yield number, "no arrays outside the struct: they are pointers or live in memory"
            elif token[0].isdigit() and not re.match(r"0[xX]", token) and re.search(r"[.eE]", token) and not re.search(r"[fF]$", token):
                yield number, f"a double literal: {token} (write {token}f)"
            elif re.match(r"0[xX].*[pP.]", token) and not re.search(r"[pP][+-]?\d+[fF]$", token):
                yield number, f"a double literal: {token} (write {token}f)"
            if token == "struct":
                in_struct, depth_of_struct = True, depth
            depth += (token == "{") - (token == "}")
            if token == "}" and in_struct and depth == depth_of_struct:
                in_struct = False
            previous = token


def check_declarations(code):
    """Yields (line, message) for what stands in namespace argent and is none of the five kinds."""
    inner = re.search(r"namespace argent \{(.*)\}", code, re.S)
    if not inner:
        yield 1, "everything is in namespace argent"
        return
    first = code[:inner.start(1)].count("\n") + 1
    depth, fresh = 0, True
    for match in re.finditer(r"[A-Za-z_]\w*|[{};]|\S", inner[1]):
        token = match[0]
        if depth == 0 and fresh and token not in ("QK_FN", "QK_CONST", "struct", "static_assert", ";"):
            yield first + inner[1][:match.start()].count("\n"), f"neither struct, static_assert, QK_CONST nor QK_FN: {token}"
        fresh = False
        depth += (token == "{") - (token == "}")
        if depth == 0 and token in ";}":
            fresh = True


def check_shape(text, code, row):
    name, upper, block, size = row
    title = text.split("\n", 1)[0]
    if not re.match(rf"// {re.escape(upper)}: ", title):
        yield 1, f"the first line says what it is: // {upper}: ..."
    head = re.match(r"(?://[^\n]*\n)+", text)
    drawing = re.search(r"^//   byte ((?:\s+\d+)+)\s*\n//\s+\|.*\|\s*$", head[0] if head else "", re.M)
    if not drawing:
        yield 1, "no drawing: a line '//   byte 0 ... SIZE' above a line of fields between bars"
    elif [int(drawing[1].split()[0]), int(drawing[1].split()[-1])] != [0, size]:
        yield 1, f"the drawing runs from byte {drawing[1].split()[0]} to {drawing[1].split()[-1]}, the block has {size}"
    if not re.search(rf"^struct block_{name} \{{", code, re.M):
        yield 1, f"no struct block_{name}"
    if not re.search(rf"^static_assert\(sizeof\(block_{name}\) == {size},", code, re.M):
        yield 1, f"no static_assert(sizeof(block_{name}) == {size}, ...)"
    if not re.search(rf"^QK_CONST u32 k{upper}Block = {block};", code, re.M):
        yield 1, f"no QK_CONST u32 k{upper}Block = {block};"
    if not re.search(rf"^QK_FN float {name}_value\(", code, re.M):
        yield 1, f"no QK_FN float {name}_value(...)"


def check(text, row, names):
    code = strip(text)
    without = re.sub(r"^[ \t]*#[^\n]*", "", code, flags=re.M)
    messages = [*check_lines(text, names), *check_tokens(without), *check_declarations(without), *check_shape(text, code, row)]
    return sorted(set(messages))


def check_tree(root):
    folder = root / "src/quant"
    rows = Rows((folder / "formats.def").read_text())
    names = {row[0] for row in rows}
    failed = 0 if rows else 1
    for row in rows:
        path = folder / f"{row[0]}.h"
        messages = check(path.read_text(), row, names) if path.is_file() else [(1, "there is no such header")]
        failed += len(messages)
        for line, message in messages:
            print(f"{path.relative_to(root)}:{line}: {message}")
    if not failed:
        print(f"{len(rows)} format headers are within the subset")
    return 1 if failed else 0


GOOD = """// Q9_9: 32 elements, a byte each; value = d * q.
//
//   byte   0   2        34
//          | d | qs[32] |
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q9_9 {
  u16 d;  // half
  u8 qs[32];
};
static_assert(sizeof(block_q9_9) == 34, "Q9_9 layout");

QK_CONST u32 kQ9_9Block = 32;

// The scale * 2 of nothing & everything: words in comments are free, even double or template.
QK_FN u32 q9_9_quants(u32 w, u32 k) { return (w & 15) * k & 0x0e0e0e0e; }

QK_FN float q9_9_value(float d, u32 q) { return q && true ? d * float(q) * 0.5f : 0x1p-24f; }

}  // namespace argent
"""

# (text taken out of GOOD, text put in, a part of the message that must come)
BAD = [
    ("(u32 w, u32 k)", "(const u8* w, u32 k)", "no pointers"),
    ("(u32 w, u32 k)", "(block_q9_9 *w, u32 k)", "no pointers"),
    ("return (w &", "return (*w &", "no pointers"),
    ("return (w &", "return (w->x &", "no pointers: ->"),
    ("(u32 w, u32 k)", "(const block_q9_9& w, u32 k)", "no references"),
    ("(u32 w, u32 k)", "(u32&& w, u32 k)", "no references"),
    ("return (w &", "return q(&w &", "no references, no addresses"),
    ("(u32 w, u32 k)", "(u32 w[4], u32 k)", "no arrays outside the struct"),
    ("QK_FN u32", "template <class T>\nQK_FN u32", "no templates"),
    ("QK_FN u32 q9_9_quants(u32 w", "QK_FN u32 q9_9_quants(auto w", "no templates"),
    ("return (w &", "return std::min(w, 3u) + (w &", "no library"),
    ("QK_FN u32", "QK_FN double", "no double"),
    ("0.5f", "0.5", "a double literal"),
    ("0.5f", "1e-3", "a double literal"),
    ("0x1p-24f", "0x1p-24", "a double literal"),
    ("return (w &", "if (!w) throw 1;\n  return (w &", "no exceptions"),
    ("(u32 w, u32 k)", "(uint32_t w, u32 k)", "only the types of portable.h"),
    ("(u32 w, u32 k)", "(unsigned w, u32 k)", "only the types of portable.h"),
    ("(u32 w, u32 k)", "(u32 w, u32 half)", "a name that MSL reserves"),
    ("(u32 w, u32 k)", "(u32 w, u32 thread)", "a name that MSL reserves"),
    ("QK_FN u32", "inline u32", "QK_FN and QK_CONST say how"),
    ("QK_FN u32", "u32", "neither struct, static_assert, QK_CONST nor QK_FN"),
    ("QK_CONST u32 kQ9_9Block", "const u32 kQ9_9Block", "neither struct, static_assert, QK_CONST nor QK_FN"),
    ("QK_FN u32", "[[nodiscard]] QK_FN u32", "attributes differ"),
    ('#include "quant/portable.h"', "#include <cstdint>", "only #pragma once"),
    ('#include "quant/portable.h"', '#include "quant/formats.h"', "only #pragma once"),
    ("#pragma once", "#pragma once\n#define X 1", "only #pragma once"),
    ("#pragma once", "#pragma once\n  #ifdef __CUDACC__\n  #endif", "only #pragma once"),
    ('static_assert(sizeof(block_q9_9) == 34, "Q9_9 layout");', "", "no static_assert"),
    ("== 34,", "== 36,", "no static_assert"),
    ("//          | d | qs[32] |\n", "", "no drawing"),
    ("   byte   0   2        34", "   byte   0   2        32", "the drawing runs from byte 0 to 32"),
    ("// Q9_9:", "// Q9_8:", "the first line says"),
    ("struct block_q9_9", "struct block_q99", "no struct"),
    ("kQ9_9Block = 32", "kQ9_9Block = 64", "no QK_CONST u32 kQ9_9Block = 32"),
    ("q9_9_value", "q9_9_float", "no QK_FN float q9_9_value"),
    ("namespace argent {", "namespace other {", "everything is in namespace argent"),
]


def selftest():
    row, names = ("q9_9", "Q9_9", 32, 34), {"q9_9", "q4_k"}
    failures = [f"the good header is refused: {m}" for m in check(GOOD, row, names)]
    for old, new, want in BAD:
        text = GOOD.replace(old, new, 1)
        messages = [message for _, message in check(text, row, names)]
        if text == GOOD:
            failures.append(f"nothing to replace: {old!r}")
        elif not any(want in message for message in messages):
            failures.append(f"{new!r} is not refused with '{want}': {messages}")
    if not Rows("FORMAT(q9_9,  Q9_9,  99, 32, 34)\n") == [row]:
        failures.append("formats.def is not read")
    for failure in failures:
        print(f"FAIL {failure}")
    print("FAILED" if failures else f"selftest: 1 good header passes, {len(BAD)} bad ones are refused")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--selftest", action="store_true")
    arguments = parser.parse_args()
    sys.exit(selftest() if arguments.selftest else check_tree(arguments.root))
