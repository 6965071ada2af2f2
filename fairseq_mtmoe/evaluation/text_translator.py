"""A model that translates or scores text without a data directory.

Search and spelling are those of `mtmoe evaluate`. Sentences into several languages share batches, each with its own
language tokens and ids.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from fairseq.data import data_utils
from fairseq.dataclass.configs import GenerationConfig

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.evaluation import stored
from fairseq_mtmoe.evaluation.beam_search import BeamSearch
from fairseq_mtmoe.evaluation.drawing import Drawing
from fairseq_mtmoe.evaluation.first_words import first_words
from fairseq_mtmoe.evaluation.text_batches import Forms, Hypothesis, Row, Spelled, bits
from fairseq_mtmoe.evaluation.text_scores import Forced, Given, log_probs
from fairseq_mtmoe.evaluation.translator import Decoding, ready

_ARGUMENTS = "source", "target"


class TextTranslator:
    """Models (several are an ensemble) with `decoding`: search, precision and device.

    Raises:
        UserError: a file is no translator's checkpoint, or lacks a vocabulary; see `Forms` for `data`.
    """

    def __init__(self, checkpoints: Sequence[str], decoding: Decoding = Decoding(), data: str | None = None) -> None:  # noqa: B008 (frozen)
        self.decoding = decoding
        states = [stored.read(path) for path in checkpoints]
        self.forms = Forms(states, checkpoints, data)
        self._task = self.forms.task
        self._models: list[Any] = []
        self._load(states, checkpoints)
        self._searches = lru_cache(maxsize=4)(self._search)
        self._spellers = lru_cache(maxsize=None)(self._speller)
        self._searches(decoding, 1)  # its warnings come once, also if several processes search

    @property
    def langs(self) -> list[str]:
        """The model's languages."""
        return self.forms.langs

    def translate(
        self, lines: Iterable[str], *, source: str, target: str, beam: int | None = None, lenpen: float | None = None,
        max_len_a: float | None = None, max_len_b: int | None = None, max_tokens: int | None = None,
        batch_size: int | None = None, sampling: bool = False, sampling_topk: int | None = None,
        seed: int | None = None,
    ) -> list[str]:  # fmt: skip
        """Return the translation of each line, in order; empty lines stay empty.

        Args:
            lines: One or more sentences each; a line that is too long for the model is split at ends of sentences.
            source: Language of the lines, as in `langs`.
            target: Language to translate into.
            beam: Width of the beam, 5 by default; 1 is greedy.
            lenpen: Length penalty, 1 by default: higher values favour longer translations.
            max_len_a: With `max_len_b`, a translation has at most a · source tokens + b tokens; 0 by default.
            max_len_b: See `max_len_a`; 200 by default.
            max_tokens: Tokens in a batch, 12000 by default.
            batch_size: Sentences in a batch.
            sampling: Sample from the model's distribution instead of beam search; `beam` samples, 1 by default, of
                which the most probable is returned.
            sampling_topk: Sample each token from this many most probable ones.
            seed: Seed of the samples, 1 by default; a sentence's translation does not depend on its batch.

        Raises:
            UserError: a language is unknown, an option is out of range, or a line has a sentence that is too long.
        """
        given: dict[str, Any] = dict(
            beam=beam, lenpen=lenpen, max_len_a=max_len_a, max_len_b=max_len_b, max_tokens=max_tokens,
            batch_size=batch_size, sampling_topk=sampling_topk, seed=seed,
        )  # fmt: skip
        if sampling:
            given |= {"sampling": True, "beam": beam or 1}
        decoding = replace(self.decoding, **{name: value for name, value in given.items() if value is not None})
        self.forms.check(source, [target], _ARGUMENTS)
        group = self.forms.group(_texts("lines", lines), source, [target], decoding)
        for number, batch in enumerate(group.batches):
            group.add(number, self.translate_batch(batch, decoding))
        return [hypotheses[0].text for hypotheses in group.finished(target)]

    def score(self, sources: Iterable[str], targets: Iterable[str], *, source: str, target: str) -> list[float]:
        """Return the log-probability of each target, given its source: forced decoding.

        It is the natural logarithm, summed over all tokens that the decoder writes: a language token if the model has
        one, the target's pieces, and the end. An ensemble's probability of a token is the mean of its models'. Two
        empty lines score 0.0, as the empty line translates to itself.

        Raises:
            UserError: a language is unknown, there are not as many targets as sources, or a line is too long.
        """
        found = self.score_tokens(sources, targets, source=source, target=target)
        return [sum((value for _, value in tokens), start=0.0) for tokens in found]

    def score_tokens(
        self, sources: Iterable[str], targets: Iterable[str], *, source: str, target: str
    ) -> list[list[tuple[str, float]]]:
        """Return each target's tokens with their log-probabilities, which `score` sums."""
        texts = _texts("sources", sources), _texts("targets", targets)
        if len(texts[1]) != len(texts[0]):
            rule = f"as many lines as there are sources, {len(texts[0]):,}"
            raise UserError(f"`targets` must be {rule}, but are {len(texts[1]):,} instead.")
        pairs = self.forced(source, target, _ARGUMENTS).group(*texts, self.decoding)
        for number, batch in enumerate(pairs.batches):
            pairs.add(number, self.score_batch(batch))
        symbols = self._task.target_dictionary
        return [[(symbols[token], value) for token, value in tokens] for tokens in pairs.finished()]

    def forced(self, source: str, target: str, names: tuple[str, str] = ("--from", "--to")) -> Forced:
        """Return a maker of batches of pairs (UserError: a language is unknown).

        names: of the arguments, for errors.
        """
        self.forms.check(source, [target], names)
        return Forced(self.forms, source, target, min(model.max_decoder_positions() for model in self._models))

    def score_batch(self, given: Sequence[Given]) -> list[list[float]]:
        """Return the log-probability of each token of a batch's translations.

        The longest source is first.
        """
        target, dictionary = given[0].row.target, self._task.target_dictionary
        sample = self._for_models([one.row for one in given])
        begins = self.forms.first_token(target) if self.forms.replaces_ends else None
        with first_words(self._models, self.forms.ends(target)[1]):
            return log_probs(
                self._models, sample["net_input"], [one.written for one in given],
                dictionary.eos() if begins is None else begins, dictionary.pad(),
            )  # fmt: skip

    def translate_batch(self, rows: Sequence[Row], decoding: Decoding, n_best: int = 1) -> list[list[Hypothesis]]:
        """Return the hypotheses of each row, the best first, at least one."""
        search = self._searches(decoding, n_best)
        sample = self._for_models(rows)
        firsts = [self.forms.first_token(row.target) for row in rows]
        prefixes = None if self.forms.replaces_ends or None in firsts else sample["id"].new_tensor(firsts).unsqueeze(1)
        begins = firsts[0] if self.forms.replaces_ends else None
        _, end = self.forms.ends(rows[0].target)
        with first_words(self._models, end):
            outputs = search.generate(self._models, sample, prefix_tokens=prefixes, bos_token=begins)
        limits = search.limits(sample["net_input"]["src_lengths"]).tolist()
        return [
            [self._hypothesis(self._spellers(row.target), one, limit) for one in output]
            for row, output, limit in zip(rows, outputs, limits, strict=True)
        ]

    @staticmethod
    def _hypothesis(spell: Spelled, output: dict[str, torch.Tensor], limit: int) -> Hypothesis:
        tokens = output["tokens"]
        return Hypothesis(spell(tokens), bits(float(output["score"])), len(tokens), len(tokens) > limit)

    def _for_models(self, rows: Sequence[Row]) -> dict[str, Any]:
        sample: dict[str, Any] = self._task.for_models(self.decoding.moved(self._sample(rows)), self._models)
        return sample

    def _sample(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return a batch of ordered rows, as fairseq's tasks collate it."""
        dictionary, left = self._task.source_dictionary, self._task.args.left_pad_source
        tokens = [torch.tensor(row.tokens) for row in rows]
        net_input = {
            "src_tokens": data_utils.collate_tokens(tokens, dictionary.pad(), dictionary.eos(), left_pad=left),
            "src_lengths": torch.tensor([len(row.tokens) for row in rows]),
        }
        ids = [self.forms.language_id(row.source) for row in rows]
        if None not in ids:
            net_input["src_lang_id"] = torch.tensor(ids).unsqueeze(1)
        tasks = torch.tensor([self._task.task_id(f"{row.source}-{row.target}") for row in rows])
        return {"id": torch.arange(len(rows)), "net_input": net_input, "task_ids": tasks}

    def _search(self, by: Decoding, n_best: int) -> BeamSearch:
        generation = GenerationConfig(beam=by.beam, lenpen=by.lenpen, max_len_a=by.max_len_a, max_len_b=by.max_len_b)
        generator = self._task.build_generator(self._models, generation)
        return (
            Drawing(generator, by.seed, by.sampling_topk, n_best)
            if by.sampling
            else BeamSearch(generator, n_best=n_best)
        )

    def _speller(self, target: str) -> Spelled:
        return self.forms.target(target).speller([self._task.target_dictionary.eos(), *self.forms.language_tokens])

    def _load(self, states: list[dict[str, Any]], paths: Sequence[str]) -> None:
        generation = GenerationConfig(beam=self.decoding.beam)
        while states:  # free each: it is as large as its model
            model = stored.build_model(self._task, states[0], paths[len(self._models)])
            del states[0]
            self._models.append(ready(model, self.decoding, generation))


def _texts(name: str, lines: Iterable[str]) -> list[str]:
    """Return the lines (UserError: one string, or a line that is no string)."""
    found = [] if isinstance(lines, str) else list(lines)
    wrong = [lines] if isinstance(lines, str) else [line for line in found if not isinstance(line, str)]
    if wrong:
        raise_invalid(name, "a list of strings", wrong[0])
    return found
