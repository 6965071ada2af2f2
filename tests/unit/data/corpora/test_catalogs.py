"""gettext catalogs: found, read, and split by message."""

import os
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.data.corpora import catalogs, harvest
from fairseq_mtmoe.data.corpora.cleaning.characters import changes_of
from fairseq_mtmoe.data.corpora.data_dir import content_hash
from fairseq_mtmoe.data.corpora.readers.messages import singular_and_plural_form
from fairseq_mtmoe.io.normalisation import normalise
from tests.helpers.catalogs import write_catalog
from tests.helpers.raw_corpora import tools_for
from tests.helpers.refused import refused


def harvested(root):
    """All that the catalogs of a folder hold, cleaned."""
    with tempfile.TemporaryDirectory() as folder, tools_for(Path(folder) / "data") as tools:
        return harvest.read_catalogs(tools, catalogs.find_catalogs([], [root]))


def test_reads_translations_cleaned_and_takes_no_context_for_text(tmp_path):
    entries = [("Open\nfile", "Datei  öffnen"), ("Linux", "Linux"), ("Save %s", "Speichern"), ("…", "Punkte")]
    contexts = {"verb": "Öffnen", "adjective": "Geöffnet", "button": "Öffnen"}
    entries += [{"msgctxt": context, "msgid": "Open", "msgstr": text} for context, text in contexts.items()]
    write_catalog(tmp_path, "de", entries)
    crop = harvested(tmp_path)
    assert sorted(crop.pairs["de"]) == [("Open", "Geöffnet"), ("Open", "Öffnen"), ("Open file", "Datei öffnen")]
    assert +crop.dropped["de"] == {"copy": 1, "placeholders": 1, "empty": 1, "duplicate": 1}


def test_a_singular_and_its_plural_are_one_message(tmp_path):
    three = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"
    for locale, forms, expected, options in (
        ("de", ["%d Datei", "%d Dateien"], ("%d Datei", "%d Dateien"), {}),
        ("ru", ["%d файл", "%d файла", "%d файлов"], ("%d файл", "%d файлов"), {"plural_forms": three}),
        ("ja", ["%d 個"], ("%d 個", "%d 個"), {"plural_forms": "nplurals=1; plural=0;"}),
    ):
        plural = {"msgid": "%d file", "msgid_plural": "%d files", "msgstr_plural": dict(enumerate(forms))}
        write_catalog(tmp_path / locale, locale, [{"msgctxt": "disk", **plural}], **options)
        crop = harvested(tmp_path / locale)
        assert crop.pairs == {locale: list(zip(("%d file", "%d files"), expected, strict=True))}
        assert crop.counts == {locale: 1}


def test_the_forms_of_a_plural_are_found_by_the_formula():
    for header, num_forms, expected in (
        ("nplurals=2; plural=(n != 1);", 2, (0, 1)),
        ("nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);", 3, (0, 1)),  # Latvian's last is for zero
        ("nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);", 4, (1, 0)),
        *(("", 3, (0, 2)), ("nplurals=3; plural=n*5;", 3, (0, 2))),
        ("nplurals=3; plural=__import__('os').system('false')", 3, (0, 2)),
    ):
        assert singular_and_plural_form(header, num_forms) == expected


def test_locales_of_one_language_add_up_and_english_is_left_out(tmp_path):
    both = [("Open", "Öffnen"), ("Close", "Zu")]
    for locale, entries in (("de", both[:1]), ("de_DE", both), ("en_GB", [("A", "B")])):
        write_catalog(tmp_path, locale, entries)
    assert harvested(tmp_path).pairs == {"de": both}


def test_damaged_catalogs_are_noted_and_left_out(tmp_path):
    good = write_catalog(tmp_path, "de", [("Open", "Öffnen")])
    content, entries, length = good.read_bytes(), 2000, 1_000_000
    head = struct.pack("<7I", 0x950412DE, 0, entries, 28, 28 + 8 * entries, 0, 28 + 16 * entries)
    strings = struct.pack("<2I", length, 28 + 16 * entries) * 2 * entries
    bad = {"empty": b"", "cut": content[:-1], "encoding": content.replace("Ö".encode(), b"\xff\xfe")}
    for name, data in {**bad, "overlap": head + strings + b"a" * length + b"\0"}.items():
        (good.parent / f"{name}.mo").write_bytes(data)
    os.mkfifo(good.parent / "pipe.mo")
    (good.parent / "circle.mo").symlink_to("circle.mo")
    found, crop = catalogs.find_catalogs([], [tmp_path]), harvested(tmp_path)
    assert crop.pairs == {"de": [("Open", "Öffnen")]}
    names = [f"de/LC_MESSAGES/{path.name}" for path in sorted(good.parent.iterdir()) if path != good]
    assert harvest.describe_sources(found, crop.damaged) == [{"source": str(tmp_path), "catalogs": 7, "damaged": names}]
    assert [content_hash(catalog.path) for catalog in found].count("unreadable") == 2


def test_a_package_is_searched_without_importing_it(tmp_path, monkeypatch):
    write_catalog(tmp_path / "gardening" / "deep" / "locale", "fr", [("Open", "Ouvrir")])
    (tmp_path / "gardening" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "flat.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    (catalog,) = catalogs.find_catalogs(["Gardening"], [])
    assert (catalog.name, catalog.lang, catalog.source) == ("deep/locale/fr/LC_MESSAGES/app.mo", "fr", "gardening")
    assert "gardening" not in sys.modules
    for name in ("no_such_package", "flat", "../up"):
        with refused("--packages"):
            catalogs.find_catalogs([name], [])


def test_only_wanted_languages_and_bad_folders(tmp_path):
    for locale in ("de_DE", "fr", "sr@latin"):
        write_catalog(tmp_path / "locale", locale, [("Open", "x")])
    found = catalogs.find_catalogs([], [tmp_path / "locale"], ["sr_Latn", "fr"])
    assert [catalog.lang for catalog in found] == ["fr", "sr_Latn"]
    (tmp_path / "bare").mkdir()
    for folder, langs, name in (("locale", ["xx"], "--langs"), ("no", [], "--folder"), ("bare", [], "bare")):
        with refused(name):
            catalogs.find_catalogs([], [tmp_path / folder], langs)


def test_language_codes():
    for locale, code in (
        *(("de_DE", "de"), ("de_AT", "de_AT"), ("pt-BR", "pt_BR"), ("es_419", "es_419"), ("hi_IN", "hi"), ("no", "nb")),
        *(("zh", "zh_Hans"), ("zh_TW.Big5", "zh_Hant"), ("zh_HK", "zh_HK"), ("sr_RS@latin", "sr_Latn")),
        *(("ca@valencia", "ca_valencia"), ("ckb", "ckb"), ("C", None), ("", None)),
    ):
        assert catalogs.language_code(locale) == code


def test_what_normalising_changes():
    names = ("removed", "breaks", "respelled")
    for text, expected, changes in (
        ("  two words\t \n", "two words", (0, 0, 0)),
        ("bell\x07 \x00 null", "bell null", (2, 0, 0)),
        ("\ufeffsoft\u00adhyphen", "softhyphen", (2, 0, 0)),
        ("one\u2028two\x0bthree\rfour", "one two three four", (0, 3, 0)),
        ("e\x07\u0301", "\u00e9", (1, 0, 1)),
        ("non\u00a0breaking\u3000wide", "non breaking wide", (0, 0, 0)),
        *((text, text, (0, 0, 0)) for text in ("\u0645\u06cc\u200c\u062e", "ＡＢＣ ½")),
    ):
        assert normalise(text) == normalise(expected) == expected
        assert changes_of([text, "nothing", text]) == {name: 2 * n for name, n in zip(names, changes, strict=True)}
        assert not any(changes_of([expected]).values())


def test_the_same_message_has_one_key():
    for text in ("Add user…", "add  user", "Add User...", "«Add user!»"):
        assert catalogs.message_key(text) == "add user" != catalogs.message_key("Add users")


def test_why_a_pair_is_dropped():
    for source, target, reason in (
        *(("Open the file", "Datei öffnen", None), ("Go", "Aiziet!", None)),
        *(("Open the file", "", "empty"), ("Nine", "9", "empty")),
        ("OpenStreetMap", "openstreetmap.", "copy"),
        ("Delete %(count)d items", "%(count)d Einträge löschen", None),
        ("Delete %(count)d items", "%d Einträge löschen", "placeholders"),
        ("ha " * 200, "he " * 200, "length"),
        ("Interlingua, the language of the association", "Interl", "length"),
        ("Adi", "崩尼-博嘎尔语; 博嘎尔-珞巴语", "length"),
        # 56 Latin letters in 15 wide ones is what a translation into Chinese looks like
        ("Ensure that there are no more than ten digits in total.", "确认总共不超过十个数字位。", None),
    ):
        assert catalogs.why_dropped(source.strip(), target.strip()) == reason
        assert reason is None or reason in catalogs.DROP_REASONS


def test_placeholders():
    text = "%2$d of %1$s %(name)s %(count)dmin {0}, {name!r:>10} {} {{ no }} 50% of it, 100%% sure"
    expected = ["%s", "%d", "%(name)s", "%(count)d", "{0}", "{name!r:>10}", "{}"]
    assert catalogs.placeholders(text) == Counter(expected)
    assert catalogs.placeholders("%.3fs over %-5lu, %*d {a sentence in braces}") == Counter(["%u", "%d"])


def test_long_lines_take_no_long_time():
    """Sorting a run of marks, and trying all ways to take zeros apart, takes quadratic time."""
    start = time.monotonic()
    marks = "a" + "\u0301\u0316" * 100_000
    assert len(normalise(marks)) > 199_000 and catalogs.message_key(normalise(marks)) == "á"
    assert catalogs.placeholders("%" + "0" * 100_000) == catalogs.placeholders("a" * 2_000_000 + "{" * 1000) == {}
    assert time.monotonic() - start < 5
    assert normalise("e" + "\u0301" * 5000) == "é" + "\u0301" * 4999


def split(corpora, sizes, seed, groups=None):
    """By language and split, the sources."""
    groups = groups or harvest.DedupGroups()
    pairs = {lang: [(source, str(index)) for index, source in enumerate(of)] for lang, of in corpora.items()}
    group_of = {source: groups.find(catalogs.message_key(source)) for of in corpora.values() for source in of}
    found = harvest.split_by_message(pairs, group_of, sizes, seed)
    return {lang: {name: [source for source, _ in of] for name, of in splits.items()} for lang, splits in found.items()}


def test_sizes_and_shared_messages_in_every_order():
    corpora = {lang: [f"Message w{i}" for i in range(size)] for lang, size in (("aa", 100), ("bb", 60), ("cc", 25))}
    sizes = {"valid": 5, "test": 7}
    corpora["bb"].reverse()
    found = split(corpora, sizes, seed=1)
    lengths = {lang: [len(splits[name]) for name in ("train", "valid", "test")] for lang, splits in found.items()}
    assert list(lengths.items()) == [("aa", [88, 5, 7]), ("bb", [48, 5, 7]), ("cc", [13, 5, 7])]
    assert found["aa"]["test"] == found["bb"]["test"] == found["cc"]["test"]
    assert found["bb"]["train"] == [source for source in corpora["bb"] if source in found["bb"]["train"]]
    assert split(corpora, sizes, seed=1) == found != split(corpora, sizes, seed=2)


def test_the_first_pair_with_the_wording_that_most_languages_have_is_tested():
    for seed in range(10):
        pairs = {"aa": [("w0", "a"), ("W1", "b"), ("w1", "c"), ("w1", "d")], "bb": [("w1", "e"), ("w0", "f")]}
        group_of = {"w0": "w0", "W1": "w1", "w1": "w1"}
        [tested] = harvest.split_by_message(pairs, group_of, {"valid": 0, "test": 1}, seed)["aa"]["test"]
        assert tested in (("w0", "a"), ("w1", "c"))


@given(
    st.lists(st.sets(st.integers(0, 60), min_size=12, max_size=60), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=4),
    st.integers(0, 3),
)
def test_never_leaks(languages, joined, seed):
    groups = harvest.DedupGroups()
    for one, other in joined:
        groups.join(f"w{one}", f"w{other}")

    def keys(sources):
        return {groups.find(catalogs.message_key(source)) for source in sources}

    corpora = {f"l{lang}": [f"w{i}" for i in sorted(kept)] for lang, kept in enumerate(languages)}
    found = split(corpora, {"valid": 2, "test": 3}, seed, groups)
    train = set().union(*(keys(splits["train"]) for splits in found.values()))
    assert not any(train & keys(splits["valid"] + splits["test"]) for splits in found.values())
    assert all(len(keys(splits["test"])) == len(splits["test"]) == 3 for splits in found.values())


def test_languages_are_those_that_keep_half_for_training_or_that_are_wanted():
    sizes = {"aa": 1000, "bb": 800, "cc": 400, "dd": 200, "ee": 100, "ff": 30}
    assert harvest.select_languages(sizes, held_out=50) == ["aa", "bb", "cc", "dd", "ee"]
    assert harvest.select_languages(sizes, held_out=20, langs=["ff", "bb"]) == ["bb", "ff"]
    for most, expected in ((3, ["aa", "cc", "ff"]), (1, ["aa"]), (9, list(sizes))):
        assert harvest.select_languages(sizes, held_out=10, max_langs=most) == expected
    for asked in ({"held_out": 30, "langs": ["aa", "ff"]}, {"held_out": 501}):
        with refused("--valid-size", "--test-size"):
            harvest.select_languages(sizes, **asked)
