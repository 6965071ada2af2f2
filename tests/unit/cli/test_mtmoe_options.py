"""`mtmoe options`, the reference's tables and `--help` say what the options are, and with which defaults."""

from argparse import ArgumentParser
from functools import partial

import pytest
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_mtmoe.cli._registered import choice_of, choices
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused

run = partial(mtmoe, "options")


@pytest.mark.parametrize("name", ["mt_tag", "pemt_t5"])
def test_what_a_task_or_model_fills_in_is_hidden_and_stays_an_option(name):
    """Old checkpoints and commands name it all the same."""
    flags = {option.flag for option in choice_of(name).options()}
    hidden = {"--encoder", "--heads", "--t5", "--pemt"}
    assert flags and not flags & hidden
    parser = ArgumentParser(add_help=False)
    ARCH_MODEL_REGISTRY[name].add_args(parser)
    taken = {flag for action in parser._actions for flag in action.option_strings} & hidden
    assert taken and not any(flag + " " in parser.format_help() for flag in taken)


def test_the_overview_names_every_choice():
    text = run()
    assert all(choice.name in text for choice in choices()) and "--heating-updates" in text
    with refused("NAME"):
        run("adam")


@pytest.mark.parametrize("arguments", [(), ("--task", "translation_heated", "--arch", "base_moe_tiny")])
def test_help_shows_the_options_of_what_is_chosen(arguments, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fairseq-train", *arguments, "--help"])
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(options.get_training_parser())
    text = capsys.readouterr().out
    assert ended.value.code == 0 and "mtmoe options" in " ".join(text.split())
    for flag in ("--num-experts", "--heating-updates", "--encoder-embed-dim"):
        assert (flag in text) == bool(arguments)
    assert "--label-smoothing" not in text and "--max-tokens" in text
