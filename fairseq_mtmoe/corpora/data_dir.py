"""Output directories that are complete or absent.

They are made only once, and replaced only on request.
"""

import json
import logging
import os
import shutil
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_mtmoe.core.digest import digest_of_file
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_json

logger = logging.getLogger(__name__)

STAMP = "stamp.json"
MANIFEST = "manifest.json"


def write_manifest(folder: Path, raw: Mapping[str, Mapping[str, str]]) -> None:
    """Write the hashes of all files of a complete data directory.

    The hashes of its raw files are written, too.
    """
    content = {"raw": raw, "files": _hashes(folder, _file_sizes(folder))}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _hashes(folder: Path, names: Collection[str]) -> dict[str, str]:
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        return dict(zip(names, pool.map(digest_of_file, map(folder.joinpath, names)), strict=True))


@contextmanager
def written_once(
    out: Path, key: str, options: Mapping[str, object], overwrite: bool
) -> Iterator[Path | None]:
    """Yield an empty folder that becomes `out`; None if `out` is complete.

    On failure `out` stays as it was. The stamp keeps `options`, to tell later what differs.
    `overwrite` replaces a directory with another key.

    Raises:
        UserError: `out` has other content or cannot be written.
    """
    out = Path(os.path.realpath(out))
    versions = {"sentencepiece": version("sentencepiece"), "unicode": unicodedata.unidata_version}
    made_with = {**versions, **options}
    with disk_errors_of(out):
        backup = out.with_name(f".{out.name}.replaced")
        if backup.exists():  # a run was killed between the two renames below, or right after them
            if out.exists():
                shutil.rmtree(backup)
            else:
                os.rename(backup, out)
        if os.path.lexists(out):
            stamp = _own_stamp(out)
            if stamp["key"] == key:
                if _is_whole(out, stamp["files"]):
                    yield None
                    return
                logger.warning(f"Files of `{out}` have changed, so it is made again.")
            elif stamp["files"] and not overwrite:
                raise UserError(_refusal(out, stamp["made_with"], made_with))
        out.parent.mkdir(parents=True, exist_ok=True)
        # The lock of the work folder keeps other processes out.
        partial = out.with_name(f".{out.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            stamp = {"key": key, "files": _file_sizes(partial), "made_with": made_with}
            text = json.dumps(stamp, indent=1, sort_keys=True) + "\n"
            (partial / STAMP).write_text(text, encoding="utf-8")
            if out.exists():  # POSIX only replaces empty folders, so a full one is renamed first
                os.rename(out, backup)
            os.rename(partial, out)
            shutil.rmtree(backup, ignore_errors=True)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def disk_errors_of(out: Path) -> Iterator[None]:
    """Turn errors of the file system within into a `UserError` about `out`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"`{out}` cannot be written: {error}.") from error


def _own_stamp(out: Path) -> dict[str, Any]:
    """Return the stamp of `out` (UserError: not all its files are ours)."""
    if not out.is_dir():
        raise UserError(f"`{out}` is not a folder; give another output folder.")
    try:
        content = read_json(out / STAMP)
        files, made_with = dict(content["files"]), dict(content["made_with"])
        stamp = {"key": content["key"], "files": files, "made_with": made_with}
    except (ValueError, KeyError, TypeError):
        stamp = {"key": "", "files": {}, "made_with": {}}
    strangers = sorted(_file_sizes(out).keys() - stamp["files"].keys())
    if strangers:
        raise UserError(
            f"`{out}` contains {len(strangers)} files that `mtmoe prepare` did not write, such as"
            f" `{strangers[0]}`; move them away, or give another output folder."
        )
    return stamp


def _file_sizes(folder: Path) -> dict[str, int]:
    """Return files' sizes by relative path."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_dir() and path != folder / STAMP:
            sizes[path.relative_to(folder).as_posix()] = path.lstat().st_size
    return sizes


def _is_whole(folder: Path, sizes: Mapping[str, int]) -> bool:
    """Return whether all files are as they were written."""
    with suppress(ValueError, KeyError, TypeError):
        hashes = dict(read_json(folder / MANIFEST)["files"])
        return _file_sizes(folder) == sizes and _hashes(folder, hashes) == hashes
    return False


def _refusal(out: Path, before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return the message that `out` is not replaced."""
    before, now = flat(before), flat(now)
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    changes = ", ".join(f"{name} {before.get(name)} (now {now.get(name)})" for name in names)
    return (
        f"`{out}` was made with {changes}, so models trained on it would not fit a new one;"
        " give the earlier settings to keep it, another output folder, or --overwrite to replace"
        " it, which repeats only the stages that depend on the change."
    )


def flat(values: Mapping[str, object], start: str = "") -> dict[str, object]:
    """Return settings by dotted name, such as `filters.max_ratio`."""
    settings: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            settings |= flat(value, f"{start}{name}.")
        else:
            settings[f"{start}{name}"] = value
    return settings
