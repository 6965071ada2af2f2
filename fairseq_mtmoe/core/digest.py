"""Digests of contents, in hexadecimal."""

import hashlib
from pathlib import Path


def digest_of(content: bytes | str) -> str:
    """Return the SHA-256 of bytes, or of a text in UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


def digest_of_file(path: str | Path, name: str = "sha256") -> str:
    """Return the digest of a file's content by the algorithm of this name."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, name).hexdigest()
