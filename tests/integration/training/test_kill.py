"""A killed run goes on as if nothing had happened; tests/scheduled/test_kills.py has more moments."""

from tests.helpers.kill.moments import COPY_LAST, Case
from tests.helpers.kill.runs import References


def test_a_killed_run_resumes_to_the_same_parameters(tmp_path):
    references = tmp_path / "references"
    references.mkdir()
    References(references).kill(Case("a save", (COPY_LAST,)), tmp_path / "run")
