"""The page of options has a row for each option that this package adds."""

import re

from fairseq_mtmoe.cli._registered import choices
from tools import reference


def test_every_option_has_a_row_below_a_topic():
    flags = {option.flag for choice in choices() for option in choice.new_options()}
    topics, _ = reference.tables().split("## Names")
    assert set(re.findall(r"^\| `(--[\w-]+)`", topics, re.MULTILINE)) == flags
