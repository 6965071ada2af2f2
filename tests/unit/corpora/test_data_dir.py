import errno
import os
from functools import partial

import pytest

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora import data_dir
from tests.helpers.refused import refused


def write_once(out, key, fill, overwrite=False):
    """Return whether `out` had to be filled."""
    with data_dir.written_once(out, key, {"seed": 1}, overwrite) as folder:
        if folder is not None:
            fill(folder)
        return folder is not None


def make(content, folder):
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text(content)
    data_dir.write_manifest(folder, {})


def unreachable(folder):
    raise AssertionError("there was nothing to do")


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_another_key_replaces_everything_when_asked_to(tmp_path):
    out = tmp_path / "out"
    assert write_once(out, "one", partial(make, "one")) and not write_once(out, "one", unreachable)
    before = tree(out)
    with refused("out"):
        write_once(out, "two", unreachable)
    assert tree(out) == before and [path.name for path in tmp_path.iterdir()] == ["out"]
    assert write_once(out, "two", partial(make, "two"), overwrite=True) and tree(out)["deep/file"] == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and not write_once(out, "two", unreachable)


@pytest.mark.parametrize("damaged", ["deep/file", data_dir.MANIFEST])
def test_a_damaged_directory_is_made_again(tmp_path, damaged, caplog):
    out = tmp_path / "out"
    write_once(out, "key", partial(make, "one"))
    size = (out / damaged).stat().st_size
    for content in ("x" * size, None):
        (out / damaged).unlink()
        if content:
            (out / damaged).write_text(content)
        with refused("out"):
            write_once(out, "other", unreachable)
        caplog.clear()
        assert write_once(out, "key", partial(make, "one")) and "out" in caplog.text
        assert not write_once(out, "key", unreachable)


@pytest.mark.parametrize(("error", "told"), [(SystemExit(), SystemExit), (OSError(errno.ENOSPC, "full"), UserError)])
def test_a_failure_leaves_nothing_and_changes_nothing(tmp_path, error, told):
    def fail(folder):
        make("half", folder)
        raise error

    out = tmp_path / "out"
    with pytest.raises(told):
        write_once(out, "key", fail)
    assert not list(tmp_path.iterdir())
    write_once(out, "key", partial(make, "whole"))
    with pytest.raises(told):
        write_once(out, "other", fail, overwrite=True)
    assert tree(out)["deep/file"] == "whole" and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_refuses_what_it_did_not_write_and_paths_of_no_folder(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    assert write_once(out, "key", partial(make, "empty folders are fine"))
    (out / "checkpoint.pt").write_text("precious")
    for key in ("key", "other"):
        with refused("out", "checkpoint.pt"):
            write_once(out, key, unreachable)
    assert tree(out)["checkpoint.pt"] == "precious"
    (tmp_path / "circle").symlink_to("circle")
    for path in ("out/checkpoint.pt", "out/checkpoint.pt/out", "x" * 300, "circle"):
        with refused(path):
            write_once(tmp_path / path, "key", unreachable)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "out"]


def test_cleans_up_after_a_killed_run(tmp_path):
    out = tmp_path / "out"
    write_once(out, "key", partial(make, "whole"))
    make("half", tmp_path / ".out.partial")
    os.symlink(tmp_path, tmp_path / ".out.partial" / "link")
    os.rename(out, tmp_path / ".out.replaced")  # killed between the two moves
    assert not write_once(out, "key", unreachable)
    write_once(out, "new", partial(make, "new"), overwrite=True)
    make("old", tmp_path / ".out.replaced")  # killed before the old one was removed
    assert not write_once(out, "new", unreachable)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
