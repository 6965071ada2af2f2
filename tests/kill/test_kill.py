"""A few kills like those of `make test-kill`: the run resumes as if nothing had happened."""

import pytest

from tests.kill.moments import BACKWARD, COPY_LAST, LEAVE, SPARSE, UPDATE, Case, replace
from tests.kill.runs import Outcome, References, killed

SAVE = Case("a save", (replace(COPY_LAST, call=2),))
EPOCH = Case("an epoch", (replace(UPDATE, call=27),))
SPARSIFICATION = Case("sparsification", (SPARSE,))
OF_TASKS = Case("an epoch, of tasks", (replace(UPDATE, call=43),), data="benchmark")
OF_A_SOURCE = Case("a save, of a source", (replace(LEAVE, call=1),), data="source")
OF_A_TARGET = Case("an epoch, of a target", (replace(BACKWARD, call=27),), data="target")
RARE = [pytest.param(case, marks=pytest.mark.rare) for case in (EPOCH, OF_TASKS, OF_A_SOURCE, OF_A_TARGET)]


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return References(tmp_path_factory.mktemp("references"))


@pytest.mark.slow
@pytest.mark.parametrize("case", [SAVE, SPARSIFICATION, *RARE], ids=lambda case: case.phase)
def test_a_killed_run_resumes_to_the_same_parameters(case, references, tmp_path):
    references.calls(case)  # of a run that nobody kills
    outcome = killed(references.data(case), tmp_path / "run", references.place(case), case)
    assert outcome == Outcome(difference=0.0, leftovers=())
