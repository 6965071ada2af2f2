"""docs/reference/decoding.md says which of fairseq's decoding extras work with which model."""

import pytest
from fairseq import options

from fairseq_mtmoe import register
from tests.helpers.decoding_extras import EXTRAS, PAGE, outcome, parts, stored, table
from tests.helpers.decoding_models import KINDS, DecodingModels
from tests.helpers.rare import rarely
from tests.helpers.refused import refused

WRITTEN = stored(PAGE.read_text(encoding="utf-8"))
CELLS = [(kind, extra.name) for kind in KINDS for extra in EXTRAS]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    pytest.importorskip("transformers")
    return DecodingModels(tmp_path_factory.mktemp("models"))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), rarely(CELLS, *(cell for cell in CELLS if cell[0] != "base_moe")))
def test_an_extra_does_what_the_page_says(models, kind, name):
    (extra,) = (one for one in EXTRAS if one.name == name)
    assert outcome(models, kind, extra) == WRITTEN[kind, name]


def test_the_page_has_every_extra_and_the_options_of_our_commands():
    made = table(lambda kind, extra: WRITTEN[kind, extra.name])
    assert parts(PAGE.read_text(encoding="utf-8"))[1] == made, "python -m tests.helpers.decoding_extras"


@pytest.mark.parametrize(
    ("command", "given", "names"),
    [
        ("generate", "--constraints", ["--constraints"]),
        ("generate", "--sampling --nbest 2", ["--nbest", "--sampling"]),
        ("generate", "--sampling-topk 3", ["--sampling", "--sampling-topk"]),
        ("generate", "--diverse-beam-groups 2", ["--diverse-beam-groups"]),
        ("generate", "--score-reference --print-alignment soft", ["--print-alignment", "--score-reference"]),
        ("generate", "--no-repeat-ngram-size 1", ["--no-repeat-ngram-size"]),
        ("interactive", "--prefix-size 2", ["--prefix-size", "fairseq-interactive"]),
        ("interactive", "--score-reference", ["--score-reference", "fairseq-interactive"]),
        ("interactive", "--retain-iter-history", ["--retain-iter-history"]),
    ],
)
def test_decoding_options_that_do_not_go_together_are_one_sentence(command, given, names):
    register()
    interactive = command == "interactive"
    parser = options.get_interactive_generation_parser() if interactive else options.get_generation_parser()
    with refused(*names):
        options.parse_args_and_arch(parser, ["data", "--task", "translation_heated", "--path", "m.pt", *given.split()])
