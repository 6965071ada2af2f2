"""Which faults of a file cost their line, and which end a run."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from fairseq_mtmoe.corpora.blocks import BAD_REASONS, HARMLESS, BadLine, check
from fairseq_mtmoe.corpora.readers import read
from fairseq_mtmoe.corpora.recipes.schema import Role
from tests.helpers.reading import corpus, written
from tests.helpers.refused import refused


@pytest.mark.parametrize("reason", BAD_REASONS)
def test_a_bad_line_costs_itself_in_training_text_and_ends_the_run_in_evaluation_sets(reason):
    files = corpus("a")
    check(BadLine("a", 1, reason, "a line"), files)
    evaluation = replace(files, role=Role.test)
    with nullcontext() if reason == HARMLESS else refused("a"):
        check(BadLine("a", 1, reason, "a line"), evaluation)


SET = "<{0} setid='s' srclang='en' trglang='de'><doc docid='d'>{1}</doc></{0}>"
SEGMENTS = "<seg id='1'>One</seg><seg id='2'></seg><seg id='3'>Three</seg>"
WITH_EMPTY = {
    "moses": [b"One\n\nThree\n", b"Eins\nZwei\nDrei\n"],
    "tsv": [b"en\tde\nOne\tEins\n\tZwei\nThree\tDrei\n"],
    "sgm": [SET.format(kind, SEGMENTS).encode() for kind in ("srcset", "refset")],
}


@pytest.mark.parametrize("form", WITH_EMPTY)
def test_a_line_without_text_is_a_line_of_an_evaluation_set(form, tmp_path):
    files = written(tmp_path, *WITH_EMPTY[form])
    [block] = read(replace(files, role=Role.test))
    assert list(block.source) == ["One", "", "Three"] and len(block.target) == 3
    bad, left = read(files)
    assert bad.reason == "empty" and list(left.source) == ["One", "Three"]
    broken = written(tmp_path, *(content.replace(b"Three", b"\xff") for content in WITH_EMPTY[form]), role=Role.test)
    with refused("a"):
        list(read(broken))
