"""The metric of the best checkpoint: one that a translation's validation logs."""

import pytest

from tests.helpers.digits import digit_fixture
from tests.helpers.refused import refused
from tests.helpers.training import train_here

data = digit_fixture(train=60, valid=4)


@pytest.mark.parametrize(("metric", "named"), [("bleu", "--eval-bleu"), ("los", "--best-checkpoint-metric")])
def test_a_metric_that_no_validation_logs_is_refused_before_the_first_checkpoint(metric, named, data, tmp_path):
    with refused(named):
        train_here(data, tmp_path, "--best-checkpoint-metric", metric, "--max-update", 1)
    assert not list(tmp_path.glob("*.pt"))
