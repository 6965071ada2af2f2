"""All stages, one after the other: from a recipe and raw files to a data directory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import BadLine
from fairseq_mtmoe.data.corpora.cleaning.identification import check_model
from fairseq_mtmoe.data.corpora.data_dir import write_once
from fairseq_mtmoe.data.corpora.engine.assembling import binarize
from fairseq_mtmoe.data.corpora.engine.bad_lines import write_list
from fairseq_mtmoe.data.corpora.engine.digests import Digests, write_manifest
from fairseq_mtmoe.data.corpora.engine.encoding import ForVocabulary
from fairseq_mtmoe.data.corpora.engine.held_out import draw_held_out, remove_held_out
from fairseq_mtmoe.data.corpora.engine.progress import Shown, shown
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus, RawCorpus, Reading
from fairseq_mtmoe.data.corpora.engine.reporting import make_report, write_report
from fairseq_mtmoe.data.corpora.engine.selecting import Selection, find_duplicates
from fairseq_mtmoe.data.corpora.engine.store import WorkFolder, hash_of, plain
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.raw_files import items_of
from fairseq_mtmoe.data.corpora.readers import BAD_REASONS, OnBadLine, check
from fairseq_mtmoe.data.corpora.recipes import Filters, Recipe, Role
from fairseq_mtmoe.data.corpora.vocabulary.training import MOST_PIECES, OPTIONS
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, regular_file

ENGINE = 1
"""Raised whenever the same input would give other training or evaluation data: a directory made before is then out of
date. (`store.FORMAT` is of the blocks in between, which a run makes anew without being asked.)"""

EVALUATION = (Role.valid, Role.test)

OVERWRITING = "to replace it, which does again only what depends on that"
"""What sets `--overwrite` apart from another output folder, for which everything is done."""


@dataclass(frozen=True)
class Inputs:
    """What a run is made from, found on disk."""

    recipe: Recipe
    corpora: list[RawCorpus]
    vocabulary: dict[str, Path]  # `model` and `dictionary`, where they are given
    vocabulary_digests: list[str]
    filters: Filters  # with the place of the model for language identification
    identification: list[str]  # the hash of that model, where there is one

    @property
    def made_from(self) -> dict[str, object]:
        """All that decides about the data directory's bytes, by names that a user knows."""
        values = plain(asdict(self.recipe))
        for name in ("corpora", "path"):
            del values[name]
        if values.pop("known_languages"):
            values["vocabulary"] |= {"model": None, "dictionary": None}  # wherever they are: their hashes decide
            values["known_languages"] = list(self.recipe.known_languages)
        values["filters"]["identify"] = None  # wherever it is: its hash decides
        corpora = {
            f"corpus {corpus.files.name}": hashlib.sha256(repr(_of_corpus(corpus)).encode()).hexdigest()[:12]
            for corpus in self.corpora
        }
        files = {f"vocabulary {name}": sha for name, sha in zip(self.vocabulary, self.vocabulary_digests, strict=True)}
        return {
            "command": "corpora",
            "engine": ENGINE,
            "order": list(corpora),
            "identification": self.identification,
            **values,
            **corpora,
            **files,
        }

    @property
    def made_from_up_to_0_1_11(self) -> dict[str, object]:
        """The same, where a vocabulary without a size had 32,000 pieces: such a directory stays."""
        values = self.made_from
        vocabulary = {**plain(asdict(self.recipe.vocabulary)), "size": self.recipe.vocabulary.size or MOST_PIECES}
        return {**values, "vocabulary": vocabulary}

    @property
    def raw(self) -> dict[str, dict[str, str]]:
        """By corpus the hashes of its files."""
        return {corpus.files.name: dict(zip(corpus.names, corpus.digests, strict=True)) for corpus in self.corpora}


def _of_corpus(corpus: RawCorpus) -> list[object]:
    files = corpus.files
    order = ["turned"] if corpus.is_turned else []
    return [corpus.pair, corpus.role.name, files.format, sorted(files.fields.items()), corpus.digests, *order]


def find_inputs(recipe: Recipe, raw: Path, digests: Digests, allow_unequal: bool = False) -> Inputs:
    """The recipe's files below `raw`, with their hashes.

    Raises:
        UserError: one is missing, and the sentence says where it is from, or is not what the recipe says of it.
    """
    recipe = recipe.found_in(raw)
    files_of = [recipe.files_of(corpus, raw, allow_unequal) for corpus in recipe.corpora]  # all are there
    named = {"model": recipe.vocabulary.model, "dictionary": recipe.vocabulary.dictionary}
    given = {name: regular_file(raw / file, f"the vocabulary's {name}") for name, file in named.items() if file}
    model, filters = None, recipe.filters
    if filters.identify:
        model = regular_file(os.path.abspath(raw / filters.identify), "a model for language identification")
        filters = replace(filters, identify=str(model))
    digests.learn([path for files in files_of for path in files.paths])
    for item in items_of(recipe.corpora):
        digests.check(raw / item.file, item)
    corpora = []
    for corpus, files in zip(recipe.corpora, files_of, strict=True):
        pair = recipe.pair_of(corpus) if corpus.role is Role.train else corpus.pair
        found = tuple(digests.of(files.paths))
        corpora.append(RawCorpus(files, pair, corpus.role, found, tuple(corpus.files)))
    return Inputs(recipe, corpora, given, digests.of(given.values()), filters, digests.of([model] if model else []))


def prepare(
    raw: Path,
    out: Path,
    recipe: Recipe,
    on_bad_line: OnBadLine,
    workers: Workers,
    overwrite: bool = False,
    allow_unequal: bool = False,
) -> dict[str, Any] | None:
    """Make the data directory `out` of raw files.

    What was done stays in the folder `.OUT.work` beside it, so that a run goes on where another ended, however it did.

    Args:
        raw: the folder that the recipe's files are below.
        on_bad_line: which bad lines end the run: see `readers.read`.
        workers: do the blocks.
        overwrite: whether a directory that was made from something else is replaced.
        allow_unequal: whether one of two files for training may have more lines, which are left out.

    Returns:
        the report; None if `out` was made from all this already.

    Raises:
        UserError: a file is missing or holds something else than it should, something cannot be read and is to end the
            run, `out` was made from something else, or another run makes it.
    """
    work = WorkFolder(out)
    with work.held():
        digests = Digests(work.path / "files.json")
        inputs = find_inputs(recipe, raw, digests, allow_unequal)
        digests.keep()
        reports = []

        def fill(folder: Path) -> None:
            with shown(work.path / "log.txt") as progress:
                reports.append(_Run(work, inputs, on_bad_line, workers, progress).fill(folder))

        made_from = inputs.made_from
        about = {**made_from, "format": ENGINE}
        earlier = [_key(inputs.made_from_up_to_0_1_11)]
        if not write_once(out, _key(made_from), fill, about, overwrite, earlier, digests.of_file, OVERWRITING):
            digests.keep()
            _check_left_out(out, inputs.corpora, on_bad_line)
            return None
        work.remove_others()
        report: dict[str, Any] = reports[0]
        return report


def _key(made_from: Mapping[str, object]) -> str:
    return hash_of({"format": ENGINE, "made_from": made_from, "sentencepiece": version("sentencepiece")})


def _check_left_out(out: Path, corpora: Sequence[RawCorpus], on_bad_line: OnBadLine) -> None:
    """See that a data directory was not made without what is to end this run, which may have to be stricter."""
    made = read_json(out / "report.json")["corpora"]
    for corpus in corpora:
        for name, line, reason, excerpt in made[corpus.files.name]["bad_samples"]:
            is_old = reason == "unpaired" and len(corpus.files.paths) == 2 and ".sgm" not in name
            reason = "unequal" if is_old else reason  # which up to 0.1.11 was called so
            if reason in BAD_REASONS:
                check(BadLine(str(corpus.path_of(name)), line, reason, excerpt), on_bad_line, corpus.files)


class _Run:
    """One run through all stages."""

    def __init__(
        self, work: WorkFolder, inputs: Inputs, on_bad_line: OnBadLine, workers: Workers, progress: Shown
    ) -> None:
        self.work = work
        self.inputs = inputs
        self.recipe = inputs.recipe
        self.on_bad_line = on_bad_line
        self.workers = workers
        self.progress = progress

    def fill(self, folder: Path) -> dict[str, Any]:
        """Fill the empty directory `folder`; the report."""
        hands = (self.workers, self.progress)
        if self.inputs.filters.identify:
            check_model(self.inputs.filters.identify)
        evaluated = self._clean(lambda corpus: corpus.role in EVALUATION, "Reading evaluation data")
        evaluation = _by_split(evaluated)
        missing = self._missing_splits(evaluation)
        held_out = {pair: sum(sizes.values()) for pair, sizes in missing.items()}
        trained = self._clean(lambda corpus: corpus.role is Role.train, "Reading and cleaning", held_out)
        selections = {pair: [Selection(one) for one in trained if one.raw.pair == pair] for pair in self.recipe.pairs}
        files = [path for corpus in evaluated for path in corpus.blocks]
        selections = remove_held_out(self.work, selections, files, *hands)
        selections = find_duplicates(self.work, selections, self.recipe.filters, *hands)
        _check_kept(selections)
        if missing:
            drawn = draw_held_out(self.work, selections, missing, self.recipe.seed, *hands)
            own = {pair: list(of_pair.values()) for pair, of_pair in drawn.items()}
            selections = remove_held_out(self.work, selections, chain(*own.values()), *hands, drawn=own)
            _check_kept(selections)
            for pair, of_pair in drawn.items():
                evaluation.setdefault(pair, {}).update({split: [file] for split, file in of_pair.items()})
        return self._binarize(folder, selections, evaluation, evaluated)

    def _binarize(
        self,
        folder: Path,
        selections: dict[str, list[Selection]],
        evaluation: dict[str, dict[str, list[Path]]],
        evaluated: list[CleanedCorpus],
    ) -> dict[str, Any]:
        inputs = self.inputs
        named = [f"{self.recipe.path}: vocabulary: {key}" for key in ("size", "character_coverage")]
        names = OPTIONS if self.recipe.is_shipped else (named[0], named[1])
        vocabulary = ForVocabulary(inputs.vocabulary, inputs.vocabulary_digests, names)
        text = (selections, evaluation, self.workers, self.progress)
        assembly = binarize(folder, self.work, self.recipe, vocabulary, *text)
        everything = [selection for of_pair in selections.values() for selection in of_pair]
        report = make_report(inputs.recipe, assembly, everything, evaluated)
        write_report(folder, report)
        cleaned = {one.raw.files.name: one for one in (*(selection.corpus for selection in everything), *evaluated)}
        in_order = [cleaned[corpus.name] for corpus in self.recipe.corpora]
        write_list(folder, [(one.raw.files.name, one.raw.names, one.bad_lines) for one in in_order])
        write_manifest(folder, inputs.raw)
        return report

    def _clean(
        self, is_wanted: Callable[[RawCorpus], bool], label: str, held_out: Mapping[str, int] | None = None
    ) -> list[CleanedCorpus]:
        """The corpora of some roles, cleaned."""
        reading = Reading(self.work, self.inputs.filters, self.inputs.identification, self.on_bad_line)
        corpora = [corpus for corpus in self.inputs.corpora if is_wanted(corpus)]
        return reading.clean(corpora, self.workers, self.progress, label, held_out)

    def _missing_splits(self, evaluation: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, int]]:
        """How many pairs are to be drawn from training text, for the splits that no corpus is for."""
        sizes = {Role.test.name: self.recipe.held_out.test, Role.valid.name: self.recipe.held_out.valid}
        missing: dict[str, dict[str, int]] = {}
        for pair in self.recipe.pairs:
            both = {*evaluation.get(pair, {}), *evaluation.get("-".join(reversed(pair.split("-"))), {})}
            if absent := {split: size for split, size in sizes.items() if split not in both}:
                missing[pair] = absent
        return missing


def _check_kept(selections: Mapping[str, Sequence[Selection]]) -> None:
    for pair, of_pair in selections.items():
        if not any(selection.summary()["kept"] for selection in of_pair):
            names = ", ".join(selection.corpus.raw.files.name for selection in of_pair)
            raise UserError(
                f"`{pair}` must have a pair to train on, but none of {names} is left without the sentences that are"
                " evaluated on; give the recipe more text for it, or take these corpora out."
            )


def _by_split(corpora: Iterable[CleanedCorpus]) -> dict[str, dict[str, list[Path]]]:
    """Files of evaluation text by language pair and split; of several corpora one behind the other, empty ones left
    out: a split that has no other is as one without a corpus."""
    found: dict[str, dict[str, list[Path]]] = {}
    for corpus in (corpus for corpus in corpora if sum(corpus.sizes)):
        found.setdefault(corpus.raw.pair, {}).setdefault(corpus.raw.role.name, []).extend(corpus.blocks)
    return found
