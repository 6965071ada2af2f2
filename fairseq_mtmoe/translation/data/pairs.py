"""Finding, checking and loading the data of language pairs.

A pair may be in several shards (`--data a:b:c`). All sizes are known at the start, from the
`sizes.json` of `mtmoe prepare corpora` or from index files, so that sampling follows the whole data
whichever shard is loaded.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq import utils
from fairseq.data import (
    AppendTokenDataset,
    Dictionary,
    FairseqDataset,
    StripTokenDataset,
    TruncateDataset,
    data_utils,
)
from fairseq.data.multilingual.multilingual_data_manager import MultilingualDatasetManager

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.training.indexed_files import check_ids, count_sentences
from fairseq_mtmoe.translation.data.file_names import INDEX, find_side, side_name
from fairseq_mtmoe.translation.data.recorded_sizes import FILE_NAME as SIZES_FILE
from fairseq_mtmoe.translation.data.recorded_sizes import SPLIT as RECORDED_SPLIT
from fairseq_mtmoe.translation.data.recorded_sizes import read_sizes


class DataManager(MultilingualDatasetManager):
    """fairseq's data manager with `--encoder-langtok-last`.

    `--truncate-source` leaves room for the end and the language token.
    """

    def src_dataset_tranform_func(
        self, src_lang: str, tgt_lang: str, dataset: Any, spec: str | None = None
    ) -> Any:
        """Put the language token before the source or after its end; called by fairseq.

        fairseq truncates a source to the longest without the token, and leaves out what is longer
        with it.
        """
        if (
            self.args.truncate_source
            and spec is not None
            and not self.args.lang_tok_replacing_bos_eos
        ):
            end = self.get_source_dictionary(src_lang).eos()
            room = self.args.max_source_positions - 2  # for the end and the language token
            truncated = TruncateDataset(StripTokenDataset(dataset, end), room)
            dataset = AppendTokenDataset(truncated, end)
        if not self.args.encoder_langtok_last or spec is None:
            return super().src_dataset_tranform_func(src_lang, tgt_lang, dataset, spec)
        return AppendTokenDataset(dataset, self.get_encoder_langtok(src_lang, tgt_lang, spec))


@dataclass(frozen=True)
class PairSource:
    """A language pair of one kind of data, with its shards' folders.

    The kind is "main", or one of `--extra-data`.
    """

    category: str
    source: str
    target: str
    folders: tuple[str, ...]
    recorded: dict[str, int]  # sentences by folder, where a record says them

    @property
    def name(self) -> str:
        """The language pair, as `en-de`."""
        return f"{self.source}-{self.target}"

    @property
    def key(self) -> str:
        """Return fairseq's name of the dataset, as in `--sampling-weights`: `main:en-de`."""
        return f"{self.category}:{self.name}"


def sentences_of(prefix: str, dictionary: Dictionary | None = None, impl: str | None = None) -> int:
    """Return the number of sentences in a binarized file or a text file.

    A text file needs `--dataset-impl raw`.
    """
    count = count_sentences(prefix, impl)
    if count is None:
        try:
            count = len(data_utils.load_indexed_dataset(prefix, dictionary, impl))
        except Exception as error:  # formats that only fairseq knows
            raise UserError(f"`{prefix}` cannot be loaded by fairseq: {error}.") from error
    return count


def training_sizes(manager: MultilingualDatasetManager) -> dict[str, int]:
    """Return each pair's training sentences over all kinds of data.

    The result is empty if a pair has no training data.
    """
    try:
        # fairseq combines all training data in this way.
        loader = PairLoader(manager, manager.args.train_subset, combine=True)
    except UserError:  # a directory with test data only
        return {}
    sizes = Counter[str]()
    for pair, shards in zip(loader.pairs, loader.shard_sizes, strict=True):
        sizes[pair.name] += sum(shards)
    return sizes


class PairLoader:
    """Loader of one split's language pairs.

    With `combine`, `train1`, `train2` and so on belong to `train`.
    """

    def __init__(
        self, manager: MultilingualDatasetManager, split: str, combine: bool = False
    ) -> None:
        self.manager = manager
        self.split = split
        self.combine = combine
        # Only this split has shards and extra data.
        self.is_training = split == manager.args.train_subset
        folders, names = manager.get_data_paths_and_lang_pairs(split)
        self.pairs: list[PairSource] = []
        self.keys: list[str] = []
        self.shard_sizes: list[list[int]] = []
        for category, paths in folders.items():
            for name in names.get(category, ()):
                pair = self._find_pair(category, name, utils.split_paths(paths))
                self.pairs.append(pair)
                self.keys.append(pair.key)
                sizes = [pair.recorded.get(f) or self._read_size(pair, f) for f in pair.folders]
                self.shard_sizes.append(sizes)
        self._loaded: dict[tuple[int, int], FairseqDataset] = {}

    def load(self, shards: Sequence[int] | None = None) -> list[FairseqDataset]:
        """Return each pair's dataset from these shards (default: the first).

        The last ones loaded are cached.
        """
        wanted = list(enumerate(shards or [0] * len(self.pairs)))
        self._loaded = {key: self._loaded.get(key) or self._load(*key) for key in wanted}
        return list(self._loaded.values())

    def _find_pair(self, category: str, pair: str, folders: list[str]) -> PairSource:
        source, target = pair.split("-")
        recorded = self._recorded_sizes(source, target, folders)
        holding = list(recorded)
        if not holding:
            for folder in folders:
                if None not in self._sides(folder, source, target):
                    holding.append(folder)
        if not holding:
            raise UserError(
                f"The pair {pair} has no {self.split} data in {', '.join(folders)}: neither "
                f"{side_name(self.split, pair, source)}{INDEX} nor the reversed pair's exists."
            )
        if not self.is_training:
            del holding[1:]
        return PairSource(category, source, target, tuple(holding), recorded)

    def _sides(
        self, folder: str, source: str, target: str, number: int = 0
    ) -> tuple[str | None, str | None]:
        """Return the files of a pair's source and target in a continuation of the split."""
        names = folder, f"{self.split}{number or ''}", source, target
        return find_side(*names, source), find_side(*names, target)

    def _recorded_sizes(self, source: str, target: str, folders: list[str]) -> dict[str, int]:
        """Return a pair's recorded sentences in each folder that has it.

        The result is empty without a record.
        """
        if (
            not self.is_training
            or self.split != RECORDED_SPLIT
            or self._has_more(source, target, folders[0])
        ):
            return {}
        recorded = {}
        for folder, sizes in read_sizes(folders).items():
            if size := sizes.get(f"{source}-{target}") or sizes.get(f"{target}-{source}"):
                recorded[folder] = size
        return recorded

    def _files(self, pair: PairSource, folder: str) -> Iterator[tuple[str, str]]:
        """Yield source and target file of the split.

        With `combine`, those of its continuations follow.
        """
        for number in itertools.count():
            source, target = self._sides(folder, pair.source, pair.target, number)
            if source is None or target is None:
                break
            yield source, target
            if not self.combine:
                break

    def _read_size(self, pair: PairSource, folder: str) -> int:
        total = 0
        impl = self.manager.args.dataset_impl
        for number, (source, target) in enumerate(self._files(pair, folder)):
            sentences = sentences_of(source, self.manager.get_source_dictionary(pair.source), impl)
            others = sentences_of(target, self.manager.get_target_dictionary(pair.target), impl)
            if sentences != others:
                rule = f"must hold the same number of sentences, but hold {sentences} and {others}"
                raise UserError(f"`{source}` and `{target}` {rule}.")
            # fairseq upsamples the primary data only if the split has continuations.
            if not number and self._has_more(pair.source, pair.target, folder):
                sentences *= int(self.manager.args.upsample_primary)
            total += sentences
        return total

    @property
    def has_more(self) -> bool:
        """Whether any pair has continuations of the split, such as `train1`, to combine."""
        return any(self._has_more(pair.source, pair.target, pair.folders[0]) for pair in self.pairs)

    def _has_more(self, source: str, target: str, folder: str) -> bool:
        """Return whether the split has continuations that are combined with it."""
        return self.combine and self._sides(folder, source, target, 1)[0] is not None

    def _check(self, pair: PairSource, folder: str) -> None:
        """Check a pair's files before fairseq maps them (UserError).

        An error is a wrong size, a wrong id or a damaged file.
        """
        args = self.manager.args
        recorded = pair.recorded.get(folder)
        if recorded is not None and (size := self._read_size(pair, folder)) != recorded:
            raise UserError(
                f"`{folder}` must have {recorded} training sentences of {pair.name}, as "
                f"{SIZES_FILE} in the first shard says, but has {size}; copy the missing files, "
                "or prepare the data again."
            )
        for source, target in self._files(pair, folder):
            source_dictionary = self.manager.get_source_dictionary(pair.source)
            check_ids(source, len(source_dictionary), args.dataset_impl)
            target_dictionary = self.manager.get_target_dictionary(pair.target)
            check_ids(target, len(target_dictionary), args.dataset_impl)
        alignments = os.path.join(folder, f"{self.split}.align.{pair.name}")
        if args.load_alignments and os.path.lexists(alignments + INDEX):
            count_sentences(alignments, args.dataset_impl)

    def _load(self, number: int, shard: int) -> FairseqDataset:
        manager = self.manager
        pair = self.pairs[number]
        self._check(pair, pair.folders[shard])
        dataset: Any = manager.load_a_dataset(
            split=self.split,
            data_path=pair.folders[shard],
            src=pair.source,
            src_dict=manager.get_source_dictionary(pair.source),
            tgt=pair.target,
            tgt_dict=manager.get_target_dictionary(pair.target),
            combine=self.combine,
            # `--enable-reservsed-directions-shared-datasets` would share sides that already have
            # the other direction's language tokens, and saves no memory, as files are
            # memory-mapped.
            langpairs_sharing_datasets=None,
            data_category=pair.category,
            langtok_spec=manager.args.langtoks.get(pair.category, (None, None)),
        )
        expected = self.shard_sizes[number][shard]
        if len(dataset) != expected:  # fairseq prefers a text file beside a binarized one
            raise UserError(
                f"The {self.split} data of {pair.name} in {pair.folders[shard]} must hold "
                f"{expected} sentences as its index says, but holds {len(dataset)}."
            )
        return dataset
