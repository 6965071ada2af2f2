"""All stages, one after the other: from a recipe and raw files to a data directory."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from fairseq_mtmoe.data.corpora import report
from fairseq_mtmoe.data.corpora.blocks import BAD_REASONS, BadLine, OnBadLine, check
from fairseq_mtmoe.data.corpora.cleaning.languages import check_model
from fairseq_mtmoe.data.corpora.data_dir import write_manifest, written_once
from fairseq_mtmoe.data.corpora.engine import selecting
from fairseq_mtmoe.data.corpora.engine.assembling import binarize
from fairseq_mtmoe.data.corpora.engine.jobs import RawCorpus, write_list
from fairseq_mtmoe.data.corpora.engine.reading import Rules, clean
from fairseq_mtmoe.data.corpora.engine.selecting import Selection, Selections
from fairseq_mtmoe.data.corpora.engine.store import WorkFolder, hash_of, plain
from fairseq_mtmoe.data.corpora.engine.workers import Tools, Workers, shown
from fairseq_mtmoe.data.corpora.raw_files import Digests, check_file, items_of
from fairseq_mtmoe.data.corpora.recipes.recipe import SOURCE_FILES, Recipe
from fairseq_mtmoe.data.corpora.recipes.schema import MOST_PIECES, Filters, Role
from fairseq_mtmoe.data.corpora.vocabulary.pieces import expect_tag
from fairseq_mtmoe.data.corpora.vocabulary.training import OPTIONS
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, regular_file

# Raised whenever the same input would give other training or evaluation data: a directory made before is then out of
# date. (`store.FORMAT` is of the blocks in between, which a run makes anew without being asked.)
ENGINE = 1
OVERWRITING = "to replace it, which repeats only the steps that depend on that"  # end of a message


@dataclass(frozen=True)
class Inputs:
    """The inputs of a run: recipe, files and their hashes."""

    recipe: Recipe
    corpora: list[RawCorpus]
    vocabulary: dict[str, Path]  # `model` and `dictionary`, where they are given
    vocabulary_digests: list[str]
    filters: Filters  # with the path of the model for language identification
    identification: list[str]  # the hash of that model, where there is one

    @property
    def made_from(self) -> dict[str, object]:
        """Return all settings and inputs that affect the data directory, by names that a user knows."""
        values = plain(asdict(self.recipe))
        for name in ("corpora", "path", "of_sources"):
            del values[name]
        if not values["codes"]:
            del values["codes"]
        if values.pop("known_languages"):
            values["vocabulary"] |= {"model": None, "dictionary": None}  # wherever they are: their hashes decide
            values["known_languages"] = list(self.recipe.known_languages)
        values["filters"]["identify"] = None  # wherever it is: its hash decides
        corpora = {}
        for corpus in self.corpora:
            files, order = corpus.files, ["turned"] if corpus.is_turned else []
            fields = sorted(files.fields.items())
            order += [f"{corpus.is_synthetic} {corpus.weight}"] if corpus.is_synthetic or corpus.weight > 1 else []
            about = [corpus.pair, corpus.role.name, files.format, fields, corpus.digests, *order]
            corpora[f"corpus {files.name}"] = hashlib.sha256(repr(about).encode()).hexdigest()[:12]
        given = {f"vocabulary {name}": sha for name, sha in zip(self.vocabulary, self.vocabulary_digests, strict=True)}
        return {
            "command": "corpora",
            "engine": ENGINE,
            "order": list(corpora),
            "identification": self.identification,
            **values,
            **corpora,
            **given,
        }

    @property
    def keys(self) -> list[str]:
        """Return the directory's fingerprint, and that of versions up to 0.1.11 (default size 32,000), still valid."""
        vocabulary = {**plain(asdict(self.recipe.vocabulary)), "size": self.recipe.vocabulary.size or MOST_PIECES}
        made_from = (self.made_from, {**self.made_from, "vocabulary": vocabulary})
        about = {"format": ENGINE, "sentencepiece": version("sentencepiece")}
        return [hash_of({**about, "made_from": values}) for values in made_from]


def find_inputs(recipe: Recipe, raw: Path, digests: Digests, allow_unequal: bool = False) -> Inputs:
    """Return the recipe's files below `raw` with their hashes (UserError: one is missing or differs)."""
    recipe = recipe.found_in(raw)
    recipe.check_synthetic()
    files_of = [recipe.files_of(corpus, raw, allow_unequal) for corpus in recipe.corpora]  # all are there
    named = {"model": recipe.vocabulary.model, "dictionary": recipe.vocabulary.dictionary, **recipe.of_sources}
    given = {name: regular_file(raw / file, f"the vocabulary's {name}") for name, file in named.items() if file}
    for name in ("dictionary", SOURCE_FILES[1]) if any(corpus.is_synthetic for corpus in recipe.corpora) else ():
        if name in given:
            expect_tag(given[name])
    model, filters = None, recipe.filters
    if filters.identify:
        model = regular_file(os.path.abspath(raw / filters.identify), "a model for language identification")
        filters = replace(filters, identify=str(model))
    digests.learn([path for files in files_of for path in files.paths])
    for item in items_of(recipe.corpora):
        check_file(raw / item.file, item, digests.of_file)
    corpora = []
    for corpus, files in zip(recipe.corpora, files_of, strict=True):
        pair = recipe.pair_of(corpus) if corpus.role is Role.train else corpus.pair
        found = tuple(digests.of(files.paths))
        names, how_often = tuple(corpus.files), corpus.weight
        corpora.append(RawCorpus(files, pair, corpus.role, found, names, corpus.is_synthetic, how_often))
    return Inputs(recipe, corpora, given, digests.of(given.values()), filters, digests.of([model] if model else []))


def prepare(
    raw: Path,
    out: Path,
    recipe: Recipe,
    on_bad_line: OnBadLine,
    workers: Workers,
    overwrite: bool = False,
    allow_unequal: bool = False,
) -> report.Report | None:
    """Make the data directory `out` from raw files; return its report, or None if it is up to date.

    The folder `.OUT.work` keeps finished steps for the next run. `on_bad_line` is as in `readers.read`; `overwrite`
    replaces a directory of other inputs; with `allow_unequal` one of two training files may have more lines.
    """
    work = WorkFolder(out)
    with work.held():
        digests = Digests(work.path / "files.json")
        inputs = find_inputs(recipe, raw, digests, allow_unequal)
        digests.keep()
        key, *earlier = inputs.keys
        about = {**inputs.made_from, "format": ENGINE}
        with written_once(out, key, about, overwrite, earlier, digests.of_file, OVERWRITING) as folder:
            if folder is not None:
                with shown(work.path / "log.txt") as progress:
                    made = _fill(folder, Tools(work, workers, progress), inputs, on_bad_line)
        if folder is None:
            digests.keep()
            _check_left_out(out, inputs.corpora, on_bad_line)
            return None
        work.remove_others()
        return made


def _check_left_out(out: Path, corpora: Sequence[RawCorpus], on_bad_line: OnBadLine) -> None:
    """Check a finished directory's bad lines by this run's options, which may be stricter (UserError)."""
    made = read_json(out / "report.json")["corpora"]
    for corpus in corpora:
        paths = dict(zip(corpus.names, corpus.files.paths, strict=True))
        for name, line, reason, excerpt in made[corpus.files.name]["bad_samples"]:
            is_old = reason == "unpaired" and len(paths) == 2 and ".sgm" not in name
            reason = "unequal" if is_old else reason  # the name up to 0.1.11
            if reason in BAD_REASONS:
                check(BadLine(str(paths.get(name, name)), line, reason, excerpt), on_bad_line, corpus.files)


def _fill(folder: Path, tools: Tools, inputs: Inputs, on_bad_line: OnBadLine) -> report.Report:
    """Fill the empty directory `folder`; return the report."""
    recipe = inputs.recipe
    if inputs.filters.identify:
        check_model(inputs.filters.identify)
    rules = Rules(inputs.filters, inputs.identification, on_bad_line)
    others = [corpus for corpus in inputs.corpora if corpus.role is not Role.train]
    evaluated = clean(tools, others, rules, "Reading evaluation data")
    evaluation: dict[str, dict[str, list[Path]]] = {}
    for corpus in (corpus for corpus in evaluated if sum(corpus.sizes)):  # an empty corpus counts as missing
        evaluation.setdefault(corpus.raw.pair, {}).setdefault(corpus.raw.role.name, []).extend(corpus.blocks)
    missing = _missing_splits(recipe, evaluation)
    rules = replace(rules, held_out={pair: sum(sizes.values()) for pair, sizes in missing.items()})
    corpora = [corpus for corpus in inputs.corpora if corpus.role is Role.train]
    trained = clean(tools, corpora, rules, "Reading and cleaning")
    selections = {pair: [Selection(one) for one in trained if one.raw.pair == pair] for pair in recipe.pairs}
    selections = selecting.remove_held_out(tools, selections, [path for corpus in evaluated for path in corpus.blocks])
    selections = selecting.find_duplicates(tools, selections, recipe.filters)
    _check_kept(selections)
    if missing:
        real = {pair: [one for one in of if not one.corpus.raw.is_synthetic] for pair, of in selections.items()}
        drawn = selecting.draw_held_out(tools, real, missing, recipe.seed)
        own = {pair: list(of_pair.values()) for pair, of_pair in drawn.items()}
        selections = selecting.remove_held_out(tools, selections, chain(*own.values()), own)
        _check_kept(selections)
        for pair, of_pair in drawn.items():
            evaluation.setdefault(pair, {}).update({split: [file] for split, file in of_pair.items()})
    named = [f"{recipe.path}: vocabulary: {key}" for key in ("size", "character_coverage")]
    names = OPTIONS if recipe.takes_options else (named[0], named[1])
    assembly = binarize(folder, tools, recipe, inputs.vocabulary, names, selections, evaluation)
    everything = [selection for of_pair in selections.values() for selection in of_pair]
    made = report.of_corpora(assembly, everything, evaluated)
    report.write(folder, made)
    stages = {one.raw.files.name: one.stage for one in (*trained, *evaluated)}
    write_list(folder, [(corpus, stages[corpus.files.name]) for corpus in inputs.corpora])
    raw = {corpus.files.name: dict(zip(corpus.names, corpus.digests, strict=True)) for corpus in inputs.corpora}
    write_manifest(folder, raw)
    return made


def _missing_splits(recipe: Recipe, evaluation: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, int]]:
    """Return the number of pairs to draw from training text, for splits without a corpus."""
    sizes = {Role.test.name: recipe.held_out.test, Role.valid.name: recipe.held_out.valid}
    missing: dict[str, dict[str, int]] = {}
    for pair in recipe.pairs:
        both = {*evaluation.get(pair, {}), *evaluation.get("-".join(reversed(pair.split("-"))), {})}
        if absent := {split: size for split, size in sizes.items() if split not in both}:
            missing[pair] = absent
    return missing


def _check_kept(selections: Selections) -> None:
    for pair, of_pair in selections.items():
        if not any(selection.summary()["kept"] for selection in of_pair):
            names = ", ".join(selection.corpus.raw.files.name for selection in of_pair)
            raise UserError(
                f"`{pair}` must have training pairs, but {names} have none besides validation and test sentences;"
                " add text to the recipe, or remove these corpora."
            )
