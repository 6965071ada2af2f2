import errno
import os
from functools import partial

import pytest

from fairseq_mtmoe.data.corpora import data_dir
from fairseq_mtmoe.data.corpora.data_dir import STAMP
from tests.helpers.refused import refused


def write_once(out, key, fill, options=None, **settings):
    """Whether `out` had to be filled."""
    with data_dir.written_once(out, key, options or {"seed": 1}, **settings) as folder:
        if folder is not None:
            fill(folder)
        return folder is not None


def make(content, folder):
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text(content)


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
    replaced = partial(write_once, out, "two", lambda folder: (folder / "other").write_text("two") and None)
    assert replaced(overwrite=True) and set(tree(out)) == {"other", STAMP}
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and not replaced(overwrite=True)


def with_manifest(folder):
    make("one", folder)
    data_dir.write_manifest(folder, {})


def test_a_refusal_names_only_what_differs(tmp_path):
    settings = {"filters": {"max_ratio": 2.0, "max_words": 200}, "seed": 1}
    write_once(tmp_path / "out", "one", partial(make, "one"), settings)
    with refused("out") as caught:
        write_once(tmp_path / "out", "two", unreachable, {**settings, "filters": {"max_ratio": 3.0, "max_words": 200}})
    assert "made with filters.max_ratio 2.0 (now 3.0), and" in str(caught.value)


@pytest.mark.parametrize("damage", ["missing", "changed", "no manifest", "a link to nothing"])
def test_a_damaged_directory_is_made_again(tmp_path, damage, caplog):
    out = tmp_path / "out"
    write_once(out, "key", with_manifest)
    damaged = out / "deep" / "file" if damage != "no manifest" else out / data_dir.MANIFEST
    size = damaged.stat().st_size
    damaged.unlink()
    if damage in ("changed", "no manifest"):
        damaged.write_text("x" * size)
    elif damage == "a link to nothing":
        damaged.symlink_to("nothing")
    with refused("out"):
        write_once(out, "other", unreachable)
    assert not caplog.messages and write_once(out, "key", with_manifest)
    [said] = caplog.messages
    assert damaged.name in said and "is made again" in said and not write_once(out, "key", unreachable)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_failure_leaves_nothing_and_changes_nothing(tmp_path, error):
    def fail(folder):
        make("half", folder)
        raise error

    out = tmp_path / "out"
    with pytest.raises(error):
        write_once(out, "key", fail)
    assert not list(tmp_path.iterdir())
    write_once(out, "key", partial(make, "whole"))
    with pytest.raises(error):
        write_once(out, "other", fail, overwrite=True)
    assert tree(out)["deep/file"] == "whole" and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_refuses_what_it_did_not_write(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    assert write_once(out, "key", partial(make, "empty folders are fine"))
    (out / "checkpoint.pt").write_text("precious")
    for key in ("key", "other"):
        with refused("out", "checkpoint.pt"):
            write_once(out, key, unreachable)
    assert tree(out)["checkpoint.pt"] == "precious"
    with refused("checkpoint.pt"):  # which is no folder
        write_once(out / "checkpoint.pt", "key", unreachable)


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


def test_a_full_disk_and_a_path_of_no_folder_are_one_sentence(tmp_path):
    def fail(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with refused("out"):
        write_once(tmp_path / "out", "key", fail)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    for path in ("file/out", "x" * 300, "circle"):
        with refused(path):
            write_once(tmp_path / path, "key", unreachable)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "file"]


def test_a_link_keeps_pointing_at_its_target(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    write_once(tmp_path / "out", "key", partial(make, "text"))
    assert (tmp_path / "out").is_symlink() and tree(tmp_path / "disk")["deep/file"] == "text"
