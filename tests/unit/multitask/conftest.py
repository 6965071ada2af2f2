"""One small digit corpus for the tests of a session."""

from tests.helpers.digits import digit_fixture

digits = digit_fixture(train=200, valid=21, test=13)
