"""chat: as a script, and at a terminal."""
import json
import os
import tempfile
import unittest

import harness
from harness import Run, Terminal

NULL = ["--device", "null", "-n", "3"]  # answers at once, with any text


def turns(script, *args):
    run = Run("chat", "--json", *args, stdin=script)
    return run, [json.loads(line) for line in run.out.splitlines()]


class Script(unittest.TestCase):
    def test_only_the_new_turn_is_computed(self):
        run, answers = turns("Hello, who are you?\nAnd what can you do?\nThanks!\n", "--temp", "0", "-n", "12")
        self.assertEqual(run.rc, 0, run.err)
        self.assertEqual(len(answers), 3)
        for before, after in zip(answers, answers[1:]):
            known = before["usage"]["prompt_tokens"] + before["usage"]["completion_tokens"]
            self.assertGreaterEqual(after["usage"]["reused_tokens"], known - 1)  # the last one drawn is not computed yet
            self.assertGreater(after["usage"]["prompt_tokens"], known)

    def test_reuse_changes_no_answer(self):
        _, fresh = turns("Hello\nWhat is 2 + 2?\n", "--temp", "0", "-n", "12")
        _, again = turns("What is 2 + 2?\n/undo\nHello\nWhat is 2 + 2?\n", "--temp", "0", "-n", "12")
        self.assertEqual([a["answer"] for a in fresh], [a["answer"] for a in again[1:]])

    def test_text_mode(self):
        run = Run("chat", "--temp", "0", "-n", "4", stdin="Hello\nHello again\n")
        self.assertEqual(run.rc, 0, run.err)
        self.assertEqual(len(run.err.splitlines()), 2, run.err)
        self.assertIn("reused", run.err)
        self.assertEqual(Run("chat", "--temp", "0", "-n", "4", "-q", stdin="Hello\nHello again\n").err, "")

    def test_commands(self):
        script = "one\ntwo\n/history\n/undo\n/history\n/clear\n/history\nthree\n/regenerate\n/history\n/stats\n/set\n/quit\nnever\n"
        run = Run("chat", *NULL, "-q", stdin=script)
        self.assertEqual(run.rc, 0, run.err)
        self.assertEqual(run.err.count("1 user: one"), 2)
        self.assertEqual(run.err.count("2 user: two"), 1)
        self.assertEqual(run.err.count("1 user: three"), 1)
        self.assertNotIn("never", run.err)
        self.assertRegex(run.err, r"4 answers; prompts \d+ tokens")
        self.assertIn("temperature 0.8, top_k 40, top_p 0.95, min_p 0.05", run.err)

    def test_edit(self):
        run = Run("chat", *NULL, "-q", stdin="one\ntwo\nthree\n/edit 2 zwei\n/history\n/edit drei\n/history\n/edit 9 x\n")
        self.assertIn("2 user: zwei", run.err)
        self.assertIn("2 user: drei", run.err)
        self.assertNotIn("user: three", run.err)
        self.assertIn("2 messages to edit", run.err)
        self.assertEqual(run.rc, 2)

    def test_set(self):
        run = Run("chat", *NULL, "-q", stdin="/set temp 0\n/set top-k 7\n/set max_tokens 5\n/set\n")
        self.assertIn("temperature 0, top_k 7", run.err)
        self.assertIn("max_tokens 5", run.err)
        for line in ["/set temp -1", "/set nonsense 1", "/set top_p 2", "/set max_tokens x", "/nonsense", "/undo", "/load /no/such", "/save"]:
            run = Run("chat", *NULL, stdin=line + "\n")
            self.assertNotEqual(run.rc, 0, line)
            self.assertEqual(len(run.err.splitlines()), 1, run.err)

    def test_system(self):
        _, answers = turns("Hi\n/system You are a pirate.\n/clear\nHi\n/system\n/clear\nHi\n", *NULL)
        first, pirate, last = [a["usage"]["prompt_tokens"] for a in answers]
        self.assertEqual(first, last)
        self.assertNotEqual(first, pirate)
        _, answers = turns("Hi\n", *NULL, "--system", "You are a pirate.")
        self.assertEqual(answers[0]["usage"]["prompt_tokens"], pirate)

    def test_save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "chat.json")
            run = Run("chat", *NULL, "-q", stdin=f"Grüße 日本\nnoch eins\n/set temp 0.5\n/save {path}\n/save {path}\n/save! {path}\n")
            self.assertIn("exists", run.err)
            saved = json.load(open(path))
            self.assertEqual([m["role"] for m in saved["messages"]], ["user", "assistant"] * 2)
            self.assertEqual(saved["messages"][0]["content"], "Grüße 日本")
            run = Run("chat", *NULL, "-q", stdin=f"/load {path}\n/history\n/set\n")
            self.assertIn("2 user: noch eins", run.err)
            self.assertIn("temperature 0.5", run.err)
            for content in ["{", "[1]", "{}", '[{"role": 3}]', '[{"role":"user","content":7}]']:
                with open(path, "w") as file:
                    file.write(content)
                run = Run("chat", *NULL, "-q", stdin=f"one\n/load {path}\n/history\n")
                self.assertNotEqual(run.rc, 0, content)
                self.assertIn("1 user: one", run.err)  # nothing lost

    def test_many_lines(self):
        run = Run("chat", *NULL, "-q", stdin='a\\\nb\n"""\nc\n\nd\n"""\n//slash\n/history\n')
        self.assertIn("1 user: a\nb\n", run.err)
        self.assertIn("2 user: c\n\nd\n", run.err)
        self.assertIn("3 user: /slash\n", run.err)

    def test_full_context(self):
        run = Run("chat", "--ctx", "64", "-n", "8", "--device", "null", "-q",
                  stdin="one\n" + "word " * 100 + "\n/history\n/clear\ntwo\n/history\n")
        self.assertEqual(run.rc, 2)
        line = run.err.splitlines()[0]
        self.assertIn("context", line)
        self.assertIn("/clear", line)
        self.assertIn("--ctx", line)
        self.assertIn("1 user: one", run.err)
        self.assertNotIn("user: word", run.err)
        self.assertIn("1 user: two", run.err)
        run = Run("chat", "--ctx", "64", "--device", "null", "-q", stdin="one\n")
        self.assertIn("answer cut off", run.err)


class AtATerminal(unittest.TestCase):
    def type(self, keys, *args, **kw):
        """Types one message at the null device; returns what /history has."""
        terminal = Terminal("chat", *NULL, "-q", *args, **kw)
        terminal.expect("> ")
        terminal.send(keys + "\r")
        terminal.expect(r"\r\n.*\r\n.*> ")
        terminal.send("/history\r")
        text = terminal.expect(r"assistant: ").split("user: ", 1)[1]
        terminal.expect("> ")
        terminal.send("\x04")
        self.assertEqual(terminal.close(), 0)
        return text.rsplit("\r\n", 1)[0].replace("\r\n", "\n")

    def test_editing(self):
        left, right, home, delete = "\033[D", "\033[C", "\033[H", "\033[3~"
        for keys, text in [
                ("hello", "hello"),
                ("helo" + left + "l", "hello"),
                ("world" + "\x01" + "hello " + "\x05" + "!", "hello world!"),
                ("wörld" + left * 4 + "\x7f" + "W", "Wörld"),
                ("日本語x" + left + "\x7f", "日本x"),
                ("a b c\x17d", "a b d"),
                ("gone\x15kept", "kept"),
                ("kept gone" + left * 5 + "\x0b", "kept"),
                ("ab" + "\x01" + "\x0b" + "x" + "\x19", "xab"),
                ("xab" + home + delete, "ab"),
                ("one two" + "\033b" + "X", "one Xtwo"),
                ("e\u0301x" + left * 2 + "y", "ye\u0301x"),  # a combining accent goes with its letter
                ("first\033\rsecond", "first\nsecond"),
                ("first\\\rsecond", "first\nsecond"),
                ('"""a\r\rb"""', "a\n\nb"),
                ("\033[200~pasted\rtext\033[201~", "pasted\ntext"),
        ]:
            with self.subTest(keys=keys):
                self.assertEqual(self.type(keys), text)

    def test_long_message_wraps(self):
        text = "wide 日本語 text " * 30
        self.assertEqual(self.type(text.strip(), columns=20, rows=6), text.strip())

    def test_history(self):
        with tempfile.TemporaryDirectory() as state:
            terminal = Terminal("chat", *NULL, "-q", XDG_STATE_HOME=state)
            terminal.expect("> ")
            terminal.send("erste Frage\r")
            terminal.expect(r"\r\n.*\r\n.*> ")
            terminal.send("\x04")
            self.assertEqual(terminal.close(), 0)
            path = os.path.join(state, "argent", "chat_history")
            self.assertEqual(open(path).read(), "erste Frage\n")
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.assertEqual(self.type("\033[A\033[A!", XDG_STATE_HOME=state), "erste Frage!")
            self.assertEqual(self.type("draft\033[A\033[B", XDG_STATE_HOME=state), "draft")

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        terminal = Terminal("chat", "--temp", "0")
        terminal.expect("> ")
        terminal.send("Write a very long story about a fox.\r")
        terminal.expect(r"fox\.\x1b?.*\r\n[^\r\n]*\w+ \w+ \w+ ")
        terminal.send("\x03")
        terminal.expect(r"\[stopped\]")
        terminal.expect(r"tokens/s")
        terminal.send("/set max_tokens 4\r")
        terminal.send("Thanks\r")
        told = terminal.expect(r"\d+ tokens \(\d+ reused\)")
        self.assertNotIn("(0 reused)", told)
        terminal.expect("> ")
        terminal.send("\x03")
        terminal.expect("again")
        terminal.send("\x03")
        self.assertEqual(terminal.close(), 0)

    def test_no_colour(self):
        terminal = Terminal("chat", *NULL, NO_COLOR="1")
        terminal.expect("> ")
        terminal.send("hi\r")
        terminal.expect("prompt .*seed")
        terminal.expect("> ")
        self.assertNotIn(b"\033[2m", terminal.seen)
        terminal.send("\x04")
        self.assertEqual(terminal.close(), 0)


if __name__ == "__main__":
    unittest.main()
