"""One sentence for wrong input, everything for our own mistakes."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from fairseq_mtmoe.cli.main import main
from fairseq_mtmoe.errors import UserError, find_user_error, first_line, raise_invalid
from tests.helpers.refused import refused

SCRIPT = """
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training.failures import showing_sentences
from fairseq_mtmoe.fairseq_patches.patch import Patch
patch = Patch("sys.excepthook", (showing_sentences,), "a test")
patch.apply(); patch.apply()
try:
    {inner}
except Exception:
    raise Exception("Cannot load model parameters")
"""


def run(inner, *arguments, **environment):
    command = [sys.executable, "-c", SCRIPT.format(inner=inner), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_must_be_names_the_rule_and_the_value():
    with pytest.raises(UserError, match=r"^`--num-experts` must be at least 1, but is 0 instead\.$"):
        raise_invalid("--num-experts", "at least 1", 0)


def test_of_a_long_value_the_beginning_is_shown():
    with pytest.raises(UserError) as error:
        raise_invalid("x", "short", ["a" * 100_000])
    assert str(error.value).startswith("`x` must be short, but is ['aaa") and len(str(error.value)) < 400


def test_a_number_of_any_length_is_no_other_error():
    for value, shown in ((16**5000, "a number"), ([16**5000], "a list")):
        with pytest.raises(UserError, match=f"^`x` must be small, but is {shown} too long to be shown instead.$"):
            raise_invalid("x", "small", value)


def test_a_users_error_is_one_line_even_when_fairseq_raises_it_again():
    result = run("raise UserError('`x` must be 1.')")
    assert result.stderr == "error: `x` must be 1.\n" and result.returncode == 1


def test_torchruns_own_report_gets_the_sentence(tmp_path):
    from torch.distributed.elastic.multiprocessing.api import ProcessFailure

    run("raise UserError('`x` must be 1.')", TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(tmp_path / "error.json"))
    assert failure.message["message"] == "`x` must be 1."
    assert json.loads((tmp_path / "error.json").read_text())["message"]["extraInfo"]["py_callstack"] == "`x` must be 1."
    assert "error: `x` must be 1." in run("raise UserError('`x` must be 1.')", TORCHELASTIC_ERROR_FILE="/").stderr


def test_our_own_errors_keep_their_traceback():
    result = run("1 / 0")
    assert "ZeroDivisionError" in result.stderr and "Traceback" in result.stderr and result.returncode == 1


@pytest.mark.parametrize("argument", ["{}", "--log-file={}", "a:{}"])
def test_what_the_system_says_of_a_path_that_was_given_is_one_line(tmp_path, monkeypatch, argument):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "log"
    monkeypatch.setattr(sys, "argv", ["command", argument.format(path.parent)])
    with pytest.raises(OSError) as error:
        path.write_text("")
    assert str(find_user_error(error.value)) == f"`{path}` cannot be read or written: Not a directory."
    monkeypatch.setattr(sys, "argv", ["command", "elsewhere"])
    assert find_user_error(error.value) is None


def test_a_command_says_so_too(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mtmoe", "similarity", "x" * 300])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 1 and said.endswith("` cannot be read or written: File name too long.\n")
    assert said.count("\n") == 1


def test_the_root_of_a_chain_is_found():
    error = UserError("a")
    wrapped = RuntimeError("b")
    wrapped.__cause__ = error
    assert find_user_error(wrapped) is error
    assert find_user_error(RuntimeError("c")) is None


def test_the_search_for_the_root_ends():
    error = RuntimeError("a")
    error.__cause__ = error
    assert find_user_error(error) is None


def test_the_first_line_of_an_error_ends_a_sentence():
    assert first_line(RuntimeError("\nno such host\nframe #0: …\nframe #1: …\n")) == "no such host"
    assert first_line(ValueError()) == ""


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("--seed",), True),
        (("--seed", "b.yaml"), True),
        (("b.yaml", "--seed"), False),
        (("--see",), False),
        (("a.yaml",), False),
    ],
)
def test_an_error_carries_the_names_of_what_is_wrong(names, found):
    with nullcontext() if found else pytest.raises(AssertionError), refused(*names):
        raise UserError("`--seed 1` must be above 1, as `/a/b.yaml` says.")
