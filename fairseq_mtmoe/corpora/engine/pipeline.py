"""All stages, from a recipe and raw files to a data directory."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from pydantic_core import to_jsonable_python

from fairseq_mtmoe.core.digest import digest_of, digest_of_file
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.corpora import blocks, report
from fairseq_mtmoe.corpora.blocks import CorpusFiles
from fairseq_mtmoe.corpora.cleaning import keys
from fairseq_mtmoe.corpora.cleaning.languages import check_model
from fairseq_mtmoe.corpora.data_dir import write_manifest, written_once
from fairseq_mtmoe.corpora.engine.cleaning import check_cleaned, clean
from fairseq_mtmoe.corpora.engine.encoding import Encoded, encode
from fairseq_mtmoe.corpora.engine.selecting import Draw, select
from fairseq_mtmoe.corpora.engine.state import CorpusState
from fairseq_mtmoe.corpora.engine.work import WorkFolder, hash_of
from fairseq_mtmoe.corpora.engine.workers import Progress, Tools, Workers
from fairseq_mtmoe.corpora.engine.writing import DataDirectory
from fairseq_mtmoe.corpora.raw_files import digests_of, read_items_of
from fairseq_mtmoe.corpora.recipes.codes import reversed_pair
from fairseq_mtmoe.corpora.recipes.recipe import SOURCE_FILES, Recipe
from fairseq_mtmoe.corpora.recipes.schema import ARCHIVE, Filters, Role
from fairseq_mtmoe.corpora.vocabulary.pieces import expect_tag

# Raised whenever the same input would give other training or evaluation data: a directory made
# before is then out of date. (`work.FORMAT` is of the files between stages, which a run makes anew
# without being asked.)
ENGINE = 1

CorpusStates = list[CorpusState]


@dataclass(frozen=True)
class Inputs:
    """The inputs of a run: recipe, files and their hashes."""

    recipe: Recipe
    corpora: list[CorpusFiles]
    vocabulary: dict[str, Path]  # `model` and `dictionary`, where they are given
    vocabulary_digests: dict[str, str]  # by setting, such as `vocabulary model`
    filters: Filters  # with the path of the model for language identification
    identification: list[str]  # the hash of that model, where there is one

    @property
    def made_from(self) -> dict[str, object]:
        """Return all settings and inputs that affect the data directory, by name."""
        values = to_jsonable_python(asdict(self.recipe))
        for name in ("corpora", "path", "of_sources"):
            del values[name]
        if not values["codes"]:
            del values["codes"]
        if values.pop("known_languages"):
            # Wherever the files are: their hashes decide.
            values["vocabulary"] |= {"model": None, "dictionary": None}
            values["known_languages"] = list(self.recipe.known_languages)
        values["filters"]["identify"] = None  # wherever it is: its hash decides
        corpora = {f"corpus {files.name}": _summary(files) for files in self.corpora}
        return {
            "command": "corpora",
            "engine": ENGINE,
            "order": list(corpora),
            "identification": self.identification,
            **values,
            **corpora,
            **self.vocabulary_digests,
        }

    @property
    def key(self) -> str:
        """Return the directory's fingerprint."""
        versions = {"format": ENGINE, "sentencepiece": version("sentencepiece")}
        return hash_of({**versions, "made_from": self.made_from})


def _summary(files: CorpusFiles) -> str:
    """Return a short hash of all that a corpus adds to the data."""
    extras = []
    if files.is_turned:
        extras.append("turned")
    if files.is_synthetic or files.weight > 1:
        extras.append(f"{files.is_synthetic} {files.weight}")
    fields = sorted(files.fields.items())
    about = [files.pair, files.role.name, files.format, fields, files.digests, *extras]
    return digest_of(repr(about))[:12]


def find_inputs(recipe: Recipe, raw: Path) -> Inputs:
    """Return the recipe's files below `raw` with their hashes."""
    recipe = recipe.found_in(raw)
    recipe.check_synthetic()
    # All files are there if this succeeds.
    all_files = [recipe.files_of(corpus, raw) for corpus in recipe.corpora]
    named = {
        "model": recipe.vocabulary.model,
        "dictionary": recipe.vocabulary.dictionary,
        **recipe.of_sources,
    }
    vocabulary = {}
    vocabulary_digests = {}
    for name, file in named.items():
        if file:
            vocabulary[name] = regular_file(raw / file, f"the vocabulary's {name}")
            vocabulary_digests[f"vocabulary {name}"] = digest_of_file(vocabulary[name])
    for name in ("dictionary", SOURCE_FILES[1]):
        if recipe.has_synthetic and name in vocabulary:
            expect_tag(vocabulary[name])
    identification = []
    filters = recipe.filters
    if filters.identify:
        model = os.path.abspath(raw / filters.identify)
        identification.append(
            digest_of_file(regular_file(model, "a model for language identification"))
        )
        filters = replace(filters, identify=model)
    digests = digests_of(read_items_of(recipe.corpora), raw)
    corpora = []
    for files in all_files:
        hashes = []
        for name in files.names:
            file, mark, member = name.partition(ARCHIVE)
            hashes.append(digests[file] + mark + member)
        corpora.append(replace(files, digests=tuple(hashes)))
    return Inputs(recipe, corpora, vocabulary, vocabulary_digests, filters, identification)


def prepare(
    raw: Path, out: Path, recipe: Recipe, workers: Workers, overwrite: bool = False
) -> report.Report | None:
    """Make the data directory `out`; return its report, or None if it is up to date.

    The folder `.OUT.work` keeps finished stages for the next run, and the progress in `log.txt`.
    """
    work = WorkFolder(out)
    with work.locked():
        inputs = find_inputs(recipe, raw)
        about = {**inputs.made_from, "format": ENGINE}
        with written_once(out, inputs.key, about, overwrite) as folder:
            if folder is not None:
                if inputs.filters.identify:
                    check_model(inputs.filters.identify)
                return _fill(folder, work, Tools(workers, Progress(work.path / "log.txt")), inputs)
    return None


def _fill(folder: Path, work: WorkFolder, tools: Tools, inputs: Inputs) -> report.Report:
    """Fill the empty directory `folder` in four stages; return the report."""
    recipe, filters = inputs.recipe, inputs.filters
    corpora = list(map(repr, inputs.corpora))
    cleaned_from: list[object] = [
        corpora,
        repr(filters),
        blocks.BLOCK,
        inputs.identification,
        keys.VERSION,
    ]
    cleaned = work.stage(
        "cleaned", cleaned_from, CorpusStates, partial(clean, tools, inputs.corpora, filters)
    )
    draw = Draw(_missing_splits(recipe, cleaned), recipe.seed)
    check_cleaned(cleaned, draw.sizes)
    selected = work.stage(
        "selected", repr(draw), CorpusStates, partial(select, tools, cleaned, filters, draw)
    )
    settings = replace(recipe.vocabulary, model=None, dictionary=None)  # whose hashes decide
    encoded_from = [
        repr(settings),
        recipe.seed,
        inputs.vocabulary_digests,
        sorted(recipe.trained()),
        version("sentencepiece"),
    ]
    encode_all = partial(encode, tools, selected, recipe, inputs.vocabulary)
    data = DataDirectory(recipe, *work.stage("encoded", encoded_from, Encoded, encode_all))
    data.write(tools, folder)
    made = report.of_corpora(data)
    report.write(folder, made)
    report.write_bad_lines(folder, data.corpora)
    report.write_citations(folder, recipe.corpora)
    raw_digests = {}
    for files in inputs.corpora:
        raw_digests[files.name] = dict(zip(files.names, files.digests, strict=True))
    write_manifest(folder, raw_digests)
    return made


def _missing_splits(recipe: Recipe, corpora: Sequence[CorpusState]) -> dict[str, dict[str, int]]:
    """Return the numbers of pairs to draw, for splits without a corpus."""
    sizes = {Role.test: recipe.held_out.test, Role.valid: recipe.held_out.valid}
    there = {(corpus.files.pair, corpus.files.role) for corpus in corpora if corpus.kept}
    missing: dict[str, dict[str, int]] = {}
    for pair in recipe.pairs:
        for role, size in sizes.items():
            if not there & {(pair, role), (reversed_pair(pair), role)}:
                missing.setdefault(pair, {})[role.name] = size
    return missing
