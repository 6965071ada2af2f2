import struct
from dataclasses import replace

import polib
import pytest

from tests.helpers.reading import found_in, told, written
from tests.helpers.refused import refused

PO = r"""# A catalog
#, fuzzy
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Language: ru\n"
"Plural-Forms: nplurals=3; "
"plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);\n"

#. a comment
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
PAIRS = [
    (1, 'Open\t"file"\n', "Открыть файл\n"),
    (2, "%d file", "%d файл"),
    (3, "%d files", "%d файлов"),
    (6, "Quit", "Выйти"),
]


@pytest.mark.parametrize("encoding", ["utf-8", "koi8-r", "utf-8-sig"])
def test_a_catalog_in_text_in_the_encoding_that_it_says(tmp_path, encoding):
    said = encoding.removesuffix("-sig").upper()
    files = written(tmp_path, PO.replace("UTF-8", said).encode(encoding), target="ru")
    assert told(files) == (PAIRS, [("a", 4, "untranslated"), ("a", 5, "untranslated")])
    assert found_in(replace(files, source_lang="ru", target_lang="en"))[0][-1] == (6, "Выйти", "Quit")


COMPILED = polib.pofile(PO).to_binary()


@pytest.mark.parametrize("order", "<>")
def test_a_compiled_catalog_whole_and_cut_anywhere(tmp_path, order):
    words = (struct.unpack_from("<I", COMPILED, 16)[0] + 8 * struct.unpack_from("<I", COMPILED, 8)[0]) // 4
    head = struct.pack(f"{order}{words}I", *struct.unpack_from(f"<{words}I", COMPILED))
    content = head + COMPILED[len(head) :]
    pairs, bad = found_in(written(tmp_path, content, target="ru"))
    assert sorted(pair[1:] for pair in pairs) == sorted(pair[1:] for pair in PAIRS) and not bad
    for size in (0, *range(4, len(content) - 1, 5)):
        with refused("a"):
            found_in(written(tmp_path, content[:size], target="ru", format="mo"))


def test_a_catalog_of_a_third_language_is_refused(tmp_path):
    with refused("Language in the header of"):
        found_in(written(tmp_path, PO, target="de"))
    for said, target in (("ru", "ru_RU"), ("Russian", "ru"), ("nb", "no"), ("iw", "he")):
        assert found_in(written(tmp_path, PO.replace("Language: ru", f"Language: {said}"), target=target))[0] == PAIRS
