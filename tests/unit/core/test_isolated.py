import os
import time

import pytest

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.isolated import Lost, isolated

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
    (os.abort, (), Lost, "SIGABRT"),
    (os._exit, (3,), Lost, "exit status 3"),
    (time.sleep, (60,), Lost, "1 seconds"),
    (ask_for, (1 << 30,), Lost, "256 MiB of memory"),
    (panic, (), Lost, "on a `None` value$"),
])  # fmt: skip
def test_a_call_that_ends_its_process_or_exceeds_its_limits_is_an_error(function, arguments, error, said):
    with pytest.raises(error, match=said):
        isolated(function, *arguments, memory=MEMORY, seconds=1)
    assert isolated(ask_for, 1000, memory=MEMORY) == 1000
