"""Killed runs go on as if nothing had happened."""

import pytest

from tests.helpers.kill.moments import ALL
from tests.helpers.kill.runs import References


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return References(tmp_path_factory.mktemp("references"))


@pytest.mark.parametrize("processes", [1, 2])
def test_kills_in_all_phases_lose_nothing(processes, references, tmp_path):
    for number, case in enumerate(ALL):
        if case.processes == processes:
            references.kill(case, tmp_path / f"run{number}")
