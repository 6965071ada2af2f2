"""Helpers of entries that name data sets."""

from typing import Any
from urllib.parse import unquote, urlsplit

from fairseq_mtmoe.corpora.recipes.schema import ARCHIVE

Fields = dict[str, Any]  # an entry of a recipe's `corpora`


def place_of(address: str, file_name: str = "") -> str:
    """Return where an address' file lies below RAW: `HOST/PATH`.

    file_name: a name for addresses that end with a slash.
    """
    parts = urlsplit(address)
    path = unquote(parts.path).strip("/")
    if parts.path.endswith("/") and file_name:
        path = f"{path}/{file_name}"
    if parts.query:
        path = f"{path}_{parts.query}"
    return f"{parts.hostname}/{path}".replace(ARCHIVE, "_")
