"""Cases that `make test` leaves to `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def rarely(cases: Iterable[Any], *rare: Any, given: Any = None) -> list[Any]:
    """The cases as parameters, `rare` ones marked `scheduled`; `given`: what a test gets of each, by its name."""
    marks = {case: [pytest.mark.scheduled] if case in rare else [] for case in cases}
    return [
        pytest.param(*_values(case if given is None else given[case]), marks=mark, id=_id(case))
        for case, mark in marks.items()
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def _id(case: Any) -> str:
    return "-".join(map(str, _values(case)))
