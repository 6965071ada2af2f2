"""fairseq's decoding options with each kind of translator, as docs/reference/fairseq.md lists them."""

from functools import partial

import pytest
from fairseq import options

from fairseq_mtmoe import register
from tests.helpers.decoding_extras import CHECKS
from tests.helpers.decoding_models import KINDS, DecodingModels
from tests.helpers.refused import refused
from tests.helpers.scheduled import rarely

CASES = [(kind, option) for kind in KINDS for option in CHECKS]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    pytest.importorskip("transformers")
    return DecodingModels(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(("kind", "option"), rarely(CASES, *(case for case in CASES if case[0] != "base_moe")))
def test_an_option_of_fairseq_does_what_it_says(models, kind, option):
    CHECKS[option](partial(models.of, kind))


@pytest.mark.parametrize(("command", "given", "names"), [
    ("generate", "--constraints", ["--constraints"]),
    ("generate", "--no-repeat-ngram-size 1", ["--no-repeat-ngram-size"]),
    ("generate", "--score-reference --print-alignment soft", ["--print-alignment", "--score-reference"]),
    ("interactive", "--prefix-size 2", ["--prefix-size", "fairseq-interactive"]),
    ("interactive", "--retain-iter-history", ["--retain-iter-history"]),
])  # fmt: skip
def test_decoding_options_without_meaning_here_are_refused(command, given, names):
    register()
    interactive = command == "interactive"
    parser = options.get_interactive_generation_parser() if interactive else options.get_generation_parser()
    with refused(*names):
        options.parse_args_and_arch(parser, ["data", "--task", "translation_heated", "--path", "m.pt", *given.split()])
