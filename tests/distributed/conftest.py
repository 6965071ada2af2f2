"""What most of these tests train on."""

import pytest

from tests.helpers.digits import make_digit_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=600, valid=20, test=20)
