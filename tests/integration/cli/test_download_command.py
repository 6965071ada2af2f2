"""`mtmoe download` as a user calls it."""

import sys
from functools import partial

import pytest

from fairseq_mtmoe.cli import _shared
from fairseq_mtmoe.core.errors import UserError
from tests.helpers.commands import run
from tests.helpers.invoked import invoked
from tests.helpers.web import Fault, web_server
from tests.integration.cli.test_bad_input import sentence_of

download = partial(invoked, "download")
RECIPE = """
name: mine
corpora:
  - {name: a, pair: en-de, role: train, files: [a.tsv.gz], address: "ADDRESS/a.tsv.gz", licence: CC0}
  - {name: b, pair: en-de, role: test, files: [b.zip!x.en, b.zip!x.de], by_hand: "from https://example.org, on request"}
"""


def test_a_recipe_is_downloaded_and_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(_shared, "SECONDS_BETWEEN_LINES", 0.0)
    raw, recipe = tmp_path / "raw", tmp_path / "mine.yaml"
    own = download(raw, "--recipe", "folder", "--list").stdout
    assert own == "The recipe folder takes text of your own: there is nothing to download.\n" and not raw.exists()
    with web_server() as web:
        web.put("/a.tsv.gz", b"x" * 10_000, Fault(drop=10), ETag='"v1"')
        recipe.write_text(RECIPE.replace("ADDRESS", web.address))
        before = download(raw, "--recipe", recipe, "--list").stdout
        assert not raw.exists()
        done, again = download(raw, "--recipe", recipe), download(raw, "--recipe", recipe)
        assert len(web.requests) == 2
    assert (raw / "a.tsv.gz").read_bytes() == b"x" * 10_000
    assert "1 of 2 files are in" in done.stdout
    assert f"{raw / 'b.zip'}: from https://example.org, on request (for b)" in done.stdout
    assert "a.tsv.gz: 10,000 of 10,000 bytes" in done.stderr
    then = f"mtmoe prepare corpora {raw} DATA --recipe {recipe}"
    assert done.stdout.endswith(f"Then: {then} (without the missing files: --skip-missing)\n")
    assert again.stdout == done.stdout
    row = next(line for line in before.splitlines() if "a.tsv.gz" in line)
    assert all(word in row for word in ("?", "CC0", web.address, "no"))


def test_a_long_address_is_listed_whole(tmp_path):
    recipe, address = tmp_path / "mine.yaml", f"https://example.org/{'long/' * 60}"
    recipe.write_text(RECIPE.replace("ADDRESS", address))
    assert f"{address}/a.tsv.gz" in download(tmp_path / "raw", "--recipe", recipe, "--list").stdout


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_a_missing_package_is_named(tmp_path, monkeypatch, arguments):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(RECIPE.replace("ADDRESS", "http://127.0.0.1:1"))
    monkeypatch.delitem(sys.modules, "fairseq_mtmoe.corpora.web", raising=False)
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(UserError, match=r"needs the Python package requests: run `pip install"):
        download(tmp_path / "raw", "--recipe", recipe, *arguments)


def test_the_plan_has_the_sizes_that_servers_tell(tmp_path):
    recipe = tmp_path / "mine.yaml"
    with web_server() as web:
        web.put("/a.tsv.gz", b"x" * 10_000)
        recipe.write_text(RECIPE.replace("ADDRESS", web.address))
        plan = download(tmp_path / "raw", "--recipe", recipe, "--dry-run").stdout
    assert "10.0 kB" in plan and "Files to download: 1; 10.0 kB in all." in plan
    assert not (tmp_path / "raw").exists()


def test_what_cannot_be_had_is_told_and_the_rest_comes(tmp_path):
    recipe, raw = tmp_path / "mine.yaml", tmp_path / "raw"
    with web_server() as web:
        web.put("/a.tsv.gz", b"x")
        text = RECIPE.replace("ADDRESS", web.address)
        recipe.write_text(f'{text}  - {{name: c, pair: en-fr, role: train, files: [c], address: "{web.address}/c"}}\n')
        result = run("mtmoe", "download", raw, "--recipe", recipe, check=False)
    assert sentence_of(result).startswith("error: 1 of 3 files could not be downloaded")
    assert f"failed: {raw / 'c'}: `{web.address}/c` cannot be downloaded: the server answers 404" in result.stderr
    assert (raw / "a.tsv.gz").exists()
