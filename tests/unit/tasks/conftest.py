"""One small digit corpus for the tests of a session; tests that change files copy it."""

import pytest

from tests.helpers.digits import make_digit_corpus


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=200, valid=21, test=13)
