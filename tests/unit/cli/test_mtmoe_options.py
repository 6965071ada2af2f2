"""`mtmoe options`, the table in the README and `--help` say what the options are, and with which defaults."""

import re
from argparse import ArgumentParser
from functools import partial

import pytest
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_mtmoe.cli.options import choices, options_of, shown
from tests.helpers.commands import REPOSITORY
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused

run = partial(mtmoe, "options")


def ours(name):
    return {option.flag: option for option in options_of(name) if option.is_ours}


@pytest.mark.parametrize("name", ["mt_tag", "pemt_t5"])
def test_what_a_task_or_model_fills_in_is_hidden_and_stays_an_option(name):
    """Old checkpoints and commands name it all the same."""
    flags = {option.flag for option in options_of(name)}
    hidden = {"--encoder", "--heads", "--t5", "--pemt"}
    assert flags and not flags & hidden
    parser = ArgumentParser(add_help=False)
    ARCH_MODEL_REGISTRY[name].add_args(parser)
    taken = {flag for action in parser._actions for flag in action.option_strings} & hidden
    assert taken and not any(flag + " " in parser.format_help() for flag in taken)


def test_the_overview_names_every_choice():
    text = run()
    assert all(name in text for name in choices()) and "--heating-updates" in text
    with refused("NAME"):
        run("adam")


def table_of_readme(section):
    """Option and default in each row of the tables in a section."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(--[a-z-]+)[^|]*\| ([^|]*) \| ", text, re.MULTILINE))


def assert_same_defaults(rows, known):
    assert rows.keys() == known.keys()
    for flag, option in known.items():
        found = re.match(r"`([^`]*)`", rows[flag])
        assert (found[1] if found else "") == shown(option.default), flag


# What translation is trained with, and what language understanding is.
KINDS = {"--arch", "--task", "--criterion", "--optimizer"}
TRANSLATION = ("base_moe", "translation_heated", "moe_label_smoothed_cross_entropy", "fused_adam")
UNDERSTANDING = ("mt_tag", "glue", "multitask")
FILLED_IN = "--task-names"  # by the task, but for `mtmoe upcycle`


def of_all(names):
    return {flag: option for name in names for flag, option in ours(name).items()}


def test_the_tables_of_the_readme_have_our_options_with_their_defaults():
    rows = {flag: value for flag, value in table_of_readme("What there is").items() if flag not in KINDS}
    known, understanding = of_all(TRANSLATION), of_all(UNDERSTANDING)
    assert_same_defaults(rows, {flag: option for flag, option in known.items() if flag != FILLED_IN})
    tiny, tag = ours("base_moe_tiny"), ours("mt_tag")
    others = [flag for flag in tiny if tiny[flag].default != known.get(flag, tiny[flag]).default]
    assert others == ["--num-experts"] and "`4` in `base_moe_tiny`" in rows["--num-experts"]
    rows = table_of_readme("Language understanding")
    assert_same_defaults(rows, {flag: option for flag, option in understanding.items() if flag not in known})
    assert [tag[flag].default for flag in ("--num-experts", "--expert-interval", "--expert-gates")] == [4, 1, "task"]


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
