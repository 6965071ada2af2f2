import os
import struct
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fairseq_mtmoe.data.corpora.catalogs import find_catalogs, language_code, message_key, placeholders
from fairseq_mtmoe.data.corpora.cleaning.normalising import normalise
from fairseq_mtmoe.data.corpora.data_dir import content_hash
from fairseq_mtmoe.data.corpora.harvest import describe_sources, read_catalogs
from fairseq_mtmoe.errors import UserError
from tests.helpers.catalogs import write_catalog
from tests.helpers.raw_corpora import tools_for


def harvest(catalogs):
    """All that catalogs hold, cleaned."""
    with tempfile.TemporaryDirectory() as folder, tools_for(Path(folder) / "data") as tools:
        return read_catalogs(tools, catalogs)


def harvest_one(root, locale, entries, **options):
    write_catalog(root, locale, entries, **options)
    return harvest(find_catalogs([], [root]))


def test_reads_translations_cleaned(tmp_path):
    crop = harvest_one(
        tmp_path,
        "de",
        [
            ("Open\nfile", "Datei  öffnen"),
            ("Linux", "Linux"),
            ("Save %s", "Speichern"),
            ("…", "Punkte"),
        ],
    )
    assert crop.pairs == {"de": [("Open file", "Datei öffnen")]}
    assert +crop.dropped["de"] == {"copy": 1, "placeholders": 1, "empty": 1}


def test_contexts_give_translations_and_no_text(tmp_path):
    crop = harvest_one(
        tmp_path,
        "de",
        [
            {"msgctxt": "verb", "msgid": "Open", "msgstr": "Öffnen"},
            {"msgctxt": "adjective", "msgid": "Open", "msgstr": "Geöffnet"},
            {"msgctxt": "button", "msgid": "Open", "msgstr": "Öffnen"},
        ],
    )
    assert sorted(crop.pairs["de"]) == [("Open", "Geöffnet"), ("Open", "Öffnen")]
    assert +crop.dropped["de"] == {"duplicate": 1}


def plural(forms):
    return {"msgid": "%d file", "msgid_plural": "%d files", "msgstr_plural": dict(enumerate(forms))}


def test_plurals_of_three_forms(tmp_path):
    header = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"
    crop = harvest_one(tmp_path, "ru", [plural(["%d файл", "%d файла", "%d файлов"])], plural_forms=header)
    assert crop.pairs["ru"] == [("%d file", "%d файл"), ("%d files", "%d файлов")]


def test_plurals_of_one_form(tmp_path):
    crop = harvest_one(tmp_path, "ja", [plural(["%d 個のファイル"])], plural_forms="nplurals=1; plural=0;")
    assert crop.pairs["ja"] == [("%d file", "%d 個のファイル"), ("%d files", "%d 個のファイル")]


def test_a_singular_and_its_plural_are_one_message(tmp_path):
    crop = harvest_one(tmp_path, "de", [plural(["%d Datei", "%d Dateien"])])
    assert crop.counts == {"de": 1}


def test_context_and_plural_together(tmp_path):
    crop = harvest_one(tmp_path, "de", [{"msgctxt": "disk", **plural(["%d Datei", "%d Dateien"])}])
    assert crop.pairs["de"] == [("%d file", "%d Datei"), ("%d files", "%d Dateien")]


def test_locales_of_one_language_add_up_and_english_is_left_out(tmp_path):
    write_catalog(tmp_path, "de", [("Open", "Öffnen")])
    write_catalog(tmp_path, "de_DE", [("Open", "Öffnen"), ("Close", "Schließen")])
    write_catalog(tmp_path, "en_GB", [("Color", "Colour")])
    crop = harvest(find_catalogs([], [tmp_path]))
    assert crop.pairs == {"de": [("Open", "Öffnen"), ("Close", "Schließen")]}


def test_the_encoding_that_the_catalog_says(tmp_path):
    path = write_catalog(tmp_path, "de", [("Open", "?ffnen")])
    path.write_bytes(path.read_bytes().replace(b"UTF-8", b"cp437").replace(b"?ffnen", "Öffnen".encode("cp437")))
    assert harvest(find_catalogs([], [tmp_path])).pairs["de"] == [("Open", "Öffnen")]


def test_the_other_byte_order(tmp_path):
    path = write_catalog(tmp_path, "de", [("Open", "Öffnen")])
    content = path.read_bytes()
    words = content[: struct.unpack_from("<I", content, 16)[0] + 16]  # up to the end of the second table: 32-bit words
    turned = struct.pack(f">{len(words) // 4}I", *struct.unpack(f"<{len(words) // 4}I", words))
    path.write_bytes(turned + content[len(words) :])
    assert harvest(find_catalogs([], [tmp_path])).pairs["de"] == [("Open", "Öffnen")]


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "cut by a byte", "encoding"])
def test_a_damaged_catalog_is_noted_and_left_out(tmp_path, damage):
    good = write_catalog(tmp_path, "de", [("Open", "Öffnen")])
    content = good.read_bytes()
    bad = {
        "empty": b"",
        "text": b"no catalog at all",
        "cut": content[: len(content) // 2],
        "cut by a byte": content[:-1],
        "encoding": content.replace("Ö".encode(), b"\xff\xfe"),
    }[damage]
    write_catalog(tmp_path, "de", [], domain="bad").write_bytes(bad)
    catalogs = find_catalogs([], [tmp_path])
    crop = harvest(catalogs)
    assert crop.pairs == {"de": [("Open", "Öffnen")]}
    assert describe_sources(catalogs, crop.damaged) == [
        {"source": str(tmp_path), "catalogs": 2, "damaged": ["de/LC_MESSAGES/bad.mo"]}
    ]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package with a catalog, that fails when it is imported."""
    root = tmp_path / "site" / "gardening"
    write_catalog(root / "deep" / "locale", "fr", [("Open", "Ouvrir")])
    (root / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "site" / "flat.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return "gardening"


def test_a_package_is_searched_without_importing_it(package):
    (catalog,) = find_catalogs([package.title()], [])
    assert (catalog.name, catalog.lang, catalog.source) == ("deep/locale/fr/LC_MESSAGES/app.mo", "fr", "gardening")
    assert package not in sys.modules


@pytest.mark.parametrize("name", ["no_such_package", "flat", "os.path", "../up", ""])
def test_no_such_package(package, name):
    with pytest.raises(UserError, match="`--packages` must be installed packages, but"):
        find_catalogs([name], [])


def test_bad_folders_and_languages(tmp_path, locale_folder):
    with pytest.raises(UserError, match="`--folder` must be a folder"):
        find_catalogs([], [tmp_path / "nowhere"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="must have catalogs"):
        find_catalogs([], [tmp_path / "bare"])
    with pytest.raises(UserError, match="`--langs` must be among de, fr, sr_Latn, but has 'xx'"):
        find_catalogs([], [locale_folder], ["de", "xx"])


def test_only_wanted_languages(locale_folder):
    assert [catalog.lang for catalog in find_catalogs([], [locale_folder], ["sr_Latn", "fr"])] == ["fr", "sr_Latn"]


def test_language_codes():
    for locale, code in (
        *(("de", "de"), ("de_DE", "de"), ("de_AT", "de_AT"), ("pt_PT", "pt"), ("pt-BR", "pt_BR"), ("es_419", "es_419")),
        *(("hi_IN", "hi"), ("no", "nb"), ("iw", "he"), ("zh", "zh_Hans"), ("zh-Hans-CN", "zh_Hans")),
        *(("zh_TW.Big5", "zh_Hant"), ("zh_HK", "zh_HK"), ("sr_RS@latin", "sr_Latn"), ("uz@cyrillic", "uz_Cyrl")),
        *(("ca@valencia", "ca_valencia"), ("ckb", "ckb"), ("C", None), ("LC_MESSAGES", None), ("", None)),
    ):
        assert language_code(locale) == code


def test_what_is_no_file_or_has_strings_that_overlap_is_noted_and_left_out(tmp_path):
    folder = write_catalog(tmp_path, "de", [("Open", "Öffnen")]).parent
    os.mkfifo(folder / "pipe.mo")
    (folder / "folder.mo").mkdir()
    (folder / "circle.mo").symlink_to("circle.mo")
    entries, length = 2000, 1_000_000
    head = struct.pack("<7I", 0x950412DE, 0, entries, 28, 28 + 8 * entries, 0, 28 + 16 * entries)
    strings = struct.pack("<2I", length, 28 + 16 * entries) * 2 * entries
    (folder / "overlap.mo").write_bytes(head + strings + b"a" * length + b"\0")
    catalogs = find_catalogs([], [tmp_path])
    found = harvest(catalogs)
    assert len(found.damaged) == 4 and len(found.pairs["de"]) == 1
    assert [content_hash(catalog.path) for catalog in catalogs].count("unreadable") == 3


def test_long_lines_take_no_long_time():
    """Sorting a run of marks, and trying all ways to take zeros apart, takes quadratic time."""
    start = time.monotonic()
    marks = "a" + "\u0301\u0316" * 100_000
    assert len(normalise(marks)) > 199_000 and message_key(normalise(marks)) == "á"
    assert placeholders("%" + "0" * 100_000) == {}
    assert placeholders("a" * 2_000_000 + "{" * 1000) == {}
    assert time.monotonic() - start < 5
    assert normalise("e" + "\u0301" * 5000) == "é" + "\u0301" * 4999
