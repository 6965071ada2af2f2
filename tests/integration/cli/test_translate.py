"""`mtmoe translate`: lines in, lines out, whatever happens to the process meanwhile; and the page for looking."""

import fcntl
import io
import itertools
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from lxml import html

from fairseq_mtmoe.cli import _lines, _web, _workers
from fairseq_mtmoe.cli import translate as command
from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.decode.decode import Decoding, RowDecoder
from fairseq_mtmoe.translation.decode.lines import Lines
from fairseq_mtmoe.translation.decode.text_translator import TextTranslator
from tests.helpers.invoked import invoked
from tests.helpers.refused import refused
from tests.helpers.translated_text import texts

SHORT = ("--from", "en", "--cpu", "--beam", 2, "--max-len-b", 8)
TEXT = texts(20, 5)


@pytest.fixture
def model(text_data):
    return text_data / "sparse.pt"


@pytest.fixture(scope="module")
def translator(text_data):
    return TextTranslator([str(text_data / "sparse.pt")], Decoding(beam=2, max_len_b=8))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in TEXT))
    return path


def translate(*arguments, text=b""):
    """What the command writes to the standard output."""
    result = CliRunner().invoke(commands, ["translate", *map(str, arguments)], input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_one_line_in_is_one_line_out(model, file):
    text = "\ufeffbo da\r\n\n \t \nbo\rda\u2028ki\x85\tfu\nbo da".encode()
    first, *others = translate(model, *SHORT, "--to", "aa", text=text).split(b"\n")
    assert len(others) == 5 and others[:2] == [b"", b""] and others[3:] == [first, b""] and first and others[2]
    assert translate(model, *SHORT, "--to", "aa") == b""
    scored = translate(model, *SHORT, "--to", "aa", "--scores", "--n-best", 2, text=text).decode().split("\n")[:-1]
    rows = [line.split("\t") for line in scored]
    assert len(rows) == 10 and {len(row) for row in rows} == {2} and rows[2] == ["0.0000", ""]
    assert rows[0][1].encode() == first and float(rows[0][0]) >= float(rows[1][0])


def test_translations_that_end_at_the_limit_are_counted(model, file, translator):
    decoder = translator.decoder(translator.decoding)
    lengths = [best.length for best, *_ in translator.translated(Lines(TEXT), "en", ["aa"], decoder)["aa"]]
    cut = lengths.count(9)  # the limit is of words before their end
    shown = invoked("translate", model, *SHORT, "--to", "aa", "--input", file).stderr
    assert cut and re.findall(r"(\d+); they reached .*--max-len-b", shown) == [str(cut)]


def test_the_standard_input_is_read_in_groups(model, file, monkeypatch):
    whole = translate(model, *SHORT, "--to", "aa", "--batch-size", 1, "--input", file)
    monkeypatch.setattr(_lines, "GROUP", 3)
    assert translate(model, *SHORT, "--to", "aa", "--batch-size", 1, text=file.read_bytes()) == whole
    stdin = io.BytesIO(file.read_bytes())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin, isatty=lambda: False))
    group = next(_lines.read(None))
    assert (group.lines, group.first) == (TEXT[:3], 1) and stdin.tell() == sum(len(line) + 1 for line in TEXT[:3])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin, isatty=lambda: True))
    assert next(_lines.read(None)).lines == TEXT[3:4]


def test_a_killed_translation_of_files_goes_on_after_its_groups_of_lines(model, file, tmp_path, monkeypatch):
    monkeypatch.setattr(_lines, "GROUP", 7)
    job = (model, *SHORT, "--to", "aa,cc", "--input", file, "--input", file, "--batch-size", 4, "--n-best", 2)
    translate(*job, "--out", tmp_path / "whole-{lang}")
    out, steps, decoded, decode = tmp_path / "new" / "out", itertools.count(1), [], RowDecoder.decode

    def dying(function):
        """The first of three calls ends the process before it, the third behind it."""

        def call(*arguments):
            step = next(steps) % 3
            if step == 1:
                raise MemoryError
            function(*arguments)
            if step == 0:
                raise MemoryError

        return call

    monkeypatch.setattr(RowDecoder, "decode", lambda one, rows: decoded.append(len(rows)) or decode(one, rows))
    monkeypatch.setattr(_lines.Files, "write", dying(_lines.Files.write))
    moves, move = itertools.count(1), _lines.move_into_place

    def dying_before(*arguments):
        if next(moves) in (1, 3):
            raise MemoryError
        move(*arguments)

    monkeypatch.setattr(_lines, "move_into_place", dying_before)
    for runs in range(1, 30):  # noqa: B007
        try:
            translate(*job, "--out", out)
            break
        except MemoryError:
            left = names(out)
            if left == [".in.txt.aa.unfinished", ".in.txt.aa.unfinished.json", ".in.txt.cc.unfinished"]:
                with refused(".in.txt.aa.unfinished.json", "--out", "--overwrite"):
                    translate(*job, "--beam", 3, "--out", out)
                with open(out / left[2], "a") as torn:
                    torn.write("half a li")
    assert runs > 5 and names(out) == ["in.txt.aa", "in.txt.cc"]
    for lang in ("aa", "cc"):
        content = (out / f"in.txt.{lang}").read_bytes()
        assert content == (tmp_path / f"whole-{lang}").read_bytes() and content.count(b"\n") == 4 * len(TEXT)
    assert sum(decoded) <= 4 * len(TEXT) + 14 * runs  # no more than a group was lost each time
    with refused("--out", "--overwrite"):
        translate(*job, "--out", out)


def test_what_is_wrong_is_one_sentence_and_nothing_is_written(model, file, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "latin1").write_bytes(b"bo\nda\n\xe4\n")
    (tmp_path / "long").write_text(f"bo\n{'ba ' * 90}\n")
    for arguments, names_in_it in (
        (["--to", "aa", "--input", tmp_path / "none", "--out", out], ["none"]),
        (["--to", "aa,xx", "--out", out], ["--to"]), (["--out", out], ["--to"]), (["--to", "aa,bb"], ["--to", "--out"]),
        (["--to", "aa", "--n-best", 3], ["--n-best"]), (["--to", "aa", "--out", file], ["--out"]),
        (["--to", "aa", "--fp16", "--bf16"], ["--bf16"]), (["--to", "aa", "--max-tokens", 3], ["--max-tokens"]),
        (["--to", "aa", "--out", model, "--overwrite"], ["--out"]), ([model, "--to", "aa"], ["MODEL"]),
    ):  # fmt: skip
        with refused(*names_in_it):
            translate(model, *SHORT, "--input", file, *arguments)
    for name, line in (("latin1", 3), ("long", 2)):
        with pytest.raises(UserError, match=rf"^Line {line} of `.*/{name}` must"):
            translate(model, *SHORT, "--to", "aa", "--input", tmp_path / name, "--out", out)
    assert names(tmp_path) == ["in.txt", "latin1", "long"]


def test_a_pipe_into_a_file_is_whole_or_absent(model, tmp_path):
    with pytest.raises(UserError, match=r"^Line 2 of the standard input must be UTF-8"):
        translate(model, *SHORT, "--to", "aa", "--out", tmp_path / "out", text=b"bo\n\xff\n")
    translate(model, *SHORT, "--to", "aa", "--out", tmp_path / "out", text=b"bo\nda\n")
    assert names(tmp_path) == ["out"] and (tmp_path / "out").read_bytes().count(b"\n") == 2


def test_a_file_that_another_command_writes_is_told_by_its_option(model, file, tmp_path):
    out = tmp_path / "out"
    job = (model, *SHORT, "--to", "aa", "--input", file, "--out", out)
    with open(tmp_path / ".out.unfinished", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with refused("--out", ".out.unfinished"):
            translate(*job)
    translate(*job)
    assert names(tmp_path) == ["in.txt", "out"]


def test_a_file_that_another_command_has_finished_meanwhile_is_kept(model, file, tmp_path, monkeypatch):
    load, out = _workers.load, tmp_path / "out"
    job = (model, *SHORT, "--to", "aa", "--input", file, "--out", out)
    monkeypatch.setattr(command, "load", lambda *arguments: out.write_text("other") and load(*arguments))
    with refused("--out", "--overwrite"):
        translate(*job)
    assert out.read_text() == "other" and names(tmp_path) == ["in.txt", "out"]
    translate(*job, "--overwrite")
    assert out.read_text() != "other" and names(tmp_path) == ["in.txt", "out"]


def test_processes_do_batches_in_their_order_end_at_once_and_tell_of_a_death(monkeypatch):
    monkeypatch.setattr(_workers, "cores", lambda: 2)

    def slowly(batch):
        time.sleep(0.3 if batch == "first" else 0.1)
        return batch, os.getpid()

    batches = ["first", *map(str, range(5))]
    with _workers.done_by(2, slowly) as done:
        results = list(done(batches))
    assert [batch for batch, _ in results] == batches and len({process for _, process in results}) == 2
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), _workers.done_by(2, lambda batch: time.sleep(20)) as done:
        done(batches)
        time.sleep(0.3)  # they have begun
        raise KeyboardInterrupt
    assert time.monotonic() - start < 3
    with refused("--workers"), _workers.done_by(2, lambda batch: os._exit(1)) as done:
        list(done(["a"]))


# ---- the page ----


@contextmanager
def served(*translators):
    """The address of a page, whose server ends with the block."""
    with _web.Server(translators, [f"model{number}" for number in range(len(translators))], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://{server.hosts[0]}/"
        finally:
            server.shutdown()


def ask(address, headers=(), **form):
    """The status of the answer, and its page."""
    data = urllib.parse.urlencode({key.rstrip("_"): value for key, value in form.items()}).encode() if form else None
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, dict(headers)), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


class Italics:
    """Stands for a model of another language."""

    directions = (("en", "zz"),)

    def translate(self, lines, *, source, target):
        return [f"<i>{line}</i>" for line in lines]


def selected(page):
    """The chosen languages of a page."""
    return html.fromstring(page).xpath("//select/option[@selected]/text()")


def test_a_text_is_shown_as_each_model_translates_it(translator):
    text = "bo <b>da</b>\r\n\r\nki & fu"
    with served(translator, Italics()) as address:
        with refused("--port"):
            _web.serve([translator], ["model"], urllib.parse.urlsplit(address).port)
        status, page = ask(address, text=text, from_="en", to="bb")
        _, other = ask(address, text="bo", from_="en", to="zz")
        status, empty = ask(address)
        assert status == 200 and selected(empty) == [*translator.directions[0]]
    found = html.fromstring(page)
    one, two = (
        [line.text_content() for line in section.xpath("p[not(@class)]")] for section in found.xpath("//section")
    )
    assert status == 200 and found.xpath("//textarea")[0].text.strip("\n") == text.replace("\r\n", "\n")
    assert one == translator.translate(text.split("\r\n"), source="en", target="bb") and one[0] and one[1] == ""
    assert two == ["<i>bo <b>da</b></i>", "<i></i>", "<i>ki & fu</i>"]
    assert selected(page) == ["en", "bb"]
    assert not found.xpath("//script | //link | //img | //*[@src]") and found.xpath("//form/@method") == ["post"]
    shown = html.fromstring(other).xpath("//section")
    assert "target must" in shown[0].text_content() and "<i>bo</i>" in shown[1].text_content()


def test_the_page_offers_the_directions_that_a_model_was_trained_on():
    with served(Italics()) as address:
        _, page = ask(address)
    offered = html.fromstring(page)
    assert offered.xpath("//select[@name='from']/option/text()") == ["en"]
    assert offered.xpath("//select[@name='to']/option/text()") == ["zz"]


def test_the_page_is_for_this_machine_and_for_little_text():
    form = {"text": "bo", "from_": "en", "to": "zz"}
    with served(Italics()) as address:
        assert address.startswith("http://127.0.0.1:")
        for headers in ({"Host": "example.org"}, {"Origin": "http://example.org"}, {"Origin": "null"}):
            assert ask(address, headers, **form)[0] == 403
        assert ask(f"{address}?text=bo&from=en&to=zz")[0] == 403
        assert ask(address, **{**form, "text": "bo" * _web.MOST_BYTES})[0] == 413
        assert ask(address, {"Origin": address[:-1]}, **form)[0] == 200
