"""gettext catalogs, in text (`.po`) and compiled (`.mo`), as polib reads them."""

from __future__ import annotations

import gettext
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polib

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles
from fairseq_mtmoe.data.corpora.cleaning.languages import is_same_language
from fairseq_mtmoe.data.corpora.readers.errors import Fault, check_whole, excerpt_of
from fairseq_mtmoe.data.corpora.readers.segments import Segment
from fairseq_mtmoe.io.files import read_bytes

MAGIC = (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")  # how a compiled catalog begins: little-endian, big-endian

_MAX_OVERLAP = 2
"""How many times its size the strings of a compiled catalog may have together. Tools write them one after the other."""

_PLURAL_FORMS = re.compile(r"plural\s*=\s*([^;]+)")


def message_segments(files: CorpusFiles) -> Iterator[Segment]:
    """The messages of a catalog. An entry with a plural is two; fuzzy translations are none, obsolete entries are no
    part of the catalog. Translations are in the corpus' source language if the header says so, or messages are in its
    target language English."""
    (content,) = files.contents
    check_whole(content)
    is_compiled = files.format == "mo" or read_bytes(content.path).startswith(MAGIC)
    catalog = load_catalog(content.path, is_compiled)
    lang, sides = catalog.metadata.get("Language", ""), [files.source_lang, files.target_lang]
    of_source, of_target = (is_same_language(lang or "en", side) for side in (sides if lang else sides[::-1]))
    for entry in catalog:
        for source, target in () if entry.obsolete else messages_of(entry, catalog):
            is_backwards = of_source and not of_target
            one, other = (target or None, source) if is_backwards else (source, target or None)
            yield Segment(one, other, excerpt=excerpt_of(source))


def load_catalog(path: Path, is_compiled: bool) -> polib.POFile | polib.MOFile:
    """A catalog; loading one executes nothing.

    Raises:
        UserError: there is no such file.
        Fault: it is none, or a part of one.
    """
    content = read_bytes(path)
    try:
        if not is_compiled:
            return polib.pofile(str(path))
        _check_strings(content)
        return polib.mofile(str(path))
    except UnicodeError as error:
        raise Fault("charset", str(error)) from error
    except (OSError, ValueError, LookupError, struct.error) as error:
        raise Fault("damaged" if is_compiled else "markup", str(error)) from error


def _check_strings(content: bytes) -> None:
    """Raise a `ValueError` or `struct.error` where a compiled catalog is cut or its strings overlap.

    polib takes what is there of a string for all of it.
    """
    order = "<" if content.startswith(MAGIC[0]) else ">"
    count, *tables = struct.unpack_from(f"{order}3I", content, 8)
    for table in tables if count else ():
        strings = np.frombuffer(content, f"{order}u4", 2 * count, table).reshape(count, 2).astype(np.int64)
        if strings.sum(1).max() >= len(content):
            raise ValueError("a string ends after the end of the file")
        if strings[:, 0].sum() > _MAX_OVERLAP * len(content):
            raise ValueError("its strings are longer together than itself")


def messages_of(entry: polib.POEntry | polib.MOEntry, catalog: polib.POFile | polib.MOFile) -> list[tuple[str, str]]:
    """A message with its translation; with a plural, the singular and the plural, each with its form.

    An entry's context (`msgctxt`) tells translations apart, and is no text. What is fuzzy is not translated.
    """
    is_fuzzy = "fuzzy" in getattr(entry, "flags", ())  # which compiled entries have not
    if not entry.msgid_plural:
        return [(entry.msgid, "" if is_fuzzy else entry.msgstr)]
    forms = {} if is_fuzzy else entry.msgstr_plural
    header = catalog.metadata.get("Plural-Forms", "")
    one, many = singular_and_plural_form(header, len(forms)) if forms else (0, 0)
    return [(entry.msgid, forms.get(one, "")), (entry.msgid_plural, forms.get(many, ""))]


def singular_and_plural_form(header: str, num_forms: int) -> tuple[int, int]:
    """Indices of the forms for n = 1, and for most n from 2 to 100, of an entry with `num_forms` (≥ 1) forms.

    Form 0 is not the singular everywhere (Arabic's is for zero), and the last form is not always the general plural
    (Latvian's is for zero, Polish's for fractions), so both are found by counting. Without a usable header (the value
    of `Plural-Forms`) they are the first form and the last.
    """
    match = _PLURAL_FORMS.search(header)
    try:
        form_of = gettext.c2py(match[1].strip() if match else "")  # admits numbers, n and C's operators, nothing else
        found = form_of(1), Counter(form_of(n) for n in range(2, 101)).most_common(1)[0][0]
    except (ValueError, ZeroDivisionError):
        return 0, num_forms - 1
    return found if all(0 <= form < num_forms for form in found) else (0, num_forms - 1)
