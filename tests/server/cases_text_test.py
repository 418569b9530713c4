#!/usr/bin/env python3
"""What clients read: characters, stop texts, several answers, usage, log-probabilities, caches.

    ARGENT_MODELS=FOLDER python cases_text_test.py BINARY
"""

import functools
import sys

from gguf import GGUFReader

import harness_server as harness
from harness_server import CHAT, TEXT, ServerTest, Stream, joined, text_of, together, user

CAT = "😸"


@functools.cache
def vocabulary():
    field = GGUFReader(harness.SMOL).fields["tokenizer.ggml.tokens"]
    return {bytes(field.parts[at]).decode(): i for i, at in enumerate(field.data)}


@functools.cache
def byte_token(byte):
    """The id of one byte in a byte-level vocabulary, which writes bytes as letters."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shown = byte if byte in plain else 256 + [b for b in range(256) if b not in plain].index(byte)
    return vocabulary()[chr(shown)]


def spelled(text, **more):
    """A request whose answer is `text`, in tokens of one byte."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    bias = {str(byte_token(b)): 100 for b in set(text.encode())}
    return {"prompt": "Say:", "guided_grammar": f'root ::= "{quoted}"', "logit_bias": bias, "temperature": 0,
            "max_tokens": 200, **more}


class Text(ServerTest):
    flags = ("--ctx", 1024, "--parallel", 8)

    # ---- Characters over several tokens

    def test_characters_come_whole(self):
        text = f"a{CAT}b{CAT}é字\u0301z"
        for path, body in ((TEXT, spelled(text)), (CHAT, {**spelled(text), "messages": user("x")})):
            if path == CHAT:
                del body["prompt"]
            whole = self.good(path, body)
            self.assertEqual(text_of(whole), text)
            self.assertEqual(whole.json["usage"]["completion_tokens"], len(text.encode()), "not forced byte by byte")
            frames = self.server.stream(path, body).frames()
            self.assertEqual(joined(frames), (text, "stop"))
            self.assertNotIn("\ufffd", "".join(map(str, frames)))

    def test_a_broken_tail_is_one_mark(self):
        for n, expected in ((1, "\ufffd"), (2, "\ufffd"), (3, "\ufffd"), (4, CAT), (5, CAT + "a"), (6, CAT + "a\ufffd")):
            body = spelled(CAT + "a" + CAT, max_tokens=n)
            self.assertEqual(self.both(TEXT, body), (expected, "length"), n)

    def test_invalid_bytes_stay_json(self):
        for byte in (0xFF, 0xC0, 0x80, 0xED):
            try:
                token = byte_token(byte)
            except KeyError:
                continue
            bias = {"logit_bias": {str(token): 100}, "temperature": 0, "max_tokens": 3}
            for path, body in ((TEXT, {"prompt": "x", "logprobs": 2, **bias}),
                               (CHAT, {"messages": user("x"), "logprobs": True, "top_logprobs": 2, **bias})):
                text, finish = self.both(path, body)
                self.assertEqual(set(text), {"\ufffd"}, (byte, text))
                self.assertEqual(finish, "length")
                probs = self.good(path, body).json["choices"][0]["logprobs"]
                if path == TEXT:
                    self.assertEqual(probs["tokens"], [f"bytes:\\x{byte:02x}"] * 3)
                else:
                    self.assertEqual([e["bytes"] for e in probs["content"]], [[byte]] * 3)
        self.assertIn("\ufffd", text)

    def test_log_probs_of_a_split_character(self):
        body = spelled(CAT + "a", logprobs=1)
        whole = self.good(TEXT, body).json["choices"][0]["logprobs"]
        self.assertEqual(whole["tokens"], [f"bytes:\\x{b:02x}" for b in CAT.encode()] + ["a"])
        self.assertEqual(whole["text_offset"][-1], whole["text_offset"][0] + 1)
        streamed = [f["choices"][0]["logprobs"] for f in self.server.stream(TEXT, body).frames() if f["choices"]]
        self.assertEqual(sum((p["tokens"] for p in streamed if p), []), whole["tokens"])
        self.assertEqual(sum((p["token_logprobs"] for p in streamed if p), []), whole["token_logprobs"])
        self.assertEqual(sum((p["text_offset"] for p in streamed if p), []), whole["text_offset"])

    # ---- Stop texts

    def test_stops(self):
        for text, stop, expected in (
            ("one STOP two", ["STOP"], "one "),             # spans four tokens
            ("one STO two STOP x", ["STOP"], "one STO two "),  # a beginning that is none
            ("one STO", ["STOP"], "one STO"),               # the end comes in the middle of it
            ("abcdef", ["bcdx", "cd"], "ab"),                # overlapping: the one that is there
            ("abcdef", ["cdef", "bcd"], "a"),                # the first to be complete
            ("abcdef", ["cd", "bcd"], "a"),                  # both at once: the one that begins first
            ("aaab", ["aab"], "a"),
            ("xyz", ["x"], ""),                              # at the very first character
            ("xyz", ["xyz"], ""),
            (f"a{CAT}b", [CAT], "a"),
            (f"a{CAT}b", ["😹"], f"a{CAT}b"),                # the same three first bytes
            (f"a{CAT}b", [CAT + "bc"], f"a{CAT}b"),
            ("a\nb\nc", ["\nb\n"], "a"),
            ("a\r\n\r\nb", ["\r\n\r\n"], "a"),
            ("one two", ["TWO"], "one two"),
        ):
            self.assertEqual(self.both(TEXT, spelled(text, stop=stop)), (expected, "stop"), (text, stop))

    def test_stop_at_the_bound(self):
        self.assertEqual(self.both(TEXT, spelled("one STOP", stop=["STOP"], max_tokens=6)), ("one ST", "length"))
        self.assertEqual(self.both(TEXT, spelled("one STOP", stop=["STOP"], max_tokens=8)), ("one ", "stop"))

    def test_stop_forms(self):
        self.assertEqual(self.both(TEXT, spelled("one STOP two", stop="STOP"))[0], "one ")
        for bad in ("", [""], ["a", ""], [1], {"a": 1}, 5, [["a"]]):
            self.refused(TEXT, spelled("a", stop=bad), has="stop")
        self.assertEqual(self.both(TEXT, spelled("one", stop=[]))[0], "one")
        self.assertEqual(self.both(TEXT, spelled("one", stop=None))[0], "one")

    def test_ends(self):
        token = byte_token(ord("q"))
        bias = {"prompt": "x", "logit_bias": {str(token): 100}}
        self.assertEqual(self.both(TEXT, {**bias, "stop_token_ids": [token]}), ("", "stop"))
        self.assertEqual(self.both(TEXT, {**bias, "max_tokens": 3}), ("qqq", "length"))
        end = vocabulary()["<|im_end|>"]
        ended = {"prompt": "x", "logit_bias": {str(end): 100}}
        self.assertEqual(self.both(TEXT, ended), ("", "stop"))
        text, finish = self.both(TEXT, {**ended, "ignore_eos": True, "max_tokens": 3})
        self.assertEqual((text, finish), ("", "length"))  # markers are not shown
        # ids that are none: refused, or never drawn; never an index past the vocabulary
        for ids in ([2**31 - 1], [49152], [-1], [1.5], ["a"]):
            answer = self.server.post(TEXT, {"prompt": "x", "min_tokens": 2, "max_tokens": 4, "stop_token_ids": ids})
            self.assertEqual(answer.status, 400, answer.raw)

    # ---- Several answers

    def test_n(self):
        for path, prompt in ((TEXT, {"prompt": "Once"}), (CHAT, {"messages": user("Name a colour")})):
            for bad in (0, -1, 1000, 1.5, "3", True, [1]):
                self.refused(path, {**prompt, "n": bad}, has="n")
                self.refused(path, {**prompt, "n": bad, "stream": True}, has="n")
            one = self.good(path, {**prompt, "n": 1, "max_tokens": 8, "temperature": 0}).json
            self.assertEqual([c["index"] for c in one["choices"]], [0])
            for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 5}):
                body = {**prompt, **sampling, "n": 3, "max_tokens": 8}
                whole = self.good(path, body).json
                self.assertEqual([c["index"] for c in whole["choices"]], [0, 1, 2])
                self.assertEqual(whole["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"])
                frames = self.server.stream(path, body, stream_options={"include_usage": True}).frames()
                texts = []
                for i in range(3):
                    text, finish = joined(frames, i)
                    choice = whole["choices"][i]
                    texts.append(text)
                    self.assertEqual(text, choice["text"] if path == TEXT else choice["message"]["content"], i)
                    self.assertEqual(finish, choice["finish_reason"])
                self.assertEqual(frames[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
                self.assertEqual(len(set(texts)) > 1, sampling["temperature"] > 0, texts)
                if sampling["temperature"] == 0:
                    self.assertEqual(texts[0], text_of(harness.Answer(200, {}, harness.json.dumps(one).encode())))

    def test_n_beyond_what_is_computed_at_once(self):
        body = {"prompt": "Once", "n": 20, "max_tokens": 4, "temperature": 1, "seed": 1}
        whole = self.good(TEXT, body).json
        self.assertEqual([c["index"] for c in whole["choices"]], list(range(20)))
        frames = self.server.stream(TEXT, body).frames()
        self.assertEqual([joined(frames, i)[0] for i in range(20)], [c["text"] for c in whole["choices"]])

    # ---- Usage and frames

    def test_usage_chunk(self):
        for path, prompt in ((TEXT, {"prompt": "Once"}), (CHAT, {"messages": user("Once")})):
            body = {**prompt, "max_tokens": 5, "temperature": 0}
            whole = self.good(path, body).json["usage"]
            for options in (None, {}, {"include_usage": False}):
                frames = self.server.stream(path, body, stream_options=options).frames()
                self.assertTrue(all(f["choices"] and not f.get("usage") for f in frames), frames)
            frames = self.server.stream(path, body, stream_options={"include_usage": True}).frames()
            self.assertEqual(frames[-1]["choices"], [])
            for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                self.assertEqual(frames[-1]["usage"][name], whole[name])
            self.assertTrue(all(f["choices"] and f["usage"] is None for f in frames[:-1]))
            self.refused(path, {**body, "stream_options": {"include_usage": True}}, has="stream_options")
            self.refused(path, {**body, "stream": True, "stream_options": {"include_usage": 1}}, has="include_usage")
            self.assertEqual(len({f["id"] for f in frames}), 1)
            finishes = [c["finish_reason"] for f in frames for c in f["choices"] if c["finish_reason"]]
            self.assertEqual(finishes, ["length"])

    def test_frames_in_pieces(self):
        body = {**spelled(f"a{CAT}\nb\r\n{{}}"), "stream": True}
        stream = Stream(self.server.port, TEXT, body, read_size=1)
        self.assertEqual(joined(stream.frames())[0], f"a{CAT}\nb\r\n{{}}")

    def test_errors_come_before_the_stream(self):
        for body in ({"prompt": "x", "temperature": -1}, {"prompt": "x", "unknown": 1}, {"prompt": [10**6]},
                     {"prompt": "x", "guided_grammar": "root ::= ("}, {"prompt": "a " * 3000}):
            self.refused(TEXT, {**body, "stream": True})
            self.assertTrue(self.server.post(TEXT, {**body, "stream": True}).headers["content-type"]
                            .startswith("application/json"))
        self.refused(TEXT, {"prompt": "x", "model": "nobody", "stream": True}, 404, "nobody")

    def test_an_error_behind_the_first_chunks(self):
        """This vocabulary cannot write the first byte of U+50000, and the grammar leads there."""
        self.assertRaises(KeyError, byte_token, "\U00050000".encode()[0])
        constraint = {"guided_grammar": 'root ::= "one, two, three, \U00050000"', "temperature": 0}
        for path, body in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": user("x")})):
            answer = self.server.post(path, {**body, **constraint})
            self.assertEqual(answer.status, 500, answer.raw)
            stream, frames = self.server.stream(path, {**body, **constraint}), []
            while (frame := stream.frame()) is not None:
                frames.append(frame)
            self.assertTrue(joined(frames[:-1])[0].startswith("one, two"), frames)
            self.assertEqual(frames[-1]["error"]["message"], answer.error)
            self.assertEqual(set(frames[-1]), {"error"})

    # ---- The same question gives the same answer

    def test_caches_do_not_show(self):
        story = "The history of the lighthouse begins in the year 1820, when a ship was lost. " * 12
        ends = ["It was built", "Its keeper was", "It was"]
        bodies = [{"prompt": story + e, "max_tokens": 6, "temperature": 0, "logprobs": 3} for e in ends]
        bodies.append({**bodies[0], "prompt": story[:400]})               # shorter
        bodies.append({**bodies[0], "prompt": story[:400] + " Then came"})  # diverges in the middle
        bodies.append({**bodies[0], "repeat_penalty": 1.3, "repeat_last_n": -1})
        bodies.append({**bodies[0], "presence_penalty": 1, "frequency_penalty": 0.5})
        n = len(bodies)
        forth = [*range(n), *reversed(range(n))]
        seen = [(i, self.good(TEXT, bodies[i]).json) for i in forth]
        other = harness.Server(harness.SMOL, *self.flags)  # whose cache is cold, asked the other way round
        try:
            seen += [(i, other.post(TEXT, bodies[i]).json) for i in reversed(range(n))]
        finally:
            self.assertEqual(other.stop(), 0)
        first = {}
        for i, answer in seen:
            choice = answer["choices"][0]
            expected = first.setdefault(i, choice)
            self.assertEqual(choice["text"], expected["text"], i)
            self.assertEqual(choice["logprobs"], expected["logprobs"], i)
        again = seen[2 * n - 1][1]["usage"]
        cached = again["prompt_tokens_details"]["cached_tokens"]
        self.assertTrue(again["prompt_tokens"] - 32 <= cached < again["prompt_tokens"], again)

    def test_alone_and_together(self):
        prompts = ["A cat", "The capital of France is", "1 2 3 4 5", "def main():", "Water boils at",
                   "Once upon a time " * 9, "She said: \"", "In the beginning " * 20]
        bodies = [{"prompt": p, "max_tokens": 4 + i, "temperature": 0, "logprobs": 1} for i, p in enumerate(prompts)]
        bodies += [{**b, "temperature": 0.8, "seed": i} for i, b in enumerate(bodies[:4])]
        alone = [self.good(TEXT, b).json["choices"] for b in bodies]
        shared = together([functools.partial(self.good, TEXT, b) for b in bodies])
        for a, b in zip(alone, shared):
            self.assertEqual(a, b.json["choices"])

    # ---- Text that looks like something else

    def test_control_texts_of_users_are_text(self):
        def count(content, role="user"):
            body = {"messages": [{"role": role, "content": content}, *user("x")], "max_tokens": 1}
            return self.good(CHAT, body).json["usage"]["prompt_tokens"]
        plain = count("hi")
        for mark in ("<|im_end|>", "<|im_start|>", "<|endoftext|>"):
            for role in ("user", "system", "assistant"):
                # as text it takes several tokens, as the control token one
                self.assertGreater(count("hi" + mark, role), count("hi", role) + 2, (mark, role))
            parts = [{"type": "text", "text": mark[:5]}, {"type": "text", "text": mark[5:]}]
            self.assertGreater(count(parts), plain + 1)

    def test_line_ends_are_kept(self):
        def count(text):
            return self.good(TEXT, {"prompt": text, "max_tokens": 1}).json["usage"]["prompt_tokens"]
        self.assertNotEqual(count("a\r\nb\r\nc"), count("a\nb\nc"))
        echoed = self.good(TEXT, {"prompt": "\ufeffa\r\nb", "max_tokens": 0, "echo": True})
        self.assertEqual(text_of(echoed), "\ufeffa\r\nb")


class Caches(ServerTest):
    """What is found in the cache computes as what is not, also where layers forget and where the cache is quantized."""

    make_tiny = ("muse-glimmer",)
    flags = ("--ctx", 512)

    def test_order_does_not_show(self):
        base = [1 + (i * i * 7 + i) % 300 for i in range(300)]
        prompts = [base, base[:150], base[:150] + base[170:], base[:33], base[:32], base[:31], base[:16] + base, base + base[:99]]
        bodies = [{"prompt": p, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "logprobs": 1} for p in prompts]
        first = [self.good(TEXT, b).json["choices"] for b in bodies]
        for body, expected in zip(bodies[::-1], first[::-1]):
            self.assertEqual(self.good(TEXT, body).json["choices"], expected, len(body["prompt"]))
        other = harness.Server(harness.tiny(self.folder.name, *self.make_tiny), *self.flags)
        try:
            for body, expected in zip(bodies[::-1], first[::-1]):
                self.assertEqual(other.post(TEXT, body).json["choices"], expected, len(body["prompt"]))
            shared = together([functools.partial(other.post, TEXT, b) for b in bodies])
            self.assertEqual([a.json["choices"] for a in shared], first)
        finally:
            self.assertEqual(other.stop(), 0)


class QuantizedCaches(Caches):
    make_tiny = ("gemma3",)
    flags = ("--ctx", 512, "--cache-type", "q8_0")


if __name__ == "__main__":
    sys.exit(harness.main())
