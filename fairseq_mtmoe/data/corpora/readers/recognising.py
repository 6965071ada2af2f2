"""Which format a corpus is in, by the beginning of its content."""

from __future__ import annotations

import codecs
import re

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles
from fairseq_mtmoe.data.corpora.readers import messages
from fairseq_mtmoe.data.corpora.readers.errors import check_whole
from fairseq_mtmoe.data.corpora.readers.moses import ABOUT
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

_HEAD = 1 << 16
_ROOT = re.compile(r"<(?!\?|!)\s*(?:[\w.-]+:)?([\w.-]+)")
_ROOTS = {
    **{"tmx": "tmx", "dataset": "wmt"},
    **dict.fromkeys(("srcset", "refset", "tstset", "mteval"), "sgm"),
    **dict.fromkeys(ABOUT, "iwslt"),
}
_COMMENT = re.compile(r"<!--.*?-->|<\?.*?\?>|<!\w[^<>\[]*(?:\[.*?\]\s*)?>", re.DOTALL)
_CATALOG = re.compile(r"(?:[ \t]*(?:#.*)?\r?\n)*(?:msgctxt|msgid)[ \t]*\"")
_MARKS = {
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
}


def recognise(files: CorpusFiles) -> str | None:
    """One of `FORMATS`, or None where there is nothing at all.

    Raises:
        UserError: the content is of no known format.
        Fault: the file breaks before it begins.
    """
    content = files.contents[0]
    with regular_file(content.path, "a corpus' file").open("rb") as file:
        head = file.read(_HEAD)
    form = _form(head)
    if len(files.paths) == 2:
        return form if form in ("sgm", "iwslt") else "moses"
    if not head:
        check_whole(content)
    if form or not head:
        return form
    raise UserError(
        f"`{files.paths[0]}` must be a corpus in one of the formats that can be read, but its content is of none; "
        "give both files of a pair, or say its `format`."
    )


def _form(head: bytes) -> str | None:
    if head.startswith(messages.MAGIC):
        return "mo"
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8")
    text = head.decode(encoding, "replace").lstrip("\ufeff \t\r\n")
    if text.startswith("<") and (root := _ROOT.match(_COMMENT.sub("", text).lstrip())):
        if (form := _ROOTS.get(root[1].lower())) is not None:
            return form
    elif text.startswith("{"):
        return "jsonl"
    elif _CATALOG.match(text):
        return "po"
    return "tsv" if "\t" in text else None
