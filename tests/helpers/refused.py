"""Bad input is told by the names in the error's sentence, not by its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairseq_mtmoe.core.errors import UserError


@contextmanager
def refused(*names: str, first: bool = True) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Assert that the block raises a `UserError` that has `names` in backticks, the first of them as what is wrong.

    A name is a whole option or field, or the end of a path. first: the first name stands first in the sentence.
    """
    with pytest.raises(UserError) as caught:
        yield caught
    shown = caught.value.names
    missing = [name for name in names if not any(is_named(name, each) for each in shown)]
    assert not missing, f"{missing} are not named by: {caught.value}"
    assert not first or not names or is_named(names[0], shown[0]), f"{names[0]} is not what is wrong in: {caught.value}"


def is_named(name: str, shown: str) -> bool:
    """Whether `shown` is the name, the name with a value (`--seed 1`), or a path that ends in it."""
    return shown == name or shown.startswith(f"{name} ") or shown.endswith(f"/{name}")
