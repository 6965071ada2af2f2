import struct

import polib
import pytest

from tests.helpers.reading import corpus, found_in, places

HEADER = """# A catalog
#, fuzzy
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Language: ru\\n"
"Plural-Forms: nplurals=3; "
"plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);\\n"

"""
PO = (
    HEADER
    + r"""#. a comment
#: file.c:3
msgctxt "menu"
msgid "Open\t\"file\"\n"
msgstr ""
"Открыть "
"файл\n"

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d файл"
msgstr[1] "%d файла"
msgstr[2] "%d файлов"

msgid "Close"
msgstr ""

#, fuzzy, c-format
#| msgid "Sav"
msgid "Save"
msgstr "Сохрани"
msgid "Quit"
msgstr "Выйти"

#~ msgid "Old"
#~ msgstr "Старый"
"""
)
PAIRS = [
    (1, 'Open\t"file"\n', "Открыть файл\n"),
    (2, "%d file", "%d файл"),
    (3, "%d files", "%d файлов"),
    (6, "Quit", "Выйти"),
]


def written(tmp_path, content, **settings):
    (tmp_path / "a").write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return corpus(tmp_path / "a", **{"target": "ru", **settings})


def test_a_catalog_in_text(tmp_path):
    pairs, bad = found_in(written(tmp_path, PO))
    assert pairs == PAIRS
    assert places(bad) == [("a", 4, "untranslated", 1), ("a", 5, "untranslated", 1)]


@pytest.mark.parametrize("encoding", ["koi8-r", "utf-8-sig"])
def test_the_encoding_that_a_catalog_says(tmp_path, encoding):
    said = "UTF-8" if encoding == "utf-8-sig" else encoding
    assert found_in(written(tmp_path, PO.replace("UTF-8", said).encode(encoding)))[0] == PAIRS


def test_a_catalog_backwards(tmp_path):
    pairs, _ = found_in(written(tmp_path, PO, source="ru", target="en"))
    assert pairs[-1] == (6, "Выйти", "Quit")


def compiled(tmp_path):
    catalog = polib.pofile(PO)
    catalog.save_as_mofile(str(tmp_path / "mo"))
    return (tmp_path / "mo").read_bytes()


@pytest.mark.parametrize("order", "<>")
def test_a_compiled_catalog(tmp_path, order):
    content = compiled(tmp_path)
    if order == ">":
        words = content[: struct.unpack_from("<I", content, 16)[0] + 8 * struct.unpack_from("<I", content, 8)[0]]
        content = (
            struct.pack(f">{len(words) // 4}I", *struct.unpack(f"<{len(words) // 4}I", words)) + content[len(words) :]
        )
    pairs, bad = found_in(written(tmp_path, content))
    assert sorted(pair[1:] for pair in pairs) == sorted(pair[1:] for pair in PAIRS) and not bad


def test_a_compiled_catalog_cut_anywhere(tmp_path):
    content = compiled(tmp_path)
    for size in range(4, len(content) - 1, 5):
        pairs, bad = found_in(written(tmp_path, content[:size]))
        assert not pairs and [line.reason for line in bad] == ["damaged"]


@pytest.mark.parametrize(("wrong", "reason"), [("nonsense", "markup"), ('msgstr "\xff"', "charset")])
def test_a_catalog_that_is_damaged_ends_in_one_bad_line(tmp_path, wrong, reason):
    content = PO.encode().replace('msgstr "Выйти"'.encode(), wrong.encode("latin-1" if "\xff" in wrong else "utf-8"))
    pairs, bad = found_in(written(tmp_path, content))
    assert not pairs and [line.reason for line in bad] == [reason]
