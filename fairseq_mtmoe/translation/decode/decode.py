"""The one way to translate: rows of tokens in, hypotheses out.

Rows come from a data directory (`translator.py`) or from lines of text (`text_translator.py`). No
layer mixes sentences, so rows of several language pairs share batches: language tokens and ids go
with each row.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.options import option
from fairseq_mtmoe.core.typed import Rule
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.translation.data.vocabulary import End, ends_of
from fairseq_mtmoe.translation.decode import stored
from fairseq_mtmoe.translation.decode.beam_search import BeamSearch, length_limits
from fairseq_mtmoe.translation.decode.limited_vocabulary import limited_vocabulary
from fairseq_mtmoe.translation.decode.stored import COUNT, Inference

MOST_TOKENS = 12000  # in a batch without options, as in fairseq
# Without options thousands of short sentences would share a batch, and their hypotheses would fill
# the memory.
MOST_SENTENCES = 1000


_FROM_0 = Rule("a finite number of at least 0", lambda value: 0 <= value < math.inf)


@dataclass(frozen=True)
class Decoding(Inference):
    """fairseq-generate's options, and BASE layers' routing; None: as trained."""

    beam: int = option(5, None, COUNT)
    lenpen: float = option(1.0, None, Rule("a finite number", math.isfinite))
    max_len_a: float = option(0.0, None, _FROM_0)
    max_len_b: int = option(200, None, _FROM_0)
    base_evaluation: str | None = None
    sampling: bool = False  # draw words instead of searching for the best
    sampling_topk: int | None = option(None, None, COUNT)
    seed: int = 1  # of random draws

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling_topk is not None and not self.sampling:
            raise UserError("`--sampling-topk` requires `--sampling`.")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the decoding of a command's options; others have their defaults."""
        names = {field.name for field in fields(cls)} & options.keys()
        return cls(**{name: options[name] for name in names})

    @property
    def generation(self) -> GenerationConfig:
        """The same options for fairseq's generators."""
        return GenerationConfig(
            beam=self.beam,
            nbest=self.beam,
            lenpen=self.lenpen,
            max_len_a=self.max_len_a,
            max_len_b=self.max_len_b,
            sampling=self.sampling,
            sampling_topk=self.sampling_topk or -1,
        )


@dataclass(frozen=True)
class Direction:
    """Facts of a language pair for a search.

    Attributes:
        pair: such as `en-de`.
        first_word: the target's language token, which each translation begins with.
        first_input: this token, if it is the decoder's first input in the place of an end.
        task_id: of models with a task's experts.
        language_id: of the source, for models with `--enable-lang-ids`.
        end: of the target's part of the vocabulary.
    """

    pair: str
    first_word: int | None = None
    first_input: int | None = None
    task_id: int | None = None
    language_id: int | None = None
    end: End | None = None

    @classmethod
    def of(cls, task: Any, pair: str) -> Self:
        """Return a pair's direction by one of fairseq's tasks or ours."""
        source, _, target = pair.partition("-")
        _, end = ends_of(task.state.state_dict, target)
        task_id = None
        if hasattr(task, "task_id"):
            task_id = task.task_id(pair)
        if not isinstance(task, TranslationMultiSimpleEpochTask):
            return cls(pair, task_id=task_id, end=end)
        manager = task.data_manager
        options = task.args
        token = manager.get_decoder_langtok(target, options.langtoks["main"][1])
        language_id = None
        if options.enable_lang_ids:
            language_id = manager.lang_dict.index(source)
        if options.lang_tok_replacing_bos_eos:
            return cls(pair, None, token, task_id, language_id, end)
        return cls(pair, token, None, task_id, language_id, end)


class Row(NamedTuple):
    """A sentence to translate: the caller's key, and the encoder's input."""

    key: Any
    direction: Direction
    tokens: list[int]


class Hypothesis(NamedTuple):
    """A translation's tokens with its score, a natural logarithm.

    `is_cut`: it reached the limit of tokens.
    """

    tokens: list[int]
    score: float
    is_cut: bool


class RowDecoder:
    """Decodes rows with one model, or with an ensemble of several.

    The task may be fairseq's or ours.
    """

    def __init__(
        self, task: Any, models: Sequence[Any], decoding: Decoding, n_best: int = 1
    ) -> None:
        self.decoding = decoding
        self.n_best = n_best
        self._task = task
        self._models = models
        self._generator = task.build_generator(models, decoding.generation)
        self._search = self._generator
        if not decoding.sampling:
            self._search = BeamSearch(self._generator, n_best=n_best)

    @torch.no_grad()
    def decode(self, rows: Sequence[Row]) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each row of a batch, at least one."""
        direction = rows[0].direction
        sample = batch_of(rows, self._task, self._models, self.decoding)
        prefixes = None
        if direction.first_word is not None:
            words = [row.direction.first_word for row in rows]
            prefixes = sample["id"].new_tensor(words).unsqueeze(1)
        # Draws depend on the seed and the batch, but not on the batches before.
        content = repr([row.tokens for row in rows]).encode()
        with utils.set_torch_seed(self.decoding.seed + zlib.crc32(content)):
            outputs = searched(self._search, self._models, sample, direction, prefixes)
        limits = length_limits(self._generator, sample["net_input"]["src_lengths"]).tolist()
        hypotheses = []
        for output, limit in zip(outputs, limits, strict=True):
            best = []
            for hypothesis in output[: self.n_best]:
                tokens = hypothesis["tokens"].tolist()
                best.append(Hypothesis(tokens, float(hypothesis["score"]), len(tokens) > limit))
            hypotheses.append(best)
        return hypotheses

    def batches(self, rows: Iterable[Row]) -> list[list[Row]]:
        """Return batches of rows of similar lengths, the longest first.

        A batch that does not fit into memory therefore fails at the start.
        """
        # A search has one first input and one vocabulary.
        apart: dict[Any, list[Row]] = {}
        for row in rows:
            apart.setdefault((row.direction.first_input, row.direction.end), []).append(row)
        batches = []
        for together in apart.values():
            lengths = [len(row.tokens) for row in together]
            for indices in batches_of(lengths, self.decoding):
                batches.append([together[index] for index in indices])
        return sorted(batches, key=lambda batch: -len(batch[0].tokens))


def batches_of(lengths: Sequence[int], decoding: Decoding) -> list[list[int]]:
    """Return batches of indices within the limits, each with the longest row first.

    Raises:
        UserError: a row is longer than `max_tokens`.
    """
    most_tokens = decoding.max_tokens
    most_sentences = decoding.batch_size
    if most_tokens is None and most_sentences is None:
        most_tokens = MOST_TOKENS
        most_sentences = MOST_SENTENCES
    longest = max(lengths, default=0)
    if most_tokens is not None and longest > most_tokens:
        rule = f"at least {longest}, the length of the longest sentence"
        raise_invalid("--max-tokens", rule, most_tokens)
    if not lengths:
        return []
    tokens = np.array(lengths)
    order = tokens.argsort(kind="stable")
    batches = data_utils.batch_by_size(order, None, tokens[order], most_tokens, most_sentences)
    return [batch.tolist()[::-1] for batch in batches]


def batch_of(
    rows: Sequence[Row], task: Any, models: Sequence[Any], decoding: Inference
) -> dict[str, Any]:
    """Return a batch, as fairseq's tasks collate it, on the models' device.

    The longest row is first.
    """
    dictionary = task.source_dictionary
    options = getattr(task, "args", None) or task.cfg
    tokens = [torch.tensor(row.tokens) for row in rows]
    net_input = {
        "src_tokens": data_utils.collate_tokens(
            tokens, dictionary.pad(), dictionary.eos(), left_pad=options.left_pad_source
        ),
        "src_lengths": torch.tensor(list(map(len, tokens))),
    }
    sample: dict[str, Any] = {"id": torch.arange(len(rows)), "net_input": net_input}
    if rows[0].direction.language_id is not None:
        language_ids = [[row.direction.language_id] for row in rows]
        net_input["src_lang_id"] = torch.tensor(language_ids)
    if rows[0].direction.task_id is not None:
        sample["task_ids"] = torch.tensor([row.direction.task_id for row in rows])
    sample = decoding.to_device(sample)
    if hasattr(task, "for_models"):
        sample = task.for_models(sample, models)
    return sample


def searched(
    search: Any,
    models: Sequence[Any],
    sample: dict[str, Any],
    direction: Direction,
    prefixes: Tensor | None,
) -> list[list[dict[str, Tensor]]]:
    """Return a search's outputs of rows with one first input and one vocabulary."""
    with limited_vocabulary(models, direction.end, padded=not isinstance(search, BeamSearch)):
        outputs: list[list[dict[str, Tensor]]] = search.generate(
            models, sample, prefix_tokens=prefixes, bos_token=direction.first_input
        )
    return outputs


def ready(model: Any, decoding: Decoding) -> Any:
    """Return the model ready to generate with these options."""
    if decoding.base_evaluation is not None:
        for gate in base_gates(model):
            gate.evaluation = decoding.base_evaluation
    stored.placed(model, decoding.fp16, decoding.bf16, decoding.use_cuda)
    model.prepare_for_inference_(
        OmegaConf.structured(FairseqConfig(generation=decoding.generation))
    )
    return model
