"""SGM of test sets (NIST's and WMT's until 2019): a source set, and reference sets in the same file or in another.

It is SGML, not XML: ampersands and angle brackets may stand alone, attributes without quotes. So only the tags of sets,
documents and segments are looked for, and everything else in a segment is text.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from fairseq_mtmoe.data.corpora.blocks import BadLine, Content, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.errors import Fault, check_whole
from fairseq_mtmoe.data.corpora.readers.segments import Pairs, Segment, gather
from fairseq_mtmoe.io.files import read_bytes

_TAG = re.compile(r"<(/?)(srcset|refset|tstset|doc|seg)\b([^<>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_CHARACTER = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")

Key = tuple[str, str, int]
"""A segment's document, its number there, and how many had the same before."""


class _InSet(NamedTuple):
    """A segment, and the set that it belongs to."""

    kind: str  # srcset, refset or tstset
    system: str  # whose translation it is, for instance the first reference
    key: Key
    text: str


def read_sgm(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of a set: segments with the same number in the same document. `files` has the source and the
    references, or one file with both; of several references the first is the target."""
    return gather(_units(files), files)


def _units(files: CorpusFiles) -> Iterator[Segment]:
    both = len(files.paths) == 1
    references, fault = _references(files.contents[-1], only=both)
    further = max(len(references) - 1, 0)
    number = 0
    try:
        for segment in _segments(files.contents[0]):
            if both and segment.kind in ("refset", "tstset"):
                continue
            number += 1
            is_source = not both or segment.kind == "srcset"
            there = [texts.pop(segment.key) for texts in references.values() if is_source and segment.key in texts]
            reason = None if there else "unpaired"
            target = there[0] if there else None
            yield Segment(number, segment.text, target, [*there[1:], *[""] * further][:further], reason)
    except Fault as broken:
        raise Fault(broken.reason, broken.message, max(broken.lost, len(_keys(references)))) from broken
    for key in _keys(references):
        number += 1
        text = next(texts[key] for texts in references.values() if key in texts)
        yield Segment(number, None, text, [""] * further, "unpaired")
    if fault and not both:  # the source's own has come already
        raise Fault(fault.reason, f"{files.paths[-1]}: {fault.message}")


def _keys(references: dict[str, dict[Key, str]]) -> dict[Key, None]:
    """The segments that any reference has, in their order."""
    return dict.fromkeys(key for texts in references.values() for key in texts)


def _references(content: Content, only: bool) -> tuple[dict[str, dict[Key, str]], Fault | None]:
    """The texts of each reference, by segment, as far as the file can be read; `only` those in a set of references."""
    found: dict[str, dict[Key, str]] = {}
    try:
        for segment in _segments(content):
            if not only or segment.kind == "refset":
                found.setdefault(segment.system, {})[segment.key] = segment.text
    except Fault as fault:
        return found, fault
    return found, None


def _segments(content: Content) -> Iterator[_InSet]:
    """Every segment of a file, in its order.

    Raises:
        Fault: the file breaks too early, or within a segment, or has none.
    """
    # Bytes that are no UTF-8 become half characters, for which their segment alone is left out.
    text = read_bytes(content.path, "a corpus' file").decode("utf-8-sig", "surrogateescape")
    kind = name_of_set = system = document = ""
    sets = in_document = 0
    seen: Counter[tuple[str, ...]] = Counter()
    tags = list(_TAG.finditer(text))
    for tag, after in zip_longest(tags, tags[1:]):
        closes, name, given = tag[1], tag[2].lower(), _attributes(tag[3])
        if closes:
            continue
        if name == "doc":
            document, system, in_document = given.get("docid", ""), given.get("sysid", ""), 0
        elif name != "seg":
            sets += name != "srcset"
            kind, name_of_set = name, given.get("refid", str(sets))
        elif after is None:
            check_whole(content, lost=1)
            raise Fault("markup", "the file ends within a segment", lost=1)
        else:
            in_document += 1
            place = (document, given.get("id", str(in_document)))
            of = f"{name_of_set} {system}"
            seen[kind, of, *place] += 1
            yield _InSet(kind, of, (*place, seen[kind, of, *place]), _plain(text[tag.end() : after.start()]))
    check_whole(content)
    if not seen:
        raise Fault("markup", "the file has no segments")


def _attributes(text: str) -> dict[str, str]:
    return {key.lower(): "".join(values) for key, *values in _ATTRIBUTE.findall(text)}


def _plain(text: str) -> str:
    return _CHARACTER.sub(lambda found: html.unescape(found[0]), text.strip())
