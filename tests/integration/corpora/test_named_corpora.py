"""Corpora by name, from the index to a data directory: mtdata's real index, and a server on this machine."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from functools import partial

import pytest
from sacrebleu.dataset import DATASETS

from fairseq_mtmoe.corpora.recipes.named import of_mtdata
from fairseq_mtmoe.corpora.recipes.named.entries import place_of
from tests.helpers.invoked import invoked, mtmoe
from tests.helpers.raw_corpora import sentences
from tests.helpers.refused import refused
from tests.helpers.web import web_server

download = partial(invoked, "download")
RECIPE = """
directions: [en-xx]
held_out: {valid: 5, test: 5}
vocabulary: {size: 60}
corpora:
  - {mtdata: "OPUS-gnome-v1-eng-{target}", pair: en-xx, langs: [ha, sw]}
  - {mtdata: Statmt-wikititles-3-hau-eng, pair: en-ha, weight: 2}
valid: {mtdata: Microsoft-ntrex-128-eng-hau}
test: {sacrebleu: wmt21, pair: en-ha}
"""
XML = """<?xml version="1.0"?><dataset id="x"><doc id="1" origlang="en"><src lang="en"><p>{source}</p></src>
<ref lang="ha" translator="A"><p>{target}</p></ref></doc></dataset>"""


def archive(members):
    """A zip file of these texts by name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, lines in members.items():
            file.writestr(name, "".join(f"{line}\n" for line in lines))
    return packed.getvalue()


def tarball(members):
    """A compressed tar file of these texts by name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name, text in members.items():
            content = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def lines_of(*seed, count=40):
    return sentences(seed, count, seed[-1])


def segments(lines):
    return "".join(f'<seg id="{number}">{line}</seg>' for number, line in enumerate(lines, 1))


@pytest.fixture
def web(monkeypatch):
    """A server that has each address of mtdata and sacreBLEU at /HOST/PATH."""
    real = of_mtdata.data_set_of
    with web_server() as server:

        def local(name, where):
            data_set = real(name, where)
            return replace(data_set, url=f"{server.address}/{place_of(data_set.addresses[0])}")

        monkeypatch.setattr(of_mtdata, "data_set_of", local)
        for lang in ("ha", "sw"):
            text = {f"GNOME.en-{lang}.{side}": lines_of(lang, side) for side in ("en", lang)}
            server.put(f"/object.pouta.csc.fi/OPUS-GNOME/v1/moses/en-{lang}.txt.zip", archive({"README": [], **text}))
        titles = zip(lines_of("titles", "ha"), lines_of("titles", "en"), strict=True)
        table = "".join(f"{ha}\t{en}\n" for ha, en in titles)
        server.put("/data.statmt.org/wikititles/v3/wikititles-v3.ha-en.tsv", table.encode())
        ntrex = {}
        for name, lang in (("src.eng", "en"), ("ref.hau", "ha")):
            text = "".join(f"{line}\n" for line in lines_of("ntrex", lang, count=7))
            ntrex[f"NTREX-52b9c57c/NTREX-128/newstest2019-{name}.txt"] = text
        server.put("/github.com/MicrosoftTranslator/NTREX/archive/52b9c57c.tar.gz", tarball(ntrex))
        source, target = (segments(lines_of("wmt21", lang, count=9)) for lang in ("en", "ha"))
        tested = tarball({"test/newstest2021.en-ha.xml": XML.format(source=source, target=target)})
        monkeypatch.setattr(DATASETS["wmt21"], "data", [server.put("/wmt21/test.tgz", tested)])
        monkeypatch.setattr(DATASETS["wmt21"], "md5", [hashlib.md5(tested).hexdigest()])
        yield server


def test_a_recipe_of_names_becomes_a_data_directory(web, tmp_path):
    recipe, raw, data = tmp_path / "mine.yaml", tmp_path / "raw", tmp_path / "data"
    recipe.write_text(RECIPE)
    assert "5 of 5 files are in" in download(raw, "--recipe", recipe).stdout
    assert len(web.requests) == 5
    mtmoe("prepare", "corpora", raw, data, "--recipe", recipe, "--workers", 1)
    assert (data / "raw" / "test.en-ha.en").read_text().splitlines() == lines_of("wmt21", "en", count=9)
    assert (data / "raw" / "valid.en-ha.ha").read_text().splitlines() == lines_of("ntrex", "ha", count=7)
    report = (data / "report.md").read_text()
    for name in ("OPUS-gnome-v1-eng-swa", "Statmt-wikititles-3-hau-eng", "sacrebleu-wmt21-en-ha"):
        assert name in report
    citations = (data / "CITATIONS.bib").read_text()
    assert citations.count("tiedemann2012parallel") == 1
    assert "% OPUS-gnome-v1-eng-hau: " in citations and "% OPUS-gnome-v1-eng-swa: " in citations


def test_text_in_one_language_is_trained_on_when_it_is_translated(web, tmp_path):
    recipe, raw, data = tmp_path / "mine.yaml", tmp_path / "raw", tmp_path / "data"
    recipe.write_text(f"{RECIPE}mono: {{mtdata: Leipzig-news-2020_10k-swa, pair: en-sw}}\n")
    lines = lines_of("news", "sw")
    text = "".join(f"{number}\t{line}\n" for number, line in enumerate(lines, 1))
    packed = tarball({"swa_news_2020_10K/swa_news_2020_10K-sentences.txt": text})
    web.put("/downloads.wortschatz-leipzig.de/corpora/swa_news_2020_10K.tar.gz", packed)
    prepare = ("prepare", "corpora", raw, data, "--recipe", recipe, "--workers", 1)
    download(raw, "--recipe", recipe)
    target = raw / "mono" / "Leipzig-news-2020_10k-swa.sw"
    target.unlink()
    with refused("Leipzig-news-2020_10k-swa.bt.en", "mtmoe download", "mtmoe translate"):
        mtmoe(*prepare)
    download(raw, "--recipe", recipe)
    assert target.read_text().splitlines() == lines
    translations = lines_of("news", "en")
    target.with_name("Leipzig-news-2020_10k-swa.bt.en").write_text("".join(f"{line}\n" for line in translations))
    mtmoe(*prepare)
    assert "back-translated" in (data / "report.md").read_text()
    assert "is up to date" in mtmoe(*prepare)
    target.with_name("Leipzig-news-2020_10k-swa.bt.en").write_text("".join(f"{line}\n" for line in translations[::-1]))
    with refused("data"):
        mtmoe(*prepare)


def test_a_changed_archive_is_refused(web, tmp_path):
    recipe, raw = tmp_path / "mine.yaml", tmp_path / "raw"
    recipe.write_text(RECIPE)
    download(raw, "--recipe", recipe)
    path = "data.statmt.org/wikititles/v3/wikititles-v3.ha-en.tsv"
    (place,) = raw.rglob("wikititles-v3.ha-en.tsv")
    place.unlink()
    web.put(f"/{path}", b"other\ttext\n")
    result = download_failed(raw, "--recipe", recipe)
    assert "not the expected file" in result and not place.exists()


def download_failed(*arguments):
    """What a download that fails prints."""
    from click.testing import CliRunner

    from fairseq_mtmoe.cli.main import commands

    result = CliRunner().invoke(commands, ["download", *map(str, arguments)])
    assert result.exit_code != 0
    return result.output
