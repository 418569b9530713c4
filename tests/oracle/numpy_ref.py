"""Forward passes of the five architectures in float64, one position after the other in one piece: a check on the
oracle itself.

Written from the published descriptions of the models, not from llama.cpp, so that a fault in how the oracle is driven
(a wrong cache type, a changed default) shows as a difference. For tiny models only: everything is a full matrix.
"""

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

INTERLEAVED_ROPE = ("llama", "muse-glimmer")  # pairs (2i, 2i + 1); the others pair i with i + n / 2
POST_NORM_EPS = {"muse-glimmer": 1e-8}
SLIDING_GROUP = {"gemma3": 6, "muse-glimmer": 4}  # of so many layers the last is full


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Rope:
    """Angles and magnitude of a rotary embedding, with linear or YaRN scaling (arXiv 2309.00071) and per-pair
    divisors."""

    def __init__(self, n_rot, base, *, kind="none", factor=1.0, original=0, attention=1.0, divisors=1.0):
        pairs = np.arange(n_rot // 2)
        self.frequency = base ** (-2.0 * pairs / n_rot) / divisors
        self.magnitude = attention
        if kind == "linear":
            self.frequency = self.frequency / factor
        elif kind == "yarn":

            def pair_of(rotations):  # the pair that turns so often within the original context
                return n_rot * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base))

            low, high = max(np.floor(pair_of(32)), 0), min(np.ceil(pair_of(1)), n_rot - 1)
            kept = 1 - np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
            self.frequency = self.frequency * (kept + (1 - kept) / factor)
            self.magnitude *= 1 + 0.1 * np.log(factor)

    def __call__(self, x, interleaved):
        """x: [n, heads, n_rot], row i at position i."""
        angle = np.arange(len(x))[:, None, None] * self.frequency
        c, s = np.cos(angle) * self.magnitude, np.sin(angle) * self.magnitude
        half = x.shape[-1] // 2
        first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
        a, b, out = x[..., first], x[..., second], np.empty_like(x)
        out[..., first], out[..., second] = a * c - b * s, a * s + b * c
        return out


def attention(q, k, v, window):
    """q [n, heads, d], k and v [n, kv heads, d]; a row sees itself and what is less than `window` before it."""
    n, heads, d = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d)
    distance = np.arange(n)[:, None] - np.arange(n)
    scores[:, (distance < 0) | (distance >= (window or n))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v)


def logits(path, tokens):
    """float64 [len(tokens), n_vocab]."""
    reader = GGUFReader(path)
    keys = {f.name: f.contents() for f in reader.fields.values()}
    tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    arch = keys["general.architecture"]

    def key(name, default=None):
        return keys.get(f"{arch}.{name}", default)

    heads, eps, base = (
        key("attention.head_count"),
        key("attention.layer_norm_rms_epsilon"),
        key("rope.freq_base", 10000.0),
    )
    heads_kv, d, window = (
        key("attention.head_count_kv", heads),
        key("attention.key_length"),
        key("attention.sliding_window", 0),
    )
    pattern = key("attention.sliding_window_pattern", SLIDING_GROUP.get(arch, 0))
    factor = key("rope.scaling.factor", 0.0) or 1.0
    scaling = dict(
        kind=key("rope.scaling.type", "linear"),
        factor=factor,
        attention=key("rope.scaling.attn_factor", 1.0),
        original=key("rope.scaling.original_context_length", key("context_length")),
        divisors=tensors.get("rope_freqs.weight", 1.0),
    )
    full_rope = Rope(d, base, **scaling)
    swa_rope = Rope(d, key("rope.freq_base_swa", 10000.0 if arch == "gemma3" else base), attention=scaling["attention"])
    interleaved, post_eps = arch in INTERLEAVED_ROPE, POST_NORM_EPS.get(arch, eps)
    x = tensors["token_embd.weight"][list(tokens)]
    if arch == "gemma3":
        x = x * np.sqrt(x.shape[1])
    if arch == "muse-glimmer":
        x = rms_norm(x, 1.0, eps)
    for i in range(key("block_count")):

        def linear(name, inputs):
            out = inputs @ tensors[f"blk.{i}.{name}.weight"].T
            return out + tensors.get(f"blk.{i}.{name}.bias", 0.0)

        def norm(name, inputs, epsilon=eps):
            weight = tensors.get(f"blk.{i}.{name}.weight")
            return inputs if weight is None else rms_norm(inputs, weight, epsilon)

        sliding = bool(window) and (
            pattern[i] if isinstance(pattern, list) else bool(pattern) and i % pattern < pattern - 1
        )
        h = norm("attn_norm", x)
        if f"blk.{i}.attn_qkv.weight" in tensors:
            q, k, v = np.split(linear("attn_qkv", h), [heads * d, (heads + heads_kv) * d], axis=1)
        else:
            q, k, v = (linear(f"attn_{name}", h) for name in "qkv")
        q, k, v = (m.reshape(len(x), -1, d) for m in (q, k, v))
        q, k = norm("attn_q_norm", q), norm("attn_k_norm", k)
        if not (arch == "muse-glimmer" and not sliding):
            rope = swa_rope if sliding else full_rope
            q, k = rope(q, interleaved), rope(k, interleaved)
        a = attention(q, k, v, window if sliding else 0).reshape(len(x), -1)
        if f"blk.{i}.attn_gate.weight" in tensors:
            a = a / (1 + np.exp(-linear("attn_gate", h)))
        x = x + norm("post_attention_norm", linear("attn_output", a), post_eps)
        f = norm("ffn_norm", x)
        f = linear("ffn_down", (gelu if arch == "gemma3" else silu)(linear("ffn_gate", f)) * linear("ffn_up", f))
        x = x + norm("post_ffw_norm", f, post_eps)
    x = rms_norm(x, tensors["output_norm.weight"], eps)
    out = x @ tensors.get("output.weight", tensors["token_embd.weight"]).T * key("logit_scale", 1.0)
    cap = key("final_logit_softcapping", 0.0) if arch in SLIDING_GROUP else 0.0  # llama.cpp has no cap for the others
    return cap * np.tanh(out / cap) if cap else out
