"""Killed runs go on as if nothing had happened."""

import pytest

from tests.kill.moments import ALL, COPY_LAST, Case, drawn, replace
from tests.kill.runs import References


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return References(tmp_path_factory.mktemp("references"))


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_parameters(references, tmp_path):
    references.kill(Case("a save", (replace(COPY_LAST, call=2),)), tmp_path / "run")


@pytest.mark.rare
@pytest.mark.parametrize("processes", [1, 2])
def test_kills_in_all_phases_lose_nothing(processes, references, tmp_path):
    cases = drawn([case for case in ALL if case.processes == processes], 1, references.calls)
    for number, case in enumerate(cases):
        references.kill(case, tmp_path / f"run{number}")
