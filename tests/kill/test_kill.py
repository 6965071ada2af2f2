"""Three kills of the thirty of `make test-kill`: the run resumes as if nothing had happened."""

import pytest

from tests.helpers.digits import make_digit_corpus
from tests.kill.moments import COPY_LAST, SPARSE, UPDATE, Case, replace
from tests.kill.runs import Outcome, killed, uninterrupted

SAVE = Case("a save", (replace(COPY_LAST, call=2),))
EPOCH = Case("an epoch", (replace(UPDATE, call=27),))
SPARSIFICATION = Case("sparsification", (SPARSE,))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("kill") / "data", train=600, valid=16, test=5)


@pytest.fixture(scope="module")
def reference(data):
    uninterrupted(data, data.parent / "uninterrupted", SAVE)
    return data.parent / "uninterrupted"


@pytest.mark.slow
@pytest.mark.parametrize("case", [SAVE, EPOCH, SPARSIFICATION], ids=lambda case: case.phase)
def test_a_killed_run_resumes_to_the_same_parameters(case, data, reference, tmp_path):
    outcome = killed(data, tmp_path / "run", reference, case)
    assert outcome == Outcome(difference=0.0, leftovers=())
