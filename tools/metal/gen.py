#!/usr/bin/env python3
"""Reads kernels written in the Metal dialect (docs/metal.md): checks the dialect, tells what arguments kernels take, and writes
what the emulator and CUDA need to call them.

  gen.py check FILE...        the rules that a reader of text can hold, for .metal files and their headers
  gen.py reflect FILE...      arguments, attributes and function constants of every kernel as JSON
  gen.py host FILE OUT        C++ that includes FILE and registers its kernels with the emulator
  gen.py cuda FILE OUT        CUDA C++ that includes FILE and wraps its kernels as __global__ functions
  gen.py --selftest           shows that each rule refuses a text that breaks it
"""
import dataclasses
import json
import pathlib
import re
import sys

POSITIONS = {"threadgroup_position_in_grid", "thread_position_in_threadgroup", "thread_position_in_grid", "threads_per_threadgroup",
             "threadgroups_per_grid"}
INDICES = {"thread_index_in_threadgroup", "simdgroup_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroups_per_threadgroup"}
CONSTANT_TYPES = {"bool": "b", "int": "i", "uint": "u", "float": "f"}
SPACES = ("device", "constant", "threadgroup", "thread")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FORMATS = ROOT / "src/quant/formats.def"
MAX_BUFFER, MAX_THREADGROUP = 30, 7
CALLS = r"\b((?:threadgroup|simdgroup)_barrier|simd_\w+|simdgroup_(?:load|store|multiply\w*))\s*\("
# Not a word that starts a declaration of a function.
NO_TYPE = {"return", "else", "if", "for", "while", "switch", "case", "new", "delete", "do", "using", "typedef"}


@dataclasses.dataclass
class Parameter:
    name: str
    kind: str       # buffer, constant, threadgroup or an attribute's name
    index: int      # of buffer and threadgroup, else -1
    type: str       # without address space, const, * and &
    writable: bool
    reference: bool


@dataclasses.dataclass
class Kernel:
    name: str
    line: int
    parameters: list
    body: str
    constants: list = dataclasses.field(default_factory=list)  # indices of the function constants that it reaches


@dataclasses.dataclass
class Source:
    path: str
    text: str       # comments and strings blanked, lines kept
    kernels: list
    constants: list  # (type, name, index)
    errors: list     # (line, message)


def load(path):
    """A file's text; ends with one line where there is none."""
    try:
        return pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"{path}: {getattr(error, 'strerror', None) or 'no UTF-8 text'}")


def blank(text):
    """Comments and strings to spaces, so that every position keeps its line."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def closing(text, start):
    """Position after the bracket that closes the one at start."""
    pairs, depth = {"(": ")", "{": "}", "[": "]"}, 0
    opening, shut = text[start], pairs[text[start]]
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == shut)
        if depth == 0:
            return i + 1
    return len(text)


def split_commas(text):
    parts, depth, current = [], 0, ""
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += c
    return parts + [current] if current.strip() else parts


def functions(text):
    """(name, position, words before the name, parameters, body) of every function definition."""
    for m in re.finditer(r"(?:^|[;{}>\s])((?:[\w:]+(?:<[^<>;{}()]*>)?[\s*&]+)+)(\w+)\s*\(", text):
        end = closing(text, m.end() - 1)
        after = re.match(r"\s*(?:const\s*)?\{", text[end:])
        if not after or set(m[1].split()) & NO_TYPE or m[2] in NO_TYPE:
            continue
        body = end + after.end() - 1
        yield m[2], m.start(2), m[1].split(), text[m.end():end - 1], text[body:closing(text, body)]


def stamps(text):
    """(start, end, [(call, kernel's text)]) of the lines that stamp out kernels: calls of a macro of this text that holds a kernel,
    and the include of the table of formats, which is one call of FORMAT for each."""
    macros = {}
    for m in re.finditer(r"^#define (\w+)\(([^)\n]*)\)((?:[^\n]*\\\n)*[^\n]*)", text, re.M):
        if re.search(r"\bkernel\s+void\b", m[3]):
            macros[m[1]] = ([w.strip() for w in m[2].split(",")], m[3].replace("\\\n", " "))
    for m in re.finditer(r'^(?:\w+\([^()\n]*\)|#include "quant/formats.def")[ \t]*$', text, re.M):
        calls = re.findall(r"^FORMAT\([^)]*\)", FORMATS.read_text(), re.M) if m[0][0] == "#" else [m[0].strip()]
        made = []
        for call in calls:
            name, values = call.split("(")[0], [v.strip() for v in call[call.index("(") + 1:-1].split(",")]
            if name not in macros:
                continue
            words = dict(zip(macros[name][0], values))
            body = re.sub(r"\w+", lambda w: words.get(w[0], w[0]), macros[name][1])
            made.append((call, re.sub(r"\s*##\s*", "", body)))
        if made:
            yield m.start(), m.end(), made


def stamped(text):
    """The text with kernels in place of the lines that stamp them out; every line keeps its number."""
    for start, end, made in reversed(list(stamps(text))):
        text = text[:start] + " ".join(body for _, body in made) + text[end:]
    return text


def stamped_only(text, kernel):
    """The text with no stamp but that of the kernel."""
    for start, end, made in reversed(list(stamps(text))):
        text = text[:start] + "".join(call for call, body in made if re.search(rf"\b{kernel}\b", body)) + text[end:]
    return text


class Reader:
    def __init__(self, text, path):
        self.raw, self.path, self.errors = blank(stamped(text)), path, []
        self.text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), self.raw, flags=re.M)
        self.stamps(text)
        self.brackets()

    def brackets(self):
        """What stands behind an open bracket would be read as part of what stands before it."""
        waiting = []
        for m in re.finditer(r"[(){}\[\]]", self.text):
            if m[0] in "({[":
                waiting.append(m)
            elif not waiting or waiting.pop()[0] + m[0] not in ("()", "{}", "[]"):
                return self.error(m.start(), f"{m[0]} closes nothing")
        if waiting:
            self.error(waiting[-1].start(), f"{waiting[-1][0]} is never closed")

    def stamps(self, text):
        """Positions of all other text must stay, and nothing in a stamped kernel must need a line of its own or a mutant."""
        made, rest = list(stamps(text)), blank(text)
        for start, end, kernels in made:
            line = text.count("\n", 0, start) + 1
            own = next((m for _, body in kernels for m in [re.search(rf"\bif\b|\?|{CALLS}", body)] if m), None)
            if own:
                self.errors.append((line, f"{own[0]} in a kernel that a macro stamps out: it calls a helper and nothing else"))
            rest = rest[:start] + " " * (end - start) + rest[end:]
        after = re.search(r"^[ \t]*[^#\s]", rest[made[0][0]:], re.M) if made else None
        if after:
            self.errors.append((rest.count("\n", 0, made[0][0] + after.start()) + 1, "text after kernels that a macro stamps out: they stand last"))

    def line(self, position):
        return self.text.count("\n", 0, position) + 1

    def error(self, position, message):
        self.errors.append((self.line(position), message))

    def parameter(self, text, kernel, position):
        m = re.match(r"\s*(.*?)\s*(\[\[\s*(\w+)\s*(?:\(\s*(\w+)\s*\))?\s*\]\]|MTL_TG\(\s*(\d+)\s*\))\s*$", text, re.S)
        if not m:
            return self.error(position, f"{kernel}: a parameter without attribute: {' '.join(text.split())}")
        attribute, number = ("threadgroup", m[5]) if m[5] else (m[3], m[4])
        declaration = re.match(r"(.*?)(\w+)$", " ".join(m[1].split()))
        full, name = declaration[1].strip(), declaration[2]
        bare = re.sub(r"\b(device|constant|threadgroup|const)\b|[*&]", " ", full)
        bare = " ".join(bare.split())
        pointer, reference = "*" in full, "&" in full
        if attribute == "threadgroup" and not m[5]:
            return self.error(position, f"{kernel}: [[threadgroup(n)]] of {name} is written MTL_TG(n)")
        if attribute in ("buffer", "threadgroup"):
            index = int(number) if number and number.isdigit() else -1
            space = next((s for s in SPACES if re.search(rf"\b{s}\b", full)), None)
            if not 0 <= index <= (MAX_BUFFER if attribute == "buffer" else MAX_THREADGROUP):
                self.error(position, f"{kernel}: index of {name} is not in range: {number}")
            if attribute == "buffer" and space not in ("device", "constant") or attribute == "threadgroup" and space != "threadgroup":
                self.error(position, f"{kernel}: {name} needs {'device or constant' if attribute == 'buffer' else 'threadgroup'}")
            if not pointer and not reference:
                self.error(position, f"{kernel}: {name} is neither pointer nor reference")
            kind = "threadgroup" if attribute == "threadgroup" else "constant" if space == "constant" else "buffer"
            return Parameter(name, kind, index, bare, kind == "threadgroup" or kind == "buffer" and "const" not in full.split(), reference)
        if attribute not in POSITIONS | INDICES:
            return self.error(position, f"{kernel}: attribute {attribute} is not in the dialect")
        return Parameter(name, attribute, -1, bare, False, False)

    def kernels(self):
        for m in re.finditer(r"(?:^|(?<=[;}]))[ \t]*(template\s*<[^;{}]*>\s*)?kernel\s+void\s+(\w+)\s*\(", self.text, re.M):
            name, end = m[2], closing(self.text, m.end() - 1)
            if m[1]:
                self.error(m.start(2), f"{name}: a kernel is no template; write a kernel a type over a templated helper")
            body = re.match(r"\s*", self.text[end:]).end() + end
            found = [self.parameter(p, name, m.start(2)) for p in split_commas(self.text[m.end():end - 1])]
            parameters = [p for p in found if p]
            places = [(p.kind if p.index < 0 else p.kind == "threadgroup", p.index) for p in parameters]
            for place in {p for p in places if places.count(p) > 1}:
                self.error(m.start(2), f"{name}: two parameters share an attribute: {place}")
            widths = {re.search(r"([234]?)$", p.type)[1] or "1" for p in parameters if p.kind in POSITIONS}
            if len(widths) > 1:
                self.error(m.start(2), f"{name}: position attributes differ in their number of components")
            yield Kernel(name, self.line(m.start(2)), parameters, self.text[body:closing(self.text, body)] if self.text[body:body + 1] == "{" else "")

    def read(self):
        constants = []
        for m in re.finditer(r"^MTL_FC\(\s*(\w+)\s*,\s*(\w+)\s*,\s*(\d+)\s*\)", self.text, re.M):
            if m[1] not in CONSTANT_TYPES:
                self.error(m.start(), f"function constant {m[2]} is a {m[1]}, must be one of {', '.join(CONSTANT_TYPES)}")
            constants.append((m[1], m[2], int(m[3])))
        kernels = list(self.kernels())
        self.reach(kernels, constants)
        self.rules()
        return Source(self.path, self.text, kernels, constants, sorted(set(self.errors)))

    def reach(self, kernels, constants):
        bodies = {}
        for name, _, _, _, body in functions(self.text):
            bodies[name] = bodies.get(name, "") + body
        for kernel in kernels:
            seen, waiting, words = set(), [kernel.name], set()
            while waiting:
                name = waiting.pop()
                if name in seen:
                    continue
                seen.add(name)
                words |= set(re.findall(r"\w+", bodies.get(name, "")))
                waiting += [w for w in words if w in bodies and w not in seen]
            kernel.constants = [index for _, name, index in constants if name in words]

    def rules(self):
        text = self.text
        for m in re.finditer(r"[;{}]\s*threadgroup\s+[\w:<>]+\s+\w+\s*[\[;=]", text):
            self.error(m.end() - 1, "threadgroup memory inside a function: make it an argument with MTL_TG(n)")
        for m in re.finditer(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?(?![\w.])", text):
            self.error(m.start(), f"literal {m[0]} is a double: write {m[0]}f")
        for m in re.finditer(r"(?<![\w.])(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[hH]\b", text):
            self.error(m.start(), f"literal {m[0]}: write half({m[0][:-1]}f)")
        for m in re.finditer(r"\b(INFINITY|NAN|isinf|isnan|HUGE_VALF)\b", text):
            self.error(m.start(), f"{m[1]} is not reliable under Metal's fast math; use a finite number")
        for m in re.finditer(r"\b(double|goto|virtual|dynamic_cast|throw|try|new|delete|asm|thread_elements|thread_local)\b", text):
            self.error(m.start(), f"{m[1]} is not in the dialect")
        for m in re.finditer(r"\.[rgba]{1,4}\b(?!\s*\()", text):
            self.error(m.start(), f"swizzle {m[0]}: only xyzw")
        for m in re.finditer(r"\[\[\s*(function_constant|threadgroup)\b", text):
            self.error(m.start(), f"[[{m[1]}]] is written with a macro of dialect.h")
        for m in re.finditer(r"#\s*include\s*<(\w+)>", self.raw):
            if not m[1].startswith("metal_") and m[1] != "cstdint":
                self.error(m.start(), f"<{m[1]}>: only Metal's own headers and this project's")
        for name, position, words, parameters, body in functions(text):
            if "kernel" in words:
                continue
            if "inline" not in words:
                self.error(position, f"function {name} is not inline: CUDA makes device functions of inline ones")
            for p in split_commas(parameters):
                if re.search(r"[*&]", p) and not re.search(rf"\b({'|'.join(SPACES)})\b", p):
                    self.error(position, f"{name}: a pointer or reference without address space: {' '.join(p.split())}")
        for number, line in enumerate(text.split("\n"), 1):
            if len(re.findall(CALLS, line)) > 1:
                self.errors.append((number, "two calls of SIMD-group functions or barriers in a line: they are told apart by lines"))


def read(text, path):
    return Reader(text, path).read()


# ---- output


def context_value(p):
    member = f"c.{p.kind}"
    if p.kind in INDICES:
        return f"{p.type}({member})"
    width = int(re.search(r"([234]?)$", p.type)[1] or 1)
    return f"{p.type}({', '.join(f'{member}[{i}]' for i in range(width))})"


def call(kernel, buffer, threadgroup):
    values = []
    for p in kernel.parameters:
        if p.kind in POSITIONS | INDICES:
            values.append(context_value(p))
        elif p.kind == "threadgroup":
            values.append(f"({p.type}*)({threadgroup(p.index)})")
        else:
            values.append(f"{'*' if p.reference else ''}({'' if p.writable else 'const '}{p.type}*)({buffer(p.index)})")
    return f"{kernel.name}({', '.join(values)})"


def parameter_table(kernel):
    letters = {"buffer": "b", "constant": "c", "threadgroup": "t"}
    rows = [f"{{'{letters[p.kind]}', {p.index}, {'true' if p.writable else 'false'}, {f'sizeof({p.type})' if p.reference else '0'}, \"{p.name}\"}}"
            for p in kernel.parameters if p.kind in letters]
    return rows


def host_tables(source, variant=0):
    """Thunks and tables of a source's kernels; stands after the kernels' text, in the same namespace."""
    out = []
    for k in source.kernels:
        arguments = call(k, lambda i: f"a.buffer[{i}]", lambda i: f"a.shared[{i}]")
        out.append(f'__attribute__((no_sanitize("thread"))) static void run_{k.name}([[maybe_unused]] const argent::emu::Arguments& a, '
                   f"[[maybe_unused]] const argent::emu::ThreadContext& c) {{ {arguments}; }}")
        rows = parameter_table(k)
        out.append(f"static const argent::emu::Parameter parameters_{k.name}[] = {{{', '.join(rows)}}};")
        used = ", ".join(map(str, k.constants)) or "0"
        out.append(f"static const uint8_t constants_{k.name}[] = {{{used}}};")
    rows = [f'    {{"{k.name}", run_{k.name}, parameters_{k.name}, {len(parameter_table(k))}, constants_{k.name}, {len(k.constants)}}},' for k in source.kernels]
    out.append("static const argent::emu::Kernel all_kernels[] = {\n" + "\n".join(rows) + "\n};")
    rows = [f'    {{"{name}", {index}, \'{CONSTANT_TYPES[t]}\', &{name}}},' for t, name, index in source.constants]
    out.append("static const argent::emu::Constant all_constants[] = {\n" + "\n".join(rows + ["    {nullptr, 0, 0, nullptr},"]) + "\n};")
    out.append(f'static const argent::emu::Library library = {{"{source.path}", {variant}, all_kernels, {len(source.kernels)}, all_constants, {len(source.constants)}}};')
    out.append("[[maybe_unused]] static const int registered = argent::emu::add_library(&library);")
    return "\n".join(out) + "\n"


def host_text(source):
    return f'// Written by tools/metal/gen.py.\n#include "{source.path}"\n\nnamespace {{\n{host_tables(source)}}}  // namespace\n'


def cuda_text(source):
    out = [f'// Written by tools/metal/gen.py.\n#include "{source.path}"\n']
    for k in source.kernels:
        arguments = call(k, lambda i: f"a.buffer[{i}]", lambda i: f"memory + a.shared[{i}]")
        out.append(f'extern "C" __global__ void cuda_{k.name}(const argent_cuda::Arguments a) {{\n'
                   "  extern __shared__ __align__(16) unsigned char memory[];\n"
                   "  const argent_cuda::ThreadContext c = argent_cuda::here();\n"
                   f"  (void)memory, (void)c, {arguments};\n}}")
        out.append(f"static const argent_cuda::Parameter parameters_{k.name}[] = {{{', '.join(parameter_table(k))}}};")
    for t, name, _ in source.constants:
        out.append(f"static int set_{name}(const void* value) {{ return (int)cudaMemcpyToSymbol({name}, value, sizeof({t})); }}")
    rows = [f'    {{"{k.name}", (const void*)cuda_{k.name}, parameters_{k.name}, {len(parameter_table(k))}}},' for k in source.kernels]
    out.append("static const argent_cuda::Kernel all_kernels[] = {\n" + "\n".join(rows) + "\n};")
    rows = [f"    {{{index}, set_{name}}}," for _, name, index in source.constants]
    out.append("static const argent_cuda::Constant all_constants[] = {\n" + "\n".join(rows + ["    {-1, nullptr},"]) + "\n};")
    out.append(f"static const argent_cuda::Library library = {{all_kernels, {len(source.kernels)}, all_constants, {len(source.constants)}}};")
    out.append("static const int registered = argent_cuda::add_library(&library);")
    return "\n".join(out) + "\n"


def reflect(source):
    return {"file": source.path,
            "function_constants": [{"type": t, "name": n, "index": i} for t, n, i in source.constants],
            "kernels": [{"name": k.name, "line": k.line, "function_constants": k.constants,
                         "parameters": [dataclasses.asdict(p) for p in k.parameters]} for k in source.kernels]}


GOOD = """kernel void f(constant Args& args [[buffer(0)]], device const half4* x [[buffer(1)]], device float* y [[buffer(2)]],
              threadgroup float* sh MTL_TG(0), uint3 g [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]]) {
  y[i] = float(x[g.x].x) * 1.0f;
}
inline float twice(thread const float& v) { return v * 2.0f; }
"""
BAD = [("MTL_TG(0)", "[[threadgroup(0)]]"), ("device float* y", "float* y"), ("1.0f", "1.0"), ("1.0f", "1.0h"), ("1.0f", "INFINITY"),
       ("inline float", "float"), ("thread const float&", "const float&"), ("buffer(2)", "buffer(1)"), ("buffer(2)", "buffer(31)"),
       ("uint i [[thread_index_in_threadgroup]]", "uint i"), ("thread_index_in_threadgroup", "thread_execution_width"),
       ("uint i [[thread_index_in_threadgroup]]", "uint i [[thread_position_in_grid]]"), ("kernel void", "template <class T> kernel void"),
       ("  y[i]", "  threadgroup float t[32]; y[i]"), ("1.0f", "double(1.0f)"), ("x[g.x].x", "x[g.x].rg.x"),
       ("  y[i]", "  threadgroup_barrier(a); threadgroup_barrier(b); y[i]"), ("kernel void", "#include <vector>\nkernel void"),
       ("* 1.0f;", "* 1.0f);"), ("MTL_TG(0),", "MTL_TG(0, "), ("inline", "}\ninline"), ("return v", "{ return v"),
       ("kernel void", "MTL_FC(half, kHalf, 0);\nkernel void"), ("device const half4* x", "device const half4 x")]

STAMPED = """inline void g(device float* y, uint i) { y[i] = 1.0f; }
#define FORMAT(name, NAME, id, elements, bytes) \\
  kernel void f_##name(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) { \\
    g(y, i); \\
  }
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
"""
BAD_STAMPED = [("#undef FORMAT", "inline void h() {}"), ("g(y, i);", "if (i > 0) g(y, i);"), ("g(y, i);", "g(y, simd_sum(i));"), ("device float* y [[", "float* y [[")]


def selftest():
    kernels = read(STAMPED, "stamped").kernels
    errors = read(GOOD, "good").errors + read(STAMPED, "stamped").errors
    if [k.name for k in kernels] != ["f_" + name for name in re.findall(r"^FORMAT\((\w+)", FORMATS.read_text(), re.M)]:
        errors.append((0, "stamped kernels are not one a format"))
    missed = [to for of, to in BAD if not read(GOOD.replace(of, to, 1), "bad").errors]
    missed += [to for of, to in BAD_STAMPED if not read(STAMPED.replace(of, to, 1), "bad").errors]
    kernel = read("MTL_FC(bool, kA, 3);\nMTL_FC(int, kB, 4);\ninline bool g() { return kA; }\n" + GOOD.replace("y[i] =", "if (g()) y[i] ="), "k").kernels[0]
    bad = len(BAD) + len(BAD_STAMPED)
    print(f"{bad - len(missed)} of {bad} bad texts refused; {len(kernel.parameters)} parameters read, constants reached: {kernel.constants}")
    return not (errors or missed or kernel.constants != [3] or len(kernel.parameters) != 6)


def main():
    arguments = sys.argv[1:]
    if arguments == ["--selftest"]:
        sys.exit(0 if selftest() else 1)
    if len(arguments) < 2 or arguments[0] not in ("check", "reflect", "host", "cuda") or arguments[0] in ("host", "cuda") and len(arguments) != 3:
        sys.exit(__doc__)
    mode = arguments[0]
    files = arguments[1:2] if mode in ("host", "cuda") else arguments[1:]
    sources = [read(load(f), f) for f in files]
    wrong = [f"{s.path}:{line}: {message}" for s in sources for line, message in s.errors]
    if wrong:
        sys.exit("\n".join(wrong))
    if mode == "reflect":
        json.dump([reflect(s) for s in sources], sys.stdout, indent=1)
        print()
    elif mode == "check":
        print(f"{len(files)} files, {sum(len(s.kernels) for s in sources)} kernels, as the dialect wants them")
    else:
        try:
            pathlib.Path(arguments[2]).write_text((host_text if mode == "host" else cuda_text)(sources[0]))
        except OSError as error:
            sys.exit(f"{arguments[2]}: {error.strerror}")


if __name__ == "__main__":
    main()
