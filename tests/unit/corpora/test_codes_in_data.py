"""mBART's codes and plain ones: other names of files and tokens, and the same model inputs."""

import re

import pytest
from fairseq.data.multilingual.multilingual_utils import get_lang_tok

from fairseq_mtmoe import register
from fairseq_mtmoe.corpora.recipes.codes import plain_code
from fairseq_mtmoe.translation.task.config import TranslationHeatedConfig
from fairseq_mtmoe.translation.task.task import TranslationHeatedTask
from tests.helpers.raw_corpora import change, prepare_small, write_raw
from tests.helpers.refused import refused


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The data directories of one recipe with plain codes, and with mBART's."""
    folder = tmp_path_factory.mktemp("codes")
    recipe = write_raw(folder / "raw")
    prepare_small(folder / "raw", folder / "plain")
    change(recipe, languages="mbart", vocabulary={"model": "spm.model", "language_tokens": "mbart"})
    prepare_small(folder / "raw", folder / "mbart")
    return folder / "plain", folder / "mbart"


def test_the_files_are_called_otherwise_and_hold_the_same(both):
    plain, mbart = both
    named = {}
    for path in mbart.rglob("*.*"):
        named[re.sub(r"\w+", lambda code: plain_code(code[0]), path.relative_to(mbart).as_posix())] = path
    binarized = [path for path in plain.rglob("*") if path.suffix in (".bin", ".idx") or path.name.startswith("dict.")]
    assert len(binarized) > 20
    for path in binarized:
        twin = named[path.relative_to(plain).as_posix()]
        assert twin.name != path.name and twin.read_bytes() == path.read_bytes()


def test_tokens_of_languages_have_the_same_ids(both):
    ids = []
    for folder, style in zip(both, ("multilingual", "mbart"), strict=True):
        task = task_on(folder, style)
        dictionary = task.dicts[task.langs[0]]
        ids.append([dictionary.index(get_lang_tok(lang, style)) for lang in task.langs])
    assert ids[0] == ids[1] and len(set(ids[0])) == 3 and dictionary.symbols[ids[1][0]] == "[de_DE]"
    with refused("--lang-tok-style"):
        task_on(both[1], "multilingual")


def task_on(folder, style):
    """The task that trains on a data directory, whose shards and lists it finds."""
    register()
    langs = {"lang_dict": str(folder / "langs.txt"), "lang_pairs": str(folder / "lang_pairs.txt")}
    options = {"seed": 1, "dataset_impl": None, "train_subset": "train", "max_epoch": 0, "save_dir": ""}
    config = TranslationHeatedConfig(data=str(folder), lang_tok_style=style, decoder_langtok=True, **langs, **options)
    task = TranslationHeatedTask.setup_task(config)
    assert task.args.data == ":".join(str(folder / f"shard{number}") for number in range(3))
    return task
