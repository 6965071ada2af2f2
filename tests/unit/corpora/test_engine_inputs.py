"""What a run of `prepare corpora` is made from: files that are what the recipe says of them, wherever they are."""

import hashlib
import tarfile

import pytest
import yaml

from fairseq_mtmoe.corpora.engine.pipeline import find_inputs
from fairseq_mtmoe.corpora.raw_files import write_record
from fairseq_mtmoe.corpora.recipes.from_yaml import load_recipe
from tests.helpers.refused import refused

TEXT = b"one\teins\n"
SUMS = {name: getattr(hashlib, name)(TEXT).hexdigest() for name in ("sha256", "md5")}


def inputs(folder, file="a.tsv", about=None, **recipe):
    """What a recipe of one file is made from, of which it says `about`."""
    corpus = {"name": "a", "pair": "en-de", "role": "train", "files": [file], **(about or {})}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"name": "one", "corpora": [corpus], **recipe}))
    return find_inputs(load_recipe(str(path)), folder / "raw")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.tsv").write_bytes(TEXT)
    return tmp_path


@pytest.mark.parametrize("about", [{"sha256": [SUMS["sha256"]]}, {"md5": [SUMS["md5"]]}, {"bytes": [len(TEXT)]}, {}])
def test_checksums_hold_for_files_that_a_person_put_there_and_records_for_downloads(about, folder):
    file = folder / "raw" / "a.tsv"
    if not about:
        write_record(file, "https://example.org/a.tsv", SUMS["sha256"])
    assert inputs(folder, about=about).corpora[0].digests == (SUMS["sha256"],)
    file.write_bytes(TEXT + b"more\n")
    with refused("a.tsv", *([] if about else ["a.tsv.origin.json"])):
        inputs(folder, about=about)
    with tarfile.open(folder / "raw" / "a.tar", "w") as archive:
        archive.add(file, "in/a.tsv")
    right = hashlib.sha256((folder / "raw" / "a.tar").read_bytes()).hexdigest()
    assert inputs(folder, "a.tar!in/a.tsv", {"sha256": [right]}).corpora[0].digests == (f"{right}!in/a.tsv",)


def test_the_model_for_identification_is_below_raw_and_its_path_decides_about_nothing(folder, tmp_path):
    here, there = folder / "raw" / "model.bin", tmp_path / "elsewhere.bin"
    with refused("model.bin"):
        inputs(folder, filters={"identify": "model.bin"})
    for path in (here, there):
        path.write_bytes(b"any")
    one = inputs(folder, filters={"identify": "model.bin"})
    other = inputs(folder, filters={"identify": str(there)})
    assert (one.filters.identify, other.filters.identify) == (str(here), str(there))
    assert one.made_from == other.made_from
    here.write_bytes(b"another")
    assert inputs(folder, filters={"identify": "model.bin"}).made_from != one.made_from
