"""One sentence for wrong input, everything for our own mistakes."""

import signal
import subprocess
import sys

import pytest

from fairseq_mtmoe.core.errors import (
    UserError,
    find_user_error,
    first_line,
    raise_invalid,
    shortened,
    suggestion,
)

SCRIPT = """
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.training.failures import showing_sentences
from fairseq_mtmoe.training.fairseq.patch import Patch
Patch("sys.excepthook", showing_sentences, "a test").apply()
try:
    raise UserError("`x` must be 1.")
except Exception:
    raise Exception("Cannot load model parameters")
"""


@pytest.mark.parametrize(("value", "shown"), [
    (0, "0 instead."),
    (["a" * 100_000], "['" + "a" * 298 + "… instead."),
    (16**5000, "a number too long to be shown instead."),
], ids=["short", "long", "a number without end"])  # fmt: skip
def test_must_be_names_the_rule_and_the_value(value, shown):
    with pytest.raises(UserError) as error:
        raise_invalid("x", "small", value)
    assert str(error.value) == f"`x` must be small, but is {shown}"


def test_a_sentence_is_one_short_line_whatever_a_file_has_in_it():
    error = UserError(f"`a\x1b]0;b\x07\n` must not be {'x' * 10**6}\u202e, but is\udcff; mend `c`.")
    assert str(error).isprintable() and len(str(error)) < 1500
    assert error.names == ("a⟨U+001B⟩]0;b⟨U+0007⟩⟨U+000A⟩", "c") and str(error).endswith("is⟨U+DCFF⟩; mend `c`.")
    assert str(UserError(str(error))) == str(error)
    assert str(UserError("می\u200cشود größer、\u3000")) == "می\u200cشود größer、\u3000"


def test_a_users_error_is_one_line_even_when_fairseq_raises_it_again():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr == "error: `x` must be 1.\n"


def test_ctrl_c_while_a_command_loads_is_one_line():
    script = SCRIPT.partition("try:")[0] + "raise KeyboardInterrupt"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == -signal.SIGINT and result.stderr == "SIGINT ended the command.\n"


def test_what_the_system_says_of_a_path_that_was_given_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "log"
    monkeypatch.setattr(sys, "argv", ["command", f"--log-file={path.parent}"])
    with pytest.raises(OSError) as error:
        path.write_text("")
    assert str(find_user_error(error.value)) == f"`{path}` cannot be read or written: Not a directory."
    monkeypatch.setattr(sys, "argv", ["command", "elsewhere"])
    assert find_user_error(error.value) is None


def test_the_root_of_a_chain_and_the_first_line_of_an_error_are_found():
    error, circle = UserError("a"), RuntimeError("b")
    wrapped = RuntimeError("c")
    wrapped.__cause__, circle.__cause__ = error, circle
    assert find_user_error(wrapped) is error
    assert find_user_error(circle) is None
    assert first_line(RuntimeError("\nno such host\nframe #0: …\nframe #1: …\n")) == "no such host"
    assert first_line(ValueError()) == ""


def test_many_names_are_cut_to_the_nearest():
    names = [f"l{number}_Latn" for number in range(100)]
    assert shortened(names, "l57_Latin").startswith("l57_Latn, ")
    assert shortened(names) == "l0_Latn, l1_Latn, l2_Latn, l3_Latn, l4_Latn and 95 more"


def test_only_a_similar_name_is_suggested():
    assert suggestion("swa_Latn", ["ces_Latn", "swh_Latn"]) == "; the most similar one is swh_Latn"
    assert suggestion("sw", ["cs", "de"]) == suggestion("sw", []) == ""
