"""Readers of translation memories (TMX 1.4), and of WMT's XML and SGM sets.

TMX and XML are read as streams. The older SGM sets are read by their tags.
"""

import html
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from xml.etree.ElementTree import Element, ParseError, iterparse

from fairseq_mtmoe.core.files import read_bytes, regular_file
from fairseq_mtmoe.corpora.blocks import Content, CorpusFiles, Segment, unreadable
from fairseq_mtmoe.corpora.cleaning.languages import best_match, is_same_language

_MAX_DEPTH = 500
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# TMX elements with other documents' markup; `hi` has text.
_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
_SGM_TAG = re.compile(r"<(?P<name>doc|seg)\b(?P<attributes>[^<>]*)>", re.IGNORECASE)
_SGM_END = re.compile(r"</seg\s*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
Key = tuple[str, ...]  # of a segment: its document in SGM, its number, and a count of equal keys
_CHARACTER = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")


def _elements(content: Content, name: str) -> Iterator[Element]:
    """Yield the outermost elements with this name when they are complete.

    Raises `UserError` if the file is invalid XML.
    """
    around: list[Element] = []
    try:
        with regular_file(content.path, "a corpus' file").open("rb") as file:
            for event, element in iterparse(file, ("start", "end")):
                if event == "start":
                    around.append(element)
                    if len(around) > _MAX_DEPTH:
                        raise ValueError(f"elements are nested more than {_MAX_DEPTH} times")
                    continue
                around.pop()
                if _name(element) == name and name not in map(_name, around):
                    yield element
                    if around:
                        around[-1].remove(element)  # keeps only one in memory
    except (ParseError, LookupError, ValueError) as error:
        raise unreadable(content.name, error) from error


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _text(element: Element, without: Collection[str] = ()) -> str:
    """Return all text in an element, except within elements of some names."""
    pieces = [element.text or ""]
    for child in element:
        if _name(child) not in without:
            pieces.append(_text(child, without))
        pieces.append(child.tail or "")
    return "".join(pieces)


def tmx_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield a translation memory's units.

    Among several texts in a language, the exact variety is taken, or the first.
    """
    for unit in _elements(files.contents[0], "tu"):
        texts: dict[str, str] = {}
        for variant in unit.iterfind("{*}tuv"):
            lang = variant.get(_LANG, variant.get("lang", ""))
            for segment in variant.iterfind("{*}seg"):
                texts.setdefault(lang, _text(segment, _CODES).strip())
        sides = []
        for side_lang in (files.source_lang, files.target_lang):
            code = best_match(list(texts), side_lang)
            sides.append(None if code is None else texts[code])
        source, target = sides
        yield Segment(source, target)


def wmt_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield the segments of an XML set with each translator's references.

    The first translator's reference is the target.
    """
    documents = list(_elements(files.contents[0], "doc"))
    references: list[dict[str, list[Element]]] = []
    translators: dict[str, None] = {}
    for document in documents:
        by_translator: dict[str, list[Element]] = {}
        for side in _sides(document, "ref", files.target_lang):
            by_translator.setdefault(side.get("translator", ""), []).append(side)
        references.append(by_translator)
        translators |= dict.fromkeys(by_translator)
    if not translators:
        raise unreadable(files.paths[0], f"it has no references in {files.target_lang}")
    for document, by_translator in zip(documents, references, strict=True):
        sources = _texts(_sides(document, "src", files.source_lang))
        texts = [_texts(by_translator.get(name, ())) for name in translators]
        for key in dict.fromkeys(chain(sources, *texts)):
            targets = [part[key] for part in texts if key in part]
            missing = [""] * (len(texts) - len(targets))
            target = next(iter(targets), None)
            reason = None if key in sources else "unpaired"
            yield Segment(sources.get(key), target, [*targets[1:], *missing], reason)


def _sides(document: Element, name: str, lang: str) -> list[Element]:
    sides = document.iterfind(f".//{{*}}{name}")
    return [side for side in sides if is_same_language(side.get("lang", ""), lang)]


def _texts(sides: Iterable[Element]) -> dict[Key, str]:
    """Return the text of each segment by its number."""
    segments: list[tuple[Key, str]] = []
    for side in sides:
        for segment in side.iterfind(".//{*}seg"):
            segments.append(((segment.get("id", ""),), _text(segment).strip()))
    return _by_key(segments)


def _by_key(segments: Iterable[tuple[Key, str]]) -> dict[Key, str]:
    """Return segments by their keys.

    Keys have a count, so that no segment replaces another.
    """
    texts: dict[Key, str] = {}
    seen = Counter[Key]()
    for key, text in segments:
        seen[key] += 1
        texts[*key, str(seen[key])] = text
    return texts


def sgm_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield the segments of an SGM set in two files, paired by document and number."""
    sources, references = map(_sgm_texts, files.contents)
    unpaired = dict.fromkeys(sources.keys() ^ references.keys(), "unpaired")
    for key in {**sources, **references}:
        yield Segment(sources.get(key), references.get(key), reason=unpaired.get(key))


def _sgm_texts(content: Content) -> dict[Key, str]:
    """Return a file's segments by document and number.

    Raises `UserError` if the file is truncated or has no segments.
    """
    # Invalid UTF-8 becomes lone surrogates, so that only its own segment is left out.
    text = read_bytes(content.path, "a corpus' file").decode("utf-8-sig", "surrogateescape")
    document = ""
    segments: list[tuple[Key, str]] = []
    for tag in _SGM_TAG.finditer(text):
        attributes = {
            name.lower(): "".join(values) for name, *values in _ATTRIBUTE.findall(tag["attributes"])
        }
        if tag["name"].lower() == "doc":
            document = attributes.get("docid", "")
            continue
        end = _SGM_END.search(text, tag.end())
        if end is None:
            raise unreadable(content.name, "it ends within a segment")
        plain = _CHARACTER.sub(
            lambda code: html.unescape(code[0]), text[tag.end() : end.start()].strip()
        )
        segments.append(((document, attributes.get("id", "")), plain))
    if not segments:
        raise unreadable(content.name, "it has no segments")
    return _by_key(segments)
