"""The vocabulary in a translator's file, for commands that use or extend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora.recipes.codes import Spelling

if TYPE_CHECKING:
    from fairseq_mtmoe.corpora.vocabulary.pieces import GivenVocabulary
    from fairseq_mtmoe.translation.data.vocabulary import Vocabulary

_FORMS = ("langs", "langtoks", "langtoks_specs", "lang_tok_style")


def vocabulary_in(path: Path, state: Mapping[str, Any]) -> Vocabulary:
    """Return a checkpoint's vocabulary with all its symbols (UserError: it has none)."""
    from fairseq_mtmoe.translation.data.new_language import with_codes
    from fairseq_mtmoe.translation.data.vocabulary import Vocabulary

    settings = state.get("task_state") or {}
    vocabulary = Vocabulary.of_state(settings)
    if vocabulary is None or not all(settings.get(name) for name in _FORMS):
        raise UserError(
            f"`{path}` contains no vocabulary; use a translator from `mtmoe import-hf`, or from a "
            "run on data of `mtmoe prepare`."
        )
    return with_codes(vocabulary, settings)


@contextmanager
def given_by_model(path: Path, codes: Mapping[str, str]) -> Iterator[GivenVocabulary]:
    """Yield a translator's vocabulary in temporary files.

    codes: as in `GivenVocabulary`.
    """
    from fairseq_mtmoe import register

    register()
    from fairseq_mtmoe.checkpoints.assemble import load_shared_part
    from fairseq_mtmoe.checkpoints.sharding import count_experts
    from fairseq_mtmoe.corpora.binarize import write_dictionary
    from fairseq_mtmoe.corpora.recipes.recipe import SOURCE_FILES
    from fairseq_mtmoe.corpora.vocabulary.pieces import GivenVocabulary

    state = load_shared_part(path, mapped=True)
    vocabulary = vocabulary_in(path, state)
    settings = state["task_state"]
    style = Spelling.mbart if settings["lang_tok_style"] == "mbart" else Spelling.plain
    with TemporaryDirectory() as name:
        sides = {("model", "dictionary"): vocabulary.target}
        if vocabulary.source != vocabulary.target:
            sides[SOURCE_FILES] = vocabulary.source
        files = {file: Path(name) / file.replace(" ", ".") for kinds in sides for file in kinds}
        for (model, dictionary), side in sides.items():
            files[model].write_bytes(side.model)
            write_dictionary(files[dictionary], side.symbols)
        yield GivenVocabulary(
            files, tuple(settings["langs"]), style, path, codes, count_experts(state)
        )
