"""Data that the tests of this folder train on, and leave as it is."""

from tests.helpers.digits import digit_fixture

corpus = digit_fixture(train=200, valid=8, test=4)
