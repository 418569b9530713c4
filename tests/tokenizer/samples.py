"""Strings on which tokenizers differ: a fixed table and a seeded generator."""

SPACES = ["\t", "\x0b", "\x0c", "\r", "\x1c", "\x85", "\xa0", "\u1680", "\u180e", "\u2003", "\u200a", "\u200b", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]

WORDS = ["hello", "world", "Hello", "THE", "don't", "I'LL", "we've", "they're", "'s", "'S", "'ll", "'D", "'T", "\u2019s", "x'",
         "''", "can'", "naïve", "straße", "Привет", "мир", "こんにちは", "世界", "日本語", "안녕", "مرحبا", "हिन्दी", "ไทย", "e\u0301",
         "\u0301", "\u200d", "👨\u200d👩\u200d👧", "😀", "\ufe0f", "\x00", "\r\n", "\n", "\n\n", " ", "  ", "   ", "    ", "1", "12",
         "123", "1234", "12345", "123456", "1234567", "²", "½", "Ⅳ", "٣٤", "१२", "𝟘", ".", "...", "!", "?!", "--", "/", "//", "\\",
         "`", "```", "$", "+=", "<=>", "^", "~", "|", "@", "#", "%", "(", ")", "[", "]", "{", "}", "_", "__", '"', "'", "«", "»",
         "—", "€", "£", "→", "∑", "ABC", "camelCase", "CamelCaseURL", "ÀÉ", "àÉx", "ǅ", "İ", "ſ", "K", "ﬁ", "𝒳", "\U000e0100",
         "🇺🇸", "int main(){\n\treturn 0;\n}", "def f(x):\n    return x\n", "http://a.b/c?d=e&f", "3.14", "1,000,000",
         "2023-01-01", "▁", "▁▁", "Ġ", "Ċ", "\ufffd", "\ue000", "\u0378", "\U0001fae9", "\u0897", "à́b", *SPACES]

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>", "<empty_output>", "<bos>", "<eos>", "<pad>",
            "<unk>", "<mask>", "[multimodal]", "<unused0>", "<unused6241>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>",
            "<0x0A>", "<0x41>", "</s>", "<s>", "<h1>", "</table>", "\n\n\n\n", "      "]

# Control texts must not come out of merging either.
CHAT = "<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"


def table():
    out = ["", " ", "  ", "a", " a", "  a", "a ", "a  ", "\t\t\t\t\t\ttest", "▁", "Hello world", "Hello, world! How's it going?"]
    out += [("1234567890" * 2)[:n] for n in range(1, 12)]
    out += [f"x{('9' * n)}y {'7' * n}" for n in range(1, 8)]
    out += [f"it{c}x" for c in ("'s", "'S", "'t", "'T", "'re", "'RE", "'ve", "'vE", "'m", "'M", "'ll", "'Ll", "'d", "'D", "'x", "'", "’s")]
    out += ["'s", " 's", "''s", "I'm'LL", "'re're", "'r", "'l", "'ll", "x 'LL", "'ſ"]
    out += [f"a{s}b" for s in SPACES] + [f"a {s}b" for s in SPACES] + [f"a{s} b" for s in SPACES] + [s * 3 + "x" for s in SPACES]
    out += ["trailing  \nnext", "trailing   \n\n  next", "a \n", "a \n ", "a\n\n\nb", "\n", "\n ", " \n", "a\r\nb", "a\r\n\r\nb", "a \r\n b",
            "\r", "a\rb", "!\n", "!!\r\n\r\nx", " !\n\n", "x = 1;\n\n\ty", "a/b//c\n", "?/\n/", " \n \n ", "\n\n\n\n\n" * 8]
    out += ["a\x00b", "\x00", "\ufeffBOM", "e\u0301e\u0301", "\u0301\u0301", "a\u200db", "👨\u200d👩\u200d👧\u200d👦", "🇺🇸🇩🇪", "日本語English混じり123文字",
            "中文，标点。", "abcПриветdef", "ÀÉÎabcDEF", "XMLHttpRequest", "HTTPServer2Go", "ÄÖÜßx", "iPhoneX's", "ABCdef'LL", "Ünïcödé"]
    out += [f"{a}{b}" for a in ("", "x", "user ", " ") for b in SPECIALS] + [f"{b}{a}" for a in ("x", " user", "  x", "\n") for b in SPECIALS]
    out += [CHAT, "<|im_start", "<|im_start|<|im_start|>", "<<|im_end|>>", "<|im_end|><|im_end|>", "<end_of_turn><end_of_turn>\n"]
    out += WORDS + ["The quick brown fox jumps over the lazy dog. " * 3, "int main() {\n    printf(\"%d\\n\", 42);\n}\n", "=" * 40, "a" * 100,
                    "-" * 30 + "\n", " " * 70, "\n" * 70, "us" * 40, "ああああああああああ" * 4]
    return list(dict.fromkeys(out))


def random_text(rng, max_words=14):
    out = []
    for _ in range(rng.randint(0, max_words)):
        kind = rng.random()
        if kind < 0.6:
            out.append(rng.choice(WORDS))
        elif kind < 0.7:
            out.append(rng.choice(SPECIALS))
        elif kind < 0.75:
            special = rng.choice(SPECIALS)
            out.append(special[rng.randint(0, len(special)):])
        elif kind < 0.9:
            out.append(" ")
        elif kind < 0.95:
            low, high = rng.choice([(32, 126), (128, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF)])
            out.append(chr(rng.randint(low, high)))
        else:
            out.append(rng.choice(WORDS) * rng.randint(2, 6))
    return "".join(out)


# A byte-level vocabulary that shows where text was cut: every pair of bytes is a token, in an order that looks random, and a
# few words are tokens that no merges lead to. pair_vocab.h is the same in C++.
PAIR_WORDS = ["hello", "Ġhello", "ABC", "123", "don", "Ġworld"]
PAIR_CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<mask>"]
PAIR_USER_DEFINED = ["\n\n\n\n", "      ", "<h1>", "</table>"]


def pair_vocab():
    """tokens, types, merges"""
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xFF and b != 0xAD]
    rest = [b for b in range(256) if b not in printable]
    char = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(rest)}
    pairs = [divmod(k * 40503 % 65536, 256) for k in range(65536)]
    tokens = [char[b] for b in range(256)] + [char[a] + char[b] for a, b in pairs] + PAIR_WORDS + PAIR_CONTROL + PAIR_USER_DEFINED
    types = [1] * (256 + 65536 + len(PAIR_WORDS)) + [3] * len(PAIR_CONTROL) + [4] * len(PAIR_USER_DEFINED)
    return tokens, types, [f"{char[a]} {char[b]}" for a, b in pairs]
