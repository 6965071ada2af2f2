import ctypes
import os
import time

import pytest

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.isolated import Lost, isolated

MEMORY = 256 << 20


def refuse():
    raise UserError("`x` must be y.")


def ask_for(size):
    print("what a library prints is no result")
    return len(bytearray(size))


def panic():
    raise BaseException("called `Option::unwrap()` on a `None` value\nstack")


@pytest.mark.parametrize(("function", "arguments", "error", "said"), [
    (refuse, (), UserError, "`x` must be y."),
    (ctypes.string_at, (0,), Lost, r"the library that reads it crashes \(SIGSEGV\)"),
    (os.abort, (), Lost, r"the library that reads it crashes \(SIGABRT\)"),
    (os._exit, (3,), Lost, r"the library that reads it crashes \(exit status 3\)"),
    (time.sleep, (60,), Lost, "reading it takes over 1 seconds"),
    (ask_for, (1 << 30,), Lost, "reading it takes over 256 MiB of memory"),
    (panic, (), Lost, r"called `Option::unwrap\(\)` on a `None` value$"),
])  # fmt: skip
def test_what_a_call_does_to_its_process(function, arguments, error, said):
    with pytest.raises(error, match=said):
        isolated(function, *arguments, memory=MEMORY, seconds=1)


def test_what_it_returns():
    assert isolated(ask_for, 1000, memory=MEMORY) == 1000
