"""Readers of translation memories (TMX 1.4) and WMT's XML sets, as streams, and of older SGM sets, by their tags."""

import html
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple
from xml.etree.ElementTree import Element, ParseError, iterparse

from fairseq_mtmoe.data.corpora.blocks import Content, CorpusFiles, Fault, Segment, check_whole
from fairseq_mtmoe.data.corpora.cleaning.languages import best_match, is_same_language
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.io.files import read_bytes, regular_file

_UNKNOWN_ENCODING = 18  # expat's error code
_MAX_DEPTH = 500
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})  # TMX elements with other documents' markup; `hi` has text
_TAG = re.compile(r"<(/?)(srcset|refset|tstset|doc|seg)\b([^<>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_CHARACTER = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")

Key = tuple[str, ...]  # (in SGM the document,) the segment's number, and a count of equal ones before


def _elements(content: Content, name: str) -> Iterator[Element]:
    """Yield the outermost elements with this name when they are complete (Fault: the file is invalid XML)."""
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
                        around[-1].remove(element)  # keeps only one in memory
    except (ParseError, LookupError, ValueError) as error:
        check_whole(content)
        is_encoding = not isinstance(error, ParseError) or error.code == _UNKNOWN_ENCODING
        raise Fault("charset" if is_encoding else "markup", str(error)) from error


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _text(element: Element, without: Collection[str] = ()) -> str:
    """Return all text in an element, except within elements of some names."""
    pieces = [element.text or ""]
    for child in element:
        pieces += ["" if _name(child) in without else _text(child, without), child.tail or ""]
    return "".join(pieces)


def tmx_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield a translation memory's units; of several texts in a language, the exact variety or the first."""
    for unit in _elements(files.contents[0], "tu"):
        texts: dict[str, str] = {}
        for variant in (child for child in unit if _name(child) == "tuv"):
            lang = variant.get(_LANG, variant.get("lang", ""))
            for segment in (child for child in variant if _name(child) == "seg"):
                texts.setdefault(lang, _text(segment, _CODES).strip())
        codes = (best_match(list(texts), lang) for lang in (files.source_lang, files.target_lang))
        source, target = (None if code is None else texts[code] for code in codes)
        yield Segment(source, target)


def _paired(
    sources: Iterable[tuple[Key, str]], references: Sequence[dict[Key, str]], further: int, alone: str | None
) -> Iterator[Segment]:
    """Yield sources with the references of the same key, the first as target; then references without a source.

    `further` is the number of references besides the target, `alone` the reason for a source without reference.
    """
    for key, text in sources:
        there = [texts.pop(key) for texts in references if key in texts]
        others = [*there[1:], *[""] * further][:further]
        yield Segment(text, there[0] if there else None, others, None if there else alone)
    for key in _keys(references):
        yield Segment(None, next(texts[key] for texts in references if key in texts), [""] * further, "unpaired")


def _keys(references: Iterable[Mapping[Key, str]]) -> dict[Key, None]:
    """Return the keys of all references' segments, in order."""
    return dict.fromkeys(key for texts in references for key in texts)


def wmt_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield the segments of an XML set with references; documents of the other direction are reversed."""
    translators: dict[str, None] = {}
    try:
        for document in _elements(files.contents[0], "doc"):
            translators |= {one.get("translator", ""): None for one in _sides(document, "ref", files.target_lang)}
    except Fault:  # the second pass raises it again
        pass
    further = max(len(translators) - 1, 0)  # every block has as many references
    langs = (files.source_lang, files.target_lang)
    for document in _elements(files.contents[0], "doc"):
        sources, used = _texts(_sides(document, "src", langs[0])), langs[0]
        by_translator: dict[str, list[Element]] = {}
        for one in _sides(document, "ref", langs[1]):
            by_translator.setdefault(one.get("translator", ""), []).append(one)
        references = [_texts(sides) for sides in list(by_translator.values())[: further + 1]]
        if not sources and (originals := _texts(_sides(document, "src", langs[1]))):
            sources, used = _texts(_sides(document, "ref", langs[0])[:1]), langs[1]
            references = [originals]
        yield from _paired(sources.items(), references, further, None)
        of_source = [one for one in document.iter() if _name(one) == "src"]
        others = [one for one in of_source if not is_same_language(one.get("lang", ""), used)]
        yield from _paired(_texts(others).items(), [], further, None)


def _sides(document: Element, name: str, lang: str) -> list[Element]:
    return [one for one in document.iter() if _name(one) == name and is_same_language(one.get("lang", ""), lang)]


def _texts(sides: Iterable[Element]) -> dict[Key, str]:
    found: dict[Key, str] = {}
    seen: Counter[str] = Counter()
    for segment in (inner for side in sides for inner in side.iter() if _name(inner) == "seg"):
        number = segment.get("id", "")
        found[number, str(seen[number])] = _text(segment).strip()
        seen[number] += 1
    return found


class _InSet(NamedTuple):
    """A segment of SGM with its set."""

    kind: str  # srcset, refset or tstset
    system: str  # the translator, for instance the first reference
    key: Key
    text: str
    lang: str  # as its set says; empty if it does not


def sgm_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield the segments of an SGM set, source and references in two files or one, by document and number.

    Raises `UserError` if the two files are in the wrong order, as their sets name their languages.
    """
    is_both = len(files.paths) == 1
    references: dict[str, dict[Key, str]] = {}
    fault = None
    try:
        for one in _sgm(files.contents[-1]):
            _expect_side(one, files, 1)
            if not is_both or one.kind == "refset":
                references.setdefault(one.system, {})[one.key] = one.text
    except Fault as broken:  # segments before it are used
        fault = broken
    sources = (
        (one.key if not is_both or one.kind == "srcset" else (), one.text)
        for one in _in_order(files)
        if not is_both or one.kind not in ("refset", "tstset")
    )
    try:
        yield from _paired(sources, list(references.values()), max(len(references) - 1, 0), "unpaired")
    except Fault as broken:
        lost = max(broken.lost, len(_keys(references.values())))
        raise Fault(broken.reason, broken.message, lost) from broken
    if fault and not is_both:  # the source's fault has been raised already
        raise Fault(fault.reason, f"{files.paths[-1]}: {fault.message}")


def _in_order(files: CorpusFiles) -> Iterator[_InSet]:
    for one in _sgm(files.contents[0]):
        _expect_side(one, files, 0)
        yield one


def _expect_side(one: _InSet, files: CorpusFiles, side: int) -> None:
    own, other = (files.source_lang, files.target_lang)[:: -1 if side else 1]
    if len(files.paths) == 2 and is_same_language(one.lang, other) and not is_same_language(one.lang, own):
        raise_invalid(f"the language of {files.paths[side]}", f"{own}, as the source's file comes first", one.lang)


def _sgm(content: Content) -> Iterator[_InSet]:
    """Yield a file's segments in order (Fault: the file is truncated, or has no segments)."""
    # Invalid UTF-8 becomes lone surrogates, so that only its own segment is left out.
    text = read_bytes(content.path, "a corpus' file").decode("utf-8-sig", "surrogateescape")
    kind = lang = name_of_set = system = document = ""
    sets = in_document = 0
    seen: Counter[tuple[str, ...]] = Counter()
    tags = list(_TAG.finditer(text))
    for tag, after in zip_longest(tags, tags[1:]):
        closes, name = tag[1], tag[2].lower()
        given = {key.lower(): "".join(values) for key, *values in _ATTRIBUTE.findall(tag[3])}
        if closes:
            continue
        if name == "doc":
            document, system, in_document = given.get("docid", ""), given.get("sysid", ""), 0
        elif name != "seg":
            sets += name != "srcset"
            kind, name_of_set = name, given.get("refid", str(sets))
            lang = given.get("srclang" if name == "srcset" else "trglang", "")
        elif after is None:
            check_whole(content, lost=1)
            raise Fault("markup", "the file ends within a segment", lost=1)
        else:
            in_document += 1
            of, key = f"{name_of_set} {system}", (document, given.get("id", str(in_document)))
            seen[kind, of, *key] += 1
            plain = _CHARACTER.sub(lambda found: html.unescape(found[0]), text[tag.end() : after.start()].strip())
            yield _InSet(kind, of, (*key, str(seen[kind, of, *key])), plain, lang)
    check_whole(content)
    if not seen:
        raise Fault("markup", "the file has no segments")
