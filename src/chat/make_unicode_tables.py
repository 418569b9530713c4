#!/usr/bin/env python3
"""Writes unicode_tables.inc: what Python's str methods know about characters, asked from Python itself (Unicode 14 with
Python 3.11). Usage: make_unicode_tables.py > unicode_tables.inc"""

import unicodedata

SURROGATES = range(0xD800, 0xE000)
LAST = 0x110000


def flags(code):
    """The bits of unicode.h's CharFlag."""
    c = chr(code)
    if code in SURROGATES:
        return 0
    cased = (c + "Σ").lower()[-1] == "ς"
    ignorable = not cased and ("A" + c + "Σ").lower()[-1] == "ς"
    bits = [
        c.isalpha(), c.isdecimal(), c.isdigit(), c.isnumeric(), c.islower(),
        c.isupper(), unicodedata.category(c) == "Lt", c.isprintable(), cased, ignorable,
    ]  # fmt: skip
    return sum(1 << i for i, bit in enumerate(bits) if bit)


def rows(items, per_line):
    for i in range(0, len(items), per_line):
        print("    " + " ".join(items[i : i + per_line]))


def flag_table():
    items, last = [], None
    for code in range(LAST):
        f = flags(code)
        if f != last:
            items.append(f"{{0x{code:x},{f}}},")
            last = f
    print(f"constexpr FlagRange kFlags[{len(items)}] = {{")
    rows(items, 9)
    print("};")


def case_table(name, convert):
    """Runs of code points that map to code + delta, every `step` code points; everything else goes to the special list."""
    simple, special = [], []
    for code in range(LAST):
        if code in SURROGATES:
            continue
        to = convert(chr(code))
        if to == chr(code):
            continue
        if len(to) == 1:
            simple.append((code, ord(to) - code))
        else:
            special.append((code, [ord(x) for x in to] + [0] * (3 - len(to))))
    runs = []
    for code, delta in simple:
        if runs:
            first, last, step, d = runs[-1]
            gap = code - last
            if d == delta and gap <= 2 and (step == 0 or step == gap):
                runs[-1] = (first, code, gap, d)
                continue
        runs.append((code, code, 0, delta))
    print(f"constexpr CaseRun k{name}Runs[{len(runs)}] = {{")
    rows([f"{{0x{a:x},0x{b:x},{max(s, 1)},{d}}}," for a, b, s, d in runs], 6)
    print("};")
    print(f"constexpr SpecialCase k{name}Special[{len(special)}] = {{")
    rows(["{0x%x,{0x%x,0x%x,0x%x}}," % (c, *t) for c, t in special], 5)
    print("};")


print("// Written by make_unicode_tables.py, Unicode " + unicodedata.unidata_version + ".")
print("// clang-format off")
flag_table()
case_table("Upper", str.upper)
case_table("Lower", str.lower)
case_table("Title", str.title)
case_table("Fold", str.casefold)
