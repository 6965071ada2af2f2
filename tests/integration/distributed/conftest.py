"""What most of these tests train on."""

from tests.helpers.digits import digit_fixture

corpus = digit_fixture(train=600, valid=20, test=20)
