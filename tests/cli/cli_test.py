#!/usr/bin/env python3
"""Tests of the command line as scripts and people use it: python tests/cli/cli_test.py BINARY, with ARGENT_MODELS set.

The last line is "N passed, M failed". Tests whose model is not in ARGENT_MODELS fail: nothing is skipped in silence.
"""
import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

SUITES = ["arguments_test", "answers_test", "profile_test", "chat_test", "files_test", "memory_test"]


class Result(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        self.started = time.time()

    def stopTest(self, test):
        super().stopTest(test)
        took = time.time() - self.started
        if took > 3:
            self.stream.writeln(f"  ({test.id()}: {took:.1f} s)")


def main():
    if len(sys.argv) > 1 and not os.access(sys.argv[1], os.X_OK):
        sys.exit(f"{sys.argv[1]} is no program")
    if len(sys.argv) < 2 or not os.environ.get("ARGENT_MODELS"):
        sys.exit("usage: ARGENT_MODELS=FOLDER python cli_test.py BINARY [TEST ...]")
    harness.BINARY = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as home:
        harness.HOME = home
        names = sys.argv[2:] or SUITES
        suite = unittest.defaultTestLoader.loadTestsFromNames(names)
        result = unittest.TextTestRunner(resultclass=Result, verbosity=1).run(suite)
    # a test with several failed subtests counts once
    failed = len({getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
