#!/usr/bin/env python3
"""Writes golden/: strings.jsonl, and for each vocabulary the ids that llama.cpp gives for them.

Usage: make_golden.py SMOLLM2.gguf GEMMA3.gguf      (pip install numpy gguf xllamacpp, as tests/oracle/llama.py says)

A line of golden/<name>.ids belongs to the same line of strings.jsonl: ids with control tokens recognised, and behind a "|"
the ids without where they differ, all without BOS. The pre-tokenizers are tested on a vocabulary made for it, in which most cuts
show: in SmolLM2's, for one, no merge holds a digit.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import gguf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))
import llama
import samples

GOLDEN = Path(__file__).resolve().parent / "golden"
PRE_NAMES = ["smollm", "default", "llama-bpe", "qwen2", "qwen35", "gpt-2", "falcon", "gpt-4o", "tekken", "seed-coder", "ufakzeka", "glm4"]


def write_pair_vocab(path, pre):
    tokens, types, merges = samples.pair_vocab()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    finish(writer)


def write_with_space_prefix(source, path):
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in gguf.GGUFReader(source).fields.items():
        value = field.contents()
        if not key.startswith("tokenizer.ggml.") or key.endswith("add_space_prefix"):
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.add_add_space_prefix(True)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_ids(name, path, strings):
    with llama.Model(path, vocab_only=True) as model, open(GOLDEN / f"{name}.ids", "w", encoding="ascii") as out:
        for text in strings:
            special = " ".join(map(str, model.tokenize(text, False, True)))
            plain = " ".join(map(str, model.tokenize(text, False, False)))
            out.write((special if special == plain else f"{special}|{plain}") + "\n")


def main():
    smollm, gemma = sys.argv[1:]
    rng = random.Random(20261129)
    strings = samples.table() + [samples.random_text(rng) for _ in range(150)]
    GOLDEN.mkdir(exist_ok=True)
    with open(GOLDEN / "strings.jsonl", "w", encoding="ascii") as out:
        out.writelines(json.dumps(s) + "\n" for s in strings)
    write_ids("smollm2", smollm, strings)
    write_ids("gemma", gemma, strings)
    with tempfile.TemporaryDirectory() as folder:
        for pre in PRE_NAMES:
            write_pair_vocab(f"{folder}/{pre}.gguf", pre)
            write_ids(pre, f"{folder}/{pre}.gguf", strings)
        write_with_space_prefix(gemma, f"{folder}/gemma.gguf")
        write_ids("gemma-space-prefix", f"{folder}/gemma.gguf", strings)


if __name__ == "__main__":
    main()
