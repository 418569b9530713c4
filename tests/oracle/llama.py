"""llama.cpp as an oracle: logits, greedy continuations and token ids for a GGUF file.

The PyPI wheel `xllamacpp` is one shared object with llama.cpp's C symbols in it, used here through ctypes. Its
parameter structs have no stable layout, so the fields below belong to the pinned wheel and are checked against the
default values it returns before anything runs: another wheel is refused, never misread.
"""

import ctypes as C
import os
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import numpy as np

PINNED = "2026.10.11549"


class OracleError(Exception):
    pass


@dataclass(frozen=True)
class Mode:
    """A way of computing: which weights (the file's own, or the same ones as F32), which attention, which cache."""

    name: str
    f32_weights: bool
    flash_attn: bool
    cache_type: str


EXACT = Mode("exact", True, False, "f32")
NATIVE = Mode("native", False, False, "f16")
NATIVE_FLASH = Mode("native-flash", False, True, "f16")
MODES = (EXACT, NATIVE, NATIVE_FLASH)

GGML_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8}


class _Batch(C.Structure):
    _fields_ = [
        ("n_tokens", C.c_int32),
        ("token", C.POINTER(C.c_int32)),
        ("embd", C.c_void_p),
        ("pos", C.POINTER(C.c_int32)),
        ("n_seq_id", C.POINTER(C.c_int32)),
        ("seq_id", C.POINTER(C.POINTER(C.c_int32))),
        ("logits", C.POINTER(C.c_int8)),
    ]


class _ModelParams(C.Structure):
    _fields_ = [
        ("devices", C.c_void_p),
        ("tensor_buft_overrides", C.c_void_p),
        ("n_gpu_layers", C.c_int32),
        ("split_mode", C.c_int32),
        ("load_mode", C.c_int32),
        ("lazy_mode", C.c_int32),
        ("main_gpu", C.c_int32),
        ("tensor_split", C.c_void_p),
        ("progress_callback", C.c_void_p),
        ("progress_user_data", C.c_void_p),
        ("kv_overrides", C.c_void_p),
        ("vocab_only", C.c_bool),
        ("check_tensors", C.c_bool),
        ("use_extra_bufts", C.c_bool),
        ("no_host", C.c_bool),
        ("no_alloc", C.c_bool),
        ("load_mtp", C.c_bool),
    ]


class _ContextParams(C.Structure):
    _fields_ = [
        ("n_ctx", C.c_uint32),
        ("n_batch", C.c_uint32),
        ("n_ubatch", C.c_uint32),
        ("n_seq_max", C.c_uint32),
        ("n_rs_seq", C.c_uint32),
        ("n_outputs_max", C.c_uint32),
        ("n_outputs_max_per_seq", C.c_uint32),
        ("n_threads", C.c_int32),
        ("n_threads_batch", C.c_int32),
        ("ctx_type", C.c_int32),
        ("rope_scaling_type", C.c_int32),
        ("pooling_type", C.c_int32),
        ("attention_type", C.c_int32),
        ("flash_attn_type", C.c_int32),
        ("rope", C.c_float * 6),
        ("yarn_orig_ctx", C.c_uint32),
        ("defrag_thold", C.c_float),
        ("cb_eval", C.c_void_p),
        ("cb_eval_user_data", C.c_void_p),
        ("type_k", C.c_int32),
        ("type_v", C.c_int32),
        ("opaque", C.c_void_p * 3),
        ("embeddings", C.c_bool),
        ("offload_kqv", C.c_bool),
        ("no_perf", C.c_bool),
        ("op_offload", C.c_bool),
        ("swa_full", C.c_bool),
        ("kv_unified", C.c_bool),
        ("samplers", C.c_void_p),
        ("n_samplers", C.c_size_t),
        ("ctx_other", C.c_void_p),
    ]


_LOG = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)
_errors = []


@_LOG
def _log(level, text, _):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        _errors.append(text.decode(errors="replace").strip())


def _check_layout(lib):
    """Compare the structs with the defaults that the library writes, bytes past the end included."""
    for function, struct, size, wanted in (
        (
            "llama_model_default_params",
            _ModelParams,
            78,
            dict(n_gpu_layers=-1, split_mode=1, load_mode=-1, use_extra_bufts=True),
        ),
        (
            "llama_context_default_params",
            _ContextParams,
            168,
            dict(
                n_ctx=512,
                n_batch=2048,
                n_ubatch=512,
                n_seq_max=1,
                flash_attn_type=-1,
                yarn_orig_ctx=0,
                defrag_thold=-1.0,
                type_k=1,
                type_v=1,
                offload_kqv=True,
                no_perf=True,
                op_offload=True,
                swa_full=True,
                kv_unified=False,
            ),
        ),
    ):
        buffer = (C.c_uint8 * 1024)(*([0xAA] * 1024))
        raw = C.CFUNCTYPE(None, C.c_void_p)((function, lib))  # a struct this large is returned through a hidden pointer
        raw(C.addressof(buffer))
        end = max(i for i in range(1024) if buffer[i] != 0xAA) + 1
        seen = struct.from_buffer(buffer)
        wrong = [
            f"{name} {getattr(seen, name)}, not {value}"
            for name, value in wanted.items()
            if getattr(seen, name) != value
        ]
        if end != size or wrong:
            raise OracleError(
                f"xllamacpp {version()} has another {struct.__name__[1:]} ({end} bytes, not {size}; "
                f"{', '.join(wrong) or 'same defaults'}): install xllamacpp=={PINNED}"
            )


def _load_library():
    spec = util.find_spec("xllamacpp")
    if spec is None:
        raise OracleError(f"the Python package xllamacpp=={PINNED} is not installed")
    found = sorted(Path(spec.origin).parent.glob("xllamacpp*.so"))
    if not found:
        raise OracleError(f"{Path(spec.origin).parent}: no shared object in this xllamacpp")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads halve the speed where cores are shared
    lib = C.CDLL(str(found[0]))
    p, i32, size = C.c_void_p, C.c_int32, C.c_size_t
    for name, result, *args in (
        ("llama_model_default_params", _ModelParams),
        ("llama_context_default_params", _ContextParams),
        ("llama_backend_init", None),
        ("llama_log_set", None, _LOG, p),
        ("llama_model_load_from_file", p, C.c_char_p, _ModelParams),
        ("llama_model_free", None, p),
        ("llama_init_from_model", p, p, _ContextParams),
        ("llama_free", None, p),
        ("llama_model_get_vocab", p, p),
        ("llama_vocab_n_tokens", i32, p),
        ("llama_vocab_bos", i32, p),
        ("llama_vocab_get_add_bos", C.c_bool, p),
        ("llama_vocab_is_eog", C.c_bool, p, i32),
        ("llama_tokenize", i32, p, C.c_char_p, i32, C.POINTER(i32), i32, C.c_bool, C.c_bool),
        ("llama_token_to_piece", i32, p, i32, C.c_char_p, i32, i32, C.c_bool),
        ("llama_decode", i32, p, _Batch),
        ("llama_get_logits", C.POINTER(C.c_float), p),
        ("llama_get_memory", p, p),
        ("llama_memory_clear", None, p, C.c_bool),
        ("llama_memory_seq_rm", C.c_bool, p, i32, i32, i32),
    ):
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise OracleError(
                f"xllamacpp {metadata.version('xllamacpp')} has no {name}: install xllamacpp=={PINNED}"
            ) from None
        function.restype, function.argtypes = result, args
    _check_layout(lib)
    lib.llama_log_set(_log, None)
    lib.llama_backend_init()
    return lib


_library = None


def library():
    global _library
    if _library is None:
        _library = _load_library()
    return _library


def default_threads():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Model:
    """A loaded GGUF file. With vocab_only no weights are read: tokens and pieces only."""

    def __init__(self, path, vocab_only=False):
        self.lib, self.path = library(), str(path)
        params = self.lib.llama_model_default_params()
        params.vocab_only = vocab_only
        _errors.clear()
        self.handle = self.lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self.handle:
            raise OracleError(f"llama.cpp does not load {self.path}: {'; '.join(_errors) or 'no reason given'}")
        self.vocab = self.lib.llama_model_get_vocab(self.handle)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)
        self.bos = self.lib.llama_vocab_bos(self.vocab)
        self.add_bos = self.lib.llama_vocab_get_add_bos(self.vocab)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.llama_model_free(self.handle)
        self.handle = None

    def tokenize(self, text, add_special=True, parse_special=True):
        data = text.encode() if isinstance(text, str) else text
        ids = (C.c_int32 * (len(data) + 8))()
        n = self.lib.llama_tokenize(self.vocab, data, len(data), ids, len(ids), add_special, parse_special)
        if n < 0:
            raise OracleError(f"{self.path}: llama_tokenize wants {-n} ids for {len(data)} bytes")
        return list(ids[:n])

    def piece(self, token):
        """The bytes of a token; b'' for control tokens."""
        for size in (64, 4096):
            buffer = C.create_string_buffer(size)
            n = self.lib.llama_token_to_piece(self.vocab, token, buffer, size, 0, False)
            if n >= 0:
                return buffer.raw[:n]
        raise OracleError(f"{self.path}: token {token} has no piece")

    def ends(self, token):
        return self.lib.llama_vocab_is_eog(self.vocab, token)


class Session:
    """One sequence being computed. decode() appends tokens and returns their logits."""

    def __init__(self, model, n_ctx, *, flash_attn=False, cache_type="f16", n_ubatch=512, threads=None):
        self.model, self.lib, self.n_past, self.n_ubatch = model, model.lib, 0, n_ubatch
        params = self.lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = n_ubatch
        params.n_threads = params.n_threads_batch = threads or default_threads()
        params.flash_attn_type = int(flash_attn)
        params.type_k = params.type_v = GGML_TYPES[cache_type]
        _errors.clear()
        self.handle = self.lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise OracleError(f"llama.cpp makes no context for {model.path}: {'; '.join(_errors) or 'no reason given'}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.llama_free(self.handle)
        self.handle = None

    def decode(self, tokens, first_row=0):
        """Append `tokens` (at most n_ubatch); float32 [rows, n_vocab], the logits after tokens[first_row:]."""
        n, rows = len(tokens), len(tokens) - first_row
        assert 0 < n <= self.n_ubatch and rows >= 0
        bad = [t for t in tokens if not 0 <= t < self.model.n_vocab]
        if bad:
            raise OracleError(f"{self.model.path}: token {bad[0]} is outside the vocabulary of {self.model.n_vocab}")
        seq = C.pointer(C.c_int32(0))
        batch = _Batch(
            n,
            (C.c_int32 * n)(*tokens),
            None,
            (C.c_int32 * n)(*range(self.n_past, self.n_past + n)),
            (C.c_int32 * n)(*([1] * n)),
            (C.POINTER(C.c_int32) * n)(*([seq] * n)),
            (C.c_int8 * n)(*(int(i >= first_row) for i in range(n))),
        )
        status = self.lib.llama_decode(self.handle, batch)
        if status:
            raise OracleError(
                f"{self.model.path}: llama_decode of {n} tokens at {self.n_past} gives {status}: {'; '.join(_errors)}"
            )
        self.n_past += n
        if rows == 0:
            return np.empty((0, self.model.n_vocab), np.float32)
        return np.ctypeslib.as_array(self.lib.llama_get_logits(self.handle), (rows, self.model.n_vocab)).copy()

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.handle), True)
        self.n_past = 0


def stream_logits(path, tokens, *, flash_attn=False, cache_type="f16", n_ubatch=512, threads=None, first_row=0):
    """Yield (position, float32 [rows, n_vocab]) for every position from first_row on, n_ubatch positions at a time."""
    with Model(path) as model, Session(
        model, max(len(tokens), 32), flash_attn=flash_attn, cache_type=cache_type, n_ubatch=n_ubatch, threads=threads
    ) as session:
        for start in range(0, len(tokens), n_ubatch):
            part = tokens[start : start + n_ubatch]
            skip = min(max(first_row - start, 0), len(part))
            rows = session.decode(part, skip)
            if len(rows):
                yield start + skip, rows


def logits(path, tokens, **how):
    """float32 [len(tokens), n_vocab]; the keywords are those of stream_logits."""
    return np.concatenate([rows for _, rows in stream_logits(path, tokens, **how)])


def greedy(path, text, n, *, flash_attn=False, cache_type="f16", threads=None):
    """The ids of n greedy tokens after text (fewer where the model ends its turn)."""
    with Model(path) as model:
        prompt = model.tokenize(text)
        with Session(
            model, len(prompt) + n + 8, flash_attn=flash_attn, cache_type=cache_type, threads=threads
        ) as session:
            row, out = session.decode(prompt, len(prompt) - 1)[0], []
            while len(out) < n:
                token = int(row.argmax())
                if model.ends(token):
                    break
                out.append(token)
                row = session.decode([token])[0]
            return out


def tokenize(path, text, add_special=True, parse_special=True):
    with Model(path, vocab_only=True) as model:
        return model.tokenize(text, add_special, parse_special)


def version():
    return metadata.version("xllamacpp")


if __name__ == "__main__":
    for mode in MODES[1:]:
        ids = greedy(sys.argv[1], sys.argv[2], 48, flash_attn=mode.flash_attn)
        with Model(sys.argv[1], vocab_only=True) as m:
            print(f"{mode.name}: {b''.join(map(m.piece, ids)).decode(errors='replace')!r}")
