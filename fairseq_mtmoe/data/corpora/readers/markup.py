"""XML as a stream: translation memories (TMX 1.4), and WMT's development and test sets (2020 and later).

Python's parser fetches nothing from outside the file, and ends where entities of a file grow out of proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from xml.etree.ElementTree import Element, ParseError, iterparse

from fairseq_mtmoe.data.corpora.blocks import BadLine, Content, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.errors import Fault, check_whole
from fairseq_mtmoe.data.corpora.readers.languages import best_match, is_same_language
from fairseq_mtmoe.data.corpora.readers.segments import Pairs, Segment, gather
from fairseq_mtmoe.io.files import regular_file

_UNKNOWN_ENCODING = 18  # of expat's errors
_MAX_DEPTH = 500
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
"""Elements in a segment of TMX that hold codes of the document it is from; `hi` holds text."""


def _elements(content: Content, name: str) -> Iterator[Element]:
    """The outermost elements of this name, each once it is complete.

    Raises:
        Fault: the file is no XML from some place on, or was unpacked in part.
    """
    around: list[Element] = []
    try:
        with regular_file(content.path, "a corpus' file").open("rb") as file:
            for event, element in iterparse(file, ("start", "end")):
                if event == "start":
                    around.append(element)
                    if len(around) > _MAX_DEPTH:
                        raise Fault("markup", f"elements are nested more than {_MAX_DEPTH} times")
                    continue
                around.pop()
                if _name(element) == name and not any(_name(outer) == name for outer in around):
                    yield element
                    if around:
                        around[-1].remove(element)  # memory holds one at a time
    except (ParseError, LookupError, ValueError) as error:
        check_whole(content)
        is_encoding = not isinstance(error, ParseError) or error.code == _UNKNOWN_ENCODING
        raise Fault("charset" if is_encoding else "markup", str(error)) from error


def _name(element: Element) -> str:
    """An element's name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def _text(element: Element, without: Collection[str] = ()) -> str:
    """All text in an element, but for what is in elements of some names."""
    pieces = [element.text or ""]
    for child in element:
        pieces += ["" if _name(child) in without else _text(child, without), child.tail or ""]
    return "".join(pieces)


# ---- translation memories ----


def read_tmx(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of a translation memory: of several texts in a language the first, or the one in its very variety."""
    return gather(_units(files), files)


def _units(files: CorpusFiles) -> Iterator[Segment]:
    for number, unit in enumerate(_elements(files.contents[0], "tu"), start=1):
        texts: dict[str, str] = {}
        for variant in (child for child in unit if _name(child) == "tuv"):
            lang = variant.get(_LANG, variant.get("lang", ""))
            for segment in (child for child in variant if _name(child) == "seg"):
                texts.setdefault(lang, _text(segment, _CODES).strip())
        codes = (best_match(list(texts), lang) for lang in (files.source_lang, files.target_lang))
        source, target = (None if code is None else texts[code] for code in codes)
        yield Segment(number, source, target)


# ---- sets of WMT ----

Key = tuple[str, int]
"""A segment's number in its document, and how many had the same before."""


def read_wmt(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of a set: each segment with its first reference, the others beside it.

    A document that was translated the other way round is read backwards, and then has no further references.
    """
    return gather(_segments(files), files)


def _segments(files: CorpusFiles) -> Iterator[Segment]:
    further = max(len(_translators(files)) - 1, 0)  # every block has as many references
    number = 0
    for document in _elements(files.contents[0], "doc"):
        for source, targets, reason in _rows(document, files, further):
            number += 1
            references = [*targets[1:], *[""] * further][:further]
            yield Segment(number, source, targets[0] if targets else None, references, reason)


def _translators(files: CorpusFiles) -> set[str]:
    """Whose references a set has."""
    found: set[str] = set()
    try:
        for document in _elements(files.contents[0], "doc"):
            found |= {one.get("translator", "") for one in _sides(document, "ref", files.target_lang)}
    except Fault:  # which the second look meets as well
        pass
    return found


def _rows(document: Element, files: CorpusFiles, further: int) -> Iterator[tuple[str | None, list[str], str | None]]:
    """The segments of a document: source, references, and why it is no pair; those that only references have last."""
    source_lang, target_lang = files.source_lang, files.target_lang
    sources = _texts(_sides(document, "src", source_lang))
    by_translator: dict[str, list[Element]] = {}
    for one in _sides(document, "ref", target_lang):
        by_translator.setdefault(one.get("translator", ""), []).append(one)
    references = [_texts(sides) for sides in list(by_translator.values())[: further + 1]]
    used = source_lang
    if not sources and (originals := _texts(_sides(document, "src", target_lang))):
        used, references = target_lang, [originals]
        sources = _texts(_sides(document, "ref", source_lang)[:1])
    for key, text in sources.items():
        yield text, [texts.pop(key) for texts in references if key in texts], None
    for key in dict.fromkeys(key for texts in references for key in texts):
        yield None, [next(texts[key] for texts in references if key in texts)], "unpaired"
    others = [one for one in document.iter() if _name(one) == "src" and not is_same_language(one.get("lang", ""), used)]
    for text in _texts(others).values():
        yield text, [], None


def _sides(document: Element, name: str, lang: str) -> list[Element]:
    """The sources or references of a document that are in a language."""
    return [one for one in document.iter() if _name(one) == name and is_same_language(one.get("lang", ""), lang)]


def _texts(sides: Iterable[Element]) -> dict[Key, str]:
    """The segments of these elements."""
    found: dict[Key, str] = {}
    seen: Counter[str] = Counter()
    for segment in (inner for side in sides for inner in side.iter() if _name(inner) == "seg"):
        number = segment.get("id", "")
        found[number, seen[number]] = _text(segment).strip()
        seen[number] += 1
    return found
