"""Reader of gettext catalogs, as text (`.po`) and compiled (`.mo`), by polib."""

import gettext
import re
import struct
from collections import Counter
from collections.abc import Iterator

import numpy as np
import polib

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.files import read_bytes
from fairseq_mtmoe.corpora.blocks import Content, CorpusFiles, Segment, excerpt_of, unreadable
from fairseq_mtmoe.corpora.cleaning.languages import is_distant, is_same_language

# First bytes of compiled catalogs: little-endian, big-endian.
MAGIC = (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
_PLURAL_FORMS = re.compile(r"plural\s*=\s*([^;]+)")


def message_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield a catalog's messages, two for plurals, in its header's direction.

    Fuzzy and obsolete messages are left out.

    Raises `UserError` if its header says that it is in a third language.
    """
    (content,) = files.contents
    catalog = load_catalog(content, is_compiled=files.format == "mo")
    lang = catalog.metadata.get("Language", "")
    sides = [files.source_lang, files.target_lang]
    if lang and all(is_distant(lang, side) for side in sides):
        raise_invalid(
            f"Language in the header of {files.paths[0]}", f"{sides[0]} or {sides[1]}", lang
        )
    # The messages of a catalog without a language are in English.
    if lang:
        is_in_source, is_in_target = (is_same_language(lang, side) for side in sides)
    else:
        is_in_target, is_in_source = (is_same_language("en", side) for side in sides)
    is_backwards = is_in_source and not is_in_target
    for entry in catalog:
        if entry.obsolete:
            continue
        for source, target in messages_of(entry, catalog):
            first, second = (target or None, source) if is_backwards else (source, target or None)
            yield Segment(first, second, excerpt=excerpt_of(source))


def load_catalog(file: Content, is_compiled: bool) -> polib.POFile | polib.MOFile:
    """Load a catalog without executing code.

    Raises `UserError` if the file is no catalog, or incomplete.
    """
    content = read_bytes(file.path)
    try:
        if not is_compiled and not content.startswith(MAGIC):
            return polib.pofile(str(file.path))
        _check_strings(content)
        return polib.mofile(str(file.path))
    except (OSError, ValueError, LookupError, struct.error) as error:
        raise unreadable(file.name, error) from error


def _check_strings(content: bytes) -> None:
    """Raise `ValueError` or `struct.error` if a compiled catalog is truncated.

    polib does not check this.
    """
    order = "<" if content.startswith(MAGIC[0]) else ">"
    count, *tables = struct.unpack_from(f"{order}3I", content, 8)
    if not count:
        return
    for table in tables:
        strings = np.frombuffer(content, f"{order}u4", 2 * count, table).reshape(count, 2)
        if strings.astype(np.int64).sum(1).max() >= len(content):
            raise ValueError("a string ends after the end of the file")


def messages_of(
    entry: polib.POEntry | polib.MOEntry, catalog: polib.POFile | polib.MOFile
) -> list[tuple[str, str]]:
    """Return a message with its translation, empty if fuzzy.

    For plurals, return singular and plural with their forms.
    """
    is_fuzzy = "fuzzy" in getattr(entry, "flags", ())  # compiled entries have no flags
    if not entry.msgid_plural:
        return [(entry.msgid, "" if is_fuzzy else entry.msgstr)]
    forms = {} if is_fuzzy else entry.msgstr_plural
    header = catalog.metadata.get("Plural-Forms", "")
    singular, plural = singular_and_plural_form(header, len(forms)) if forms else (0, 0)
    return [(entry.msgid, forms.get(singular, "")), (entry.msgid_plural, forms.get(plural, ""))]


def singular_and_plural_form(header: str, num_forms: int) -> tuple[int, int]:
    """Return the forms' indices for n = 1 and for most n up to 100.

    `Plural-Forms` tells them. Without it they are first and last.
    """
    match = _PLURAL_FORMS.search(header)
    try:
        # This allows only numbers, n and C's operators.
        form_of = gettext.c2py(match[1].strip() if match else "")
        chosen = form_of(1), Counter(form_of(n) for n in range(2, 101)).most_common(1)[0][0]
    except (ValueError, ZeroDivisionError):
        return 0, num_forms - 1
    return chosen if all(0 <= form < num_forms for form in chosen) else (0, num_forms - 1)
