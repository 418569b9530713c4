"""Random templates over every construct of the language, with random contexts. Well-typed often enough that most of
them render, wild often enough that errors are compared too."""

import random
import string

WORDS = ["hello", "World", "a", "", " x ", "Ünï çödé", "ß straße", "日本語", "<b>&'\"", "line\nbreak", "\ttab", "Σας ΣΑΣ",
         "12", "-3", "4.5", "1e3", "true", "user", "a,b,c", "  lead", "trail  ", "two words", "ǆ ŉ", "it's", "😀 ok", "%s %d", "{} {0}"]  # fmt: skip
CONTEXT_NAMES = ["messages", "tools", "s", "t", "n", "k", "f", "b", "nothing", "xs", "ys", "d", "dd", "words", "pairs",
                 "items", "bos_token", "add_generation_prompt", "x", "y"]  # fmt: skip
UNSET = ["unset", "missing_name", "zz"]
LOOP = ["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.revindex0",
        "loop.previtem", "loop.nextitem", "loop.depth", "loop.cycle('a', 'b', 3)", "loop.changed(x)",
        "(loop.previtem is defined)", "(loop.nextitem is defined)"]  # fmt: skip
KEYS = ["role", "content", "name", "id", "a", "b", "items", "keys", "nokey", "type", "n"]


def random_json(r, depth=2):
    kind = r.randrange(9 if depth else 6)
    if kind < 2:
        return r.choice(WORDS)
    if kind == 2:
        return r.randrange(-5, 20)
    if kind == 3:
        return r.choice([0.0, 1.0, 2.5, -0.1, 1e16, 1e-5, 3.14159, 123456789.123, 1e22, 5e-324, 0.5, 1.5, 100.0])
    if kind == 4:
        return r.choice([True, False])
    if kind == 5:
        return None
    if kind < 8:
        return [random_json(r, depth - 1) for _ in range(r.randrange(4))]
    return {r.choice(KEYS): random_json(r, depth - 1) for _ in range(r.randrange(4))}


def random_context(r):
    def message():
        m = {"role": r.choice(["user", "assistant", "system", "tool"]), "content": r.choice(WORDS + [None])}
        if r.random() < 0.3:
            m["tool_calls"] = [{"id": "c1", "function": {"name": "f", "arguments": random_json(r)}}]
        return m

    context = {
        "messages": [message() for _ in range(r.randrange(4))],
        "tools": [{"type": "function", "function": {"name": "get", "parameters": {"city": r.choice(WORDS)}}}],
        "s": r.choice(WORDS), "t": r.choice(WORDS), "n": r.randrange(-3, 12), "k": r.randrange(1, 6),
        "f": r.choice([0.0, 1.5, -2.25, 1e20, 0.1, 2.675, 1e-7]), "b": r.random() < 0.5, "nothing": None,
        "xs": [r.randrange(-4, 9) for _ in range(r.randrange(6))],
        "ys": [r.choice(WORDS) for _ in range(r.randrange(5))],
        "d": {k: random_json(r, 1) for k in r.sample(KEYS, r.randrange(5))},
        "dd": {r.choice(WORDS): r.randrange(9) for _ in range(r.randrange(12))},
        "words": r.sample(WORDS, 4),
        "pairs": [[r.choice(KEYS), r.randrange(5)] for _ in range(3)],
        "items": [{"name": r.choice(WORDS), "n": r.randrange(4), "a": {"b": r.randrange(3)}} for _ in range(r.randrange(4))],
        "bos_token": "<s>", "add_generation_prompt": r.random() < 0.5, "x": random_json(r), "y": random_json(r),
    }  # fmt: skip
    if r.random() < 0.3:
        del context[r.choice(sorted(context))]
    return context


class Generator:
    def __init__(self, r):
        self.r = r
        self.names = []  # set by the template
        self.macros = []
        self.loops = 0
        self.spaces = 0
        self.budget = r.choice([1, 1, 2, 3, 4, 6, 8, 12, 20])

    # --- expressions

    def pick(self, *options):
        return self.r.choice(options)()

    def literal_string(self):
        r = self.r
        text = r.choice(WORDS)
        quote = r.choice("'\"")
        out = ""
        for c in text:
            if c == "\\" or c == quote:
                out += "\\" + c
            elif c == "\n" and r.random() < 0.7:
                out += "\\n"
            elif r.random() < 0.03:
                out += r.choice(["\\t", "\\x41", "\\u00e9", "\\U0001f600", "\\101", "\\q", "\\é", "\\\n"])
            else:
                out += c
        return quote + out + quote

    def name(self):
        r = self.r
        if self.names and r.random() < 0.4:
            return r.choice(self.names)
        if r.random() < 0.06:
            return r.choice(UNSET)
        return r.choice(CONTEXT_NAMES)

    def number(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.5:
            return r.choice(["0", "1", "2", "3", "7", "-1", "-2", "10", "2.5", "0.1", "1e3", "n", "k", "f", "1_000", "0x1F", "b",
                             "true", "1.0", "-0.0", "-7", "-2.5", "13", "1e-7", "123456789012"])  # fmt: skip
        return self.pick(
            lambda: f"({self.number(d - 1)} {r.choice(['+', '-', '*', '/', '//', '%'])} {self.number(d - 1)})",
            lambda: f"({r.choice(['2', '3', '-2', '1.5', 'k'])} ** {r.choice(['0', '2', '3', '-1', '0.5'])})",
            lambda: f"-{self.number(0)}",
            lambda: f"{self.seq(d - 1)}|length",
            lambda: f"{self.string(d - 1)}|int" + r.choice(["", "(7)", "(default=-1)", "(0, 16)"]),
            lambda: f"{self.any(d - 1)}|float" + r.choice(["", "(1.5)"]),
            lambda: f"{self.number(d - 1)}|round" + r.choice(["", "(1)", "(2, 'floor')", "(method='ceil')", "(-1)"]),
            lambda: f"{self.number(d - 1)}|abs",
            lambda: f"{self.numbers(d - 1)}|sum",
            lambda: f"{self.string(d - 1)}.{r.choice(['find', 'count', 'rfind', 'index'])}({self.literal_string()})",
            lambda: f"{r.choice(['s', 't', self.literal_string()])}|wordcount",
            lambda: f"{self.numbers(d - 1)}|{r.choice(['min', 'max', 'first', 'last'])}",
            lambda: f"({self.any(d - 1)})|int",
        )

    def numbers(self, d):
        r = self.r
        return r.choice(["xs", "range(k)", "range(1, 5)", "range(5, 0, -2)", "[3, 1, 2]", "[]", "(1, 2.5, true)", "xs[1:]", "dd.values()",
                         "(xs|sort)", "(xs|list)", "(range(n))", "(xs + [7])"])  # fmt: skip

    def string(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.4:
            return r.choice([self.literal_string, lambda: r.choice(["s", "t"]), lambda: "(messages[0].content)", lambda: "words[0]"])()
        return self.pick(
            lambda: f"({self.string(d - 1)} + {self.string(d - 1)})",
            lambda: f"({self.any(d - 1)} ~ {self.any(d - 1)})",
            lambda: f"({self.string(d - 1)} * {r.choice(['0', '2', 'k', '-1'])})",
            lambda: f"{self.string(d - 1)}{self.slice(d)}",
            lambda: f"{self.string(d - 1)}|{self.text_filter(d)}",
            lambda: f"{self.string(d - 1)}.{self.text_method(d)}",
            lambda: f"({self.format(d)})",
            lambda: f"{self.seq(d - 1)}|join" + r.choice(["", "(', ')", "(d='-')", "('|', attribute='name')"]),
            lambda: f"{self.literal_string()}.join({r.choice(['ys', 'words', self.seq(d - 1)])})",
            lambda: f"{self.any(d - 1)}|string",
            lambda: f"{self.any(d - 1)}|tojson" + self.tojson_args(),
            lambda: f"({self.string(d - 1)} if {self.test(d - 1)} else {self.string(d - 1)})",
            lambda: f"({self.string(d - 1)} {self.literal_string()})" if r.random() < 0.1 else "('a' \"b\" 'c')",
            lambda: f"strftime_now({r.choice(['%Y-%m-%d', '%d %b %Y', '%H:%M:%S %A', '%%', 'x%jy'])!r})",
        )

    def tojson_args(self):
        return self.r.choice(["", "", "(indent=2)", "(indent=4)", "(indent=0)", "(ensure_ascii=true)", "(separators=(',', ':'))",
                              "(sort_keys=true)", "(indent=2, sort_keys=true)", "(indent='..')", "(2)", "(false, 3)"])  # fmt: skip

    def text_filter(self, d):
        r = self.r
        lit = self.literal_string
        return r.choice([
            lambda: r.choice(["upper", "lower", "title", "capitalize", "trim", "string", "safe", "e", "escape", "reverse",
                              "urlencode", "forceescape", "list|join('.')", "first", "last", "length|string", "int|string"]),
            lambda: f"replace({lit()}, {lit()}" + r.choice(["", ", 1", ", count=2"]) + ")",
            lambda: f"indent({r.choice(['', '2', '2, true', 'first=true', '4, blank=true', 'width=1', repr('> ')])})",
            lambda: f"default({lit()}" + r.choice(["", ", true"]) + ")",
            lambda: f"trim({r.choice([repr('a'), repr(' x'), 'chars=none', repr('ßü')])})",
            lambda: f"center({r.choice(['9', '10', '0', '3'])})",
            lambda: f"truncate({r.choice(['5', '8, true', '6, false, repr', '10, end=1', '5, leeway=0', '255'])})".replace("repr", "''").replace("end=1", "end='!'"),
            lambda: f"format({self.any(d - 2)})",
        ])()  # fmt: skip

    def text_method(self, d):
        r = self.r
        lit = self.literal_string
        return r.choice([
            lambda: r.choice(["strip", "lstrip", "rstrip", "upper", "lower", "title", "capitalize", "swapcase", "casefold"]) + "()",
            lambda: r.choice(["strip", "lstrip", "rstrip"]) + f"({r.choice([lit(), 'none'])})",
            lambda: f"split({r.choice(['', lit(), 'none, 1', lit() + ', 1', 'maxsplit=1'])})" + r.choice(["[0]", "[-1]", "|join('/')", "|length|string", "|tojson"]),
            lambda: f"rsplit({r.choice(['', lit(), 'none, 1', lit() + ', 1'])})|join('/')",
            lambda: f"replace({lit()}, {lit()}" + r.choice(["", ", 1", ", -1"]) + ")",
            lambda: f"splitlines({r.choice(['', 'true'])})|join('/')",
            lambda: f"partition({lit()})|join('/')",
            lambda: f"rpartition({lit()})|join('/')",
            lambda: r.choice(["removeprefix", "removesuffix"]) + f"({lit()})",
            lambda: r.choice(["ljust", "rjust", "center"]) + f"({r.choice(['8', '9, ' + repr('*'), '0'])})",
            lambda: f"zfill({r.choice(['5', '3', '0'])})",
            lambda: f"expandtabs({r.choice(['', '4', '0'])})",
            lambda: f"format({self.any(d - 2)}, {self.any(d - 2)})",
        ])()  # fmt: skip

    def format(self, d):
        r = self.r
        number = r.choice(["%d", "%5d", "%-5d|", "%05d", "%+d", "%x", "%#x", "%o", "%.2f", "%8.3f", "%e", "%g", "%G", "%.3d", "% d", "%i", "%c"])
        spec = r.choice(["", ":5", ":>8", ":<8", ":^9", ":*^9", ":05", ":+", ":x", ":#x", ":b", ":,", ":_", ":.2f", ":8.2f", ":e", ":g", ":%", ":.3",
                         ":=+6", "!r", "!s:>6", ":08.3f", ":n", ":s", ":d", ":>{1}", ":c"])  # fmt: skip
        return r.choice([
            lambda: f"'{number}' % {self.number(d - 1)}",
            lambda: f"'%s-%r' % ({self.any(d - 1)}, {self.any(d - 1)})",
            lambda: f"'%s' % {self.any(d - 1)}",
            lambda: f"'%(a)s %(b)s' % {{'a': {self.any(d - 1)}, 'b': 1}}",
            lambda: f"'%-6s|%6s|%.2s' % ({self.string(d - 1)}, {self.string(d - 1)}, {self.string(d - 1)})",
            lambda: f"'%*d' % (k, {self.number(0)})",
            lambda: f"'{{{spec}}}'.format({r.choice([self.number, self.any, self.string])(d - 1)}, k)".replace("{:>{1}}", "{0:>{1}}"),
            lambda: f"'{{a}} {{b[0]}} {{c.x}}'.format(a={self.any(d - 1)}, b=[1], c={{'x': 2}})",
            lambda: f"'{{}} {{}}'.format({self.any(d - 1)}, {self.any(d - 1)})",
            lambda: f"{self.literal_string()}|format({self.any(d - 1)})",
            lambda: f"'{{{{}}}} {{1}} {{0}}'.format({self.any(d - 1)}, 5)",
        ])()  # fmt: skip

    def slice(self, d):
        r = self.r

        def part():
            return r.choice(["", "", "0", "1", "2", "-1", "-2", "n", "k", "10", "-10", "none"])

        return f"[{part()}:{part()}" + (f":{r.choice(['', '1', '2', '-1', '-2', 'k', '-k'])}" if r.random() < 0.5 else "") + "]"

    def seq(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.35:
            return r.choice(["xs", "ys", "words", "messages", "items", "pairs", "d", "dd", "s", "range(3)", "[]", "()", "{}", "tools"])
        return self.pick(
            lambda: "[" + ", ".join(self.any(d - 1) for _ in range(r.randrange(4))) + "]",
            lambda: "(" + "".join(self.any(d - 1) + ", " for _ in range(r.randrange(3))) + ")",
            lambda: "{" + ", ".join(f"{self.scalar(d - 1)}: {self.any(d - 1)}" for _ in range(r.randrange(3))) + "}",
            lambda: f"({self.seq(d - 1)} + {self.seq(d - 1)})",
            lambda: f"({self.seq(d - 1)} * 2)",
            lambda: f"{self.sliceable(d - 1)}{self.slice(d)}",
            lambda: f"({self.seq(d - 1)}|{self.seq_filter(d)})",
            lambda: f"({self.seq(d - 1)}|{self.seq_filter(d)}|list)",
            lambda: f"{r.choice(['d', 'dd', 'messages[0]', self.seq(d - 1)])}.{r.choice(['items()', 'keys()', 'values()', 'copy()'])}",
            lambda: f"dict({r.choice(['', 'd', 'pairs', 'a=1', 'dd, b=2', self.seq(d - 1)])})",
            lambda: f"{self.string(d - 1)}.split({r.choice(['', self.literal_string()])})",
            lambda: f"({self.seq(d - 1)} if {self.test(d - 1)} else {self.seq(d - 1)})",
        )

    def sliceable(self, d):
        """Not a literal dict: jinja2 folds its slices to undefined before they can fail."""
        seq = self.seq(d)
        return "xs" if "{" in seq else seq

    def seq_filter(self, d):
        r = self.r
        test = self.test_call
        return r.choice([
            lambda: r.choice(["list", "reverse", "sort", "unique", "items", "first", "last", "length", "join", "batch(2)", "batch(3, 0)",
                              "slice(2)", "slice(3, 'z')", "dictsort", "min", "max", "sum", "tojson", "string"]),
            lambda: r.choice(["sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='n')", "sort(attribute='name,n')",
                              "sort(true, true)", "dictsort(by='value')", "dictsort(true)", "dictsort(reverse=true)", "unique(attribute='n')",
                              "unique(true)", "map(attribute='name')", "map(attribute='a.b')", "map(attribute='role', default='none')",
                              "map(attribute=0)", "sum(attribute='n')", "sum(start=1)", "min(attribute='n')", "max(attribute='name')",
                              "groupby('n')", "groupby('name', default='q')", "join(', ')", "join(attribute='n')"]),
            lambda: f"map('{r.choice(['upper', 'trim', 'length', 'string', 'tojson', 'int', 'list', 'title', 'abs', 'first', 'default'])}')",
            lambda: f"map('replace', {self.literal_string()}, '_')",
            lambda: f"map('{r.choice(['default', 'join', 'indent', 'center', 'trim'])}', {self.scalar(0)})",
            lambda: r.choice(["select", "reject"]) + r.choice(["", f"({test(d)})"]),
            lambda: r.choice(["selectattr", "rejectattr"]) + f"('{r.choice(KEYS)}'" + r.choice(["", f", {test(d)}"]) + ")",
        ])()  # fmt: skip

    def test_call(self, d):
        r = self.r
        return r.choice([
            lambda: repr(r.choice(["defined", "none", "string", "odd", "even", "mapping", "number", "integer", "iterable", "sequence",
                                   "boolean", "true", "false", "float", "upper", "lower", "undefined", "callable"])),
            lambda: f"'{r.choice(['==', 'eq', 'equalto', 'ne', '!=', 'lt', 'gt', '<', '>=', 'le', 'greaterthan', 'lessthan', 'ge', 'in', 'divisibleby', 'sameas'])}', {self.scalar(d - 1)}",
        ])()  # fmt: skip

    def scalar(self, d):
        return self.r.choice([self.number, self.string])(d) if self.r.random() < 0.9 else self.r.choice(["none", "true", "false"])

    def test(self, d):
        r = self.r
        if d <= 0:
            return r.choice(["b", "true", "false", "n", "s", "xs", "add_generation_prompt", "x", "unset"])
        not_ = r.choice(["", "", "not "])
        return self.pick(
            lambda: f"({self.any(d - 1)} is {not_}{r.choice(['defined', 'undefined', 'none', 'string', 'mapping', 'sequence', 'iterable', 'number', 'integer', 'float', 'boolean', 'true', 'false', 'callable', 'escaped', 'upper', 'lower'])})",
            lambda: f"({self.number(d - 1)} is {not_}{r.choice(['odd', 'even', 'divisibleby 3', 'divisibleby(2)', 'eq 1', 'sameas true', 'in xs', 'in [1, 2]', 'gt 2', 'le(0)'])})",
            lambda: f"({self.any(d - 1)} {r.choice(['==', '!='])} {self.any(d - 1)})",
            lambda: f"({self.number(d - 1)} {r.choice(['<', '>', '<=', '>=', '=='])} {self.number(d - 1)})",
            lambda: f"({self.string(d - 1)} {r.choice(['<', '>', '==', 'in', 'not in'])} {self.string(d - 1)})",
            lambda: f"({self.any(d - 1)} {r.choice(['in', 'not in'])} {self.seq(d - 1)})",
            lambda: f"(1 < {self.number(d - 1)} <= 5 != {self.number(0)})",
            lambda: f"(not {self.test(d - 1)})",
            lambda: f"({self.test(d - 1)} {r.choice(['and', 'or'])} {self.test(d - 1)})",
            lambda: f"{self.string(d - 1)}.{r.choice(['startswith', 'endswith'])}({r.choice([self.literal_string(), '(' + self.literal_string() + ', ' + self.literal_string() + ')'])})",
            lambda: f"{self.string(d - 1)}.{r.choice(['isdigit', 'isalpha', 'isalnum', 'isspace', 'isupper', 'islower', 'istitle', 'isnumeric', 'isdecimal', 'isascii', 'isprintable'])}()",
            lambda: f"('{r.choice(['tojson', 'nofilter'])}' is filter)",
        )

    def any(self, d):
        r = self.r
        if d <= 0:
            return r.choice([self.name, self.literal_string, lambda: self.number(0), lambda: r.choice(["none", "true", "false", "[]", "{}"])])()
        choice = r.random()
        if choice < 0.22:
            return self.string(d)
        if choice < 0.40:
            return self.number(d)
        if choice < 0.58:
            return self.seq(d)
        if choice < 0.66:
            return self.test(d)
        if self.loops and choice < 0.72:
            return r.choice(LOOP)
        if self.macros and choice < 0.76:
            return f"{r.choice(self.macros)}({', '.join(self.any(d - 2) for _ in range(r.randrange(3)))})"
        if self.spaces and choice < 0.79:
            return r.choice(["ns.a", "ns.b", "ns", "ns['a']", "ns.nokey"])
        return self.pick(
            lambda: f"{self.name()}.{r.choice(KEYS)}",
            lambda: f"{self.name()}[{r.choice([repr(r.choice(KEYS)), '0', '-1', '1', 'k', 'n', '99', 'none', '1.0', 'true'])}]",
            lambda: f"{self.name()}.{r.choice(['0', '1'])}",
            lambda: f"{self.name()}.get({r.choice([repr(r.choice(KEYS)), self.any(d - 1)])}{r.choice(['', ', 1', ', none'])})",
            lambda: f"messages[{r.choice(['0', '-1', '1'])}].{r.choice(['role', 'content', 'tool_calls', 'nokey.deep'])}",
            lambda: f"({self.any(d - 1)} if {self.test(d - 1)}" + r.choice(["", f" else {self.any(d - 1)}"]) + ")",
            lambda: f"({self.any(d - 1)} {r.choice(['and', 'or'])} {self.any(d - 1)})",
            lambda: f"{self.any(d - 1)}|default({self.any(d - 1)}" + r.choice(["", ", true", ", boolean=true"]) + ")",
            lambda: f"({self.any(d - 1)} {r.choice(['+', '*', '-', '%', '~'])} {self.any(d - 1)})",
            lambda: f"{self.any(d - 1)}|{r.choice(['length', 'list', 'join', 'first', 'last', 'string', 'tojson', 'trim', 'upper', 'items|list', 'sort', 'int', 'reverse|list', 'capitalize', 'sum', 'unique|list', 'abs'])}",
            lambda: f"({self.any(d - 1)})|attr('{r.choice(['role', 'name', 'nokey', 'n', 'id'])}')",
        )

    # --- statements

    def open(self, block=True):
        return ("{%" if block else "{{") + self.r.choice(["", "", "", "-", "+" if block else ""])

    def close(self, block=True):
        return self.r.choice(["", "", "", "-", "+" if block else ""]) + ("%}" if block else "}}")

    def tag(self, body):
        r = self.r
        return self.open() + r.choice([" ", " ", "", "\n "]) + body + r.choice([" ", " ", "", "  \n"]) + self.close()

    def text(self):
        r = self.r
        return "".join(r.choice(["a", "text", " ", "  ", "\n", "\n\n", "\n  ", "\t", "<|im_start|>", "é", "{ ", "}", "% ", "# ", "\r\n", "\n    "]) for _ in range(r.randrange(4)))  # fmt: skip

    def output(self):
        return f"{self.open(False)} {self.any(3)} {self.close(False)}"

    def body(self, depth):
        out = ""
        for _ in range(self.r.randrange(1, 4)):
            out += self.text()
            if self.budget > 0:
                self.budget -= 1
                out += self.statement(depth)
        return out + self.text()

    def scoped(self, depth):
        saved = list(self.names), list(self.macros), self.spaces
        out = self.body(depth)
        self.names, self.macros, self.spaces = saved
        return out

    def new_name(self):
        name = self.r.choice(["v1", "v2", "v3", "x", "s", "xs", "n", "loopvar"])
        return name

    def statement(self, depth):
        r = self.r
        if depth <= 0 or r.random() < 0.4:
            return self.output()
        return self.pick(self.st_output, self.st_if, lambda: self.st_if(), self.st_for, self.st_for, self.st_set, self.st_set, self.st_set_block,
                         self.st_with, self.st_macro, self.st_call, self.st_namespace, self.st_filter, self.st_generation,
                         self.st_raw, self.st_comment, self.st_print, self.st_recursive)  # fmt: skip

    @property
    def depth(self):
        return 2 if self.budget > 8 else 1

    def st_output(self):
        return self.output()

    def st_print(self):
        return self.tag(f"print {self.any(2)}")

    def st_if(self):
        out = self.tag(f"if {self.test(2)}") + self.body(self.depth)
        while self.r.random() < 0.3:
            out += self.tag(f"elif {self.test(2)}") + self.body(1)
        if self.r.random() < 0.5:
            out += self.tag("else") + self.body(1)
        return out + self.tag("endif")

    def st_for(self):
        r = self.r
        target = r.choice(["i", "m", "x", "v1"])
        iterable = self.seq(2)
        if r.random() < 0.25:
            target, iterable = "key, value", r.choice(["d.items()", "dd|items", "dd|dictsort", "pairs", "dd.items()", "items|groupby('n')"])
        condition = f" if {self.test(1)}" if r.random() < 0.2 else ""
        head = self.tag(f"for {target} in {iterable}{condition}")
        names = target.split(", ")
        self.names += names
        self.loops += 1
        inner = self.scoped(self.depth)
        if r.random() < 0.25:
            inner += self.tag(f"if {self.test(1)}") + r.choice(["", self.text()]) + self.tag(r.choice(["break", "continue"])) + self.tag("endif") + self.scoped(1)
        if self.spaces and r.random() < 0.4:
            inner += self.tag(f"set ns.{r.choice('ab')} = {self.any(1)}")
        self.loops -= 1
        for n in names:
            self.names.remove(n)
        otherwise = self.tag("else") + self.scoped(1) if r.random() < 0.25 else ""
        return head + inner + otherwise + self.tag("endfor")

    def st_recursive(self):
        return self.tag("for q in [1, [2, [3]], 's'] recursive") + "{{ loop.depth }}{{ loop(q) if q is iterable and q is not string else q }}" + self.text() + self.tag("endfor")

    def st_set(self):
        name = self.new_name()
        if self.r.random() < 0.15:
            other = self.new_name()
            out = self.tag(f"set {name}, {other} = {self.any(1)}, {self.any(1)}")
            self.names += [name, other]
            return out
        out = self.tag(f"set {name} = {self.any(3)}")
        self.names.append(name)
        return out

    def st_set_block(self):
        name = self.new_name()
        filters = self.r.choice(["", "", " | upper", " | trim", " | replace('a', 'b') | title", " | length", " | indent(2)"])
        out = self.tag(f"set {name}{filters}") + self.scoped(1) + self.tag("endset")
        self.names.append(name)
        return out

    def st_with(self):
        name = self.new_name()
        head = self.tag(f"with {name} = {self.any(2)}" + self.r.choice(["", f", w2 = {self.any(1)}"]))
        self.names.append(name)
        out = head + self.scoped(self.depth) + self.tag("endwith")
        self.names.remove(name)
        return out

    def st_macro(self):
        r = self.r
        name = r.choice(["m1", "m2", "m3"])
        loops, self.loops = self.loops, 0 if r.random() < 0.8 else self.loops
        saved = list(self.names)
        self.names += ["p", "q"]
        signature = r.choice(["p", "p, q", "p, q='dq'", "p='dp', q=p", "p=none"])
        inner = self.scoped(self.depth) + r.choice(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller else '' }}", "{{ p }}", "{{ caller is defined }}"])
        self.names, self.loops = saved, loops
        self.macros.append(name)
        return self.tag(f"macro {name}({signature})") + inner + self.tag("endmacro")

    def st_call(self):
        if not self.macros:
            return self.st_macro() + self.output()
        args = ", ".join(self.any(1) for _ in range(self.r.randrange(3)))
        name = self.r.choice(self.macros)
        return self.tag(f"call{self.r.choice(['', '(c)', '(c=1)'])} {name}({args})") + self.scoped(1) + self.tag("endcall")

    def st_namespace(self):
        if not self.spaces:
            self.spaces += 1
            return self.tag(f"set ns = namespace({self.r.choice(['a=1', 'a=[], b=none', 'd', '', 'a=' + self.any(1)])})")
        return self.r.choice([
            lambda: self.tag(f"set ns.{self.r.choice('ab')} = {self.any(2)}"),
            lambda: self.tag("set ns.a") + self.scoped(1) + self.tag("endset"),
            lambda: self.tag(f"set ns.a, v1 = {self.any(1)}, {self.any(1)}"),
        ])()  # fmt: skip

    def st_filter(self):
        return self.tag(f"filter {self.r.choice(['upper', 'trim', 'indent(1)', 'replace(s, t)', 'title|lower', 'length', 'default(1)'])}") + self.scoped(1) + self.tag("endfilter")

    def st_generation(self):
        return self.tag("generation") + self.scoped(self.depth) + self.tag("endgeneration")

    def st_raw(self):
        return self.open() + " raw " + self.r.choice(["%}", "-%}"]) + self.text() + self.r.choice(["{{ x }}", "{% if", "", "{# c"]) + self.text() + self.tag("endraw")

    def st_comment(self):
        return "{#" + self.r.choice(["", "-", "+"]) + self.r.choice([" c ", "", "\n\n", " {{ x }} "]) + self.r.choice(["", "-", "+"]) + "#}"

    def template(self):
        out = ""
        while self.budget > 0:
            out += self.text()
            self.budget -= 1
            out += self.statement(3)
        return out + self.r.choice(["", "\n", "\n\n", " "])


def damaged(r, template):
    """A template with a few characters lost, doubled or swapped: what the lexer and the parser make of nonsense."""
    chars = list(template)
    for _ in range(r.randrange(1, 4)):
        if not chars:
            break
        i = r.randrange(len(chars))
        action = r.randrange(3)
        if action == 0:
            del chars[i]
        elif action == 1:
            chars.insert(i, r.choice("{}%#-+()[]'\"|.,:~=<> \n" + string.ascii_letters + "0123456789"))
        else:
            j = r.randrange(len(chars))
            chars[i], chars[j] = chars[j], chars[i]
    return "".join(chars)


def case(seed):
    r = random.Random(seed)
    template = Generator(r).template()
    if r.random() < 0.1:
        template = damaged(r, template)
    return {"template": template, "context": random_context(r)}
