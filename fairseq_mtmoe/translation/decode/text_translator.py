"""A model that translates or scores text without a data directory.

Search and spelling are those of `mtmoe evaluate`. Sentences into several languages share batches,
each with its own language tokens and ids.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.translation.decode import stored
from fairseq_mtmoe.translation.decode.decode import (
    Decoding,
    Hypothesis,
    Row,
    RowDecoder,
    batch_of,
    ready,
)
from fairseq_mtmoe.translation.decode.limited_vocabulary import limited_vocabulary
from fairseq_mtmoe.translation.decode.lines import Lines
from fairseq_mtmoe.translation.decode.text_batches import (
    LinePart,
    TextCodec,
    Translated,
    bits,
    joined,
)
from fairseq_mtmoe.translation.decode.text_scores import Forced, Given, log_probs

_ARGUMENTS = "source", "target"

DecodeAll = Callable[[Sequence[Sequence[Row]]], Iterator[list[list[Hypothesis]]]]


class TextTranslator:
    """Translates and scores text with one model, or with an ensemble of several.

    Args:
        checkpoints: the models' files.
        decoding: options of the search, precision and device.

    Raises:
        UserError: a file is no translator's checkpoint, or lacks a vocabulary.
    """

    def __init__(
        self,
        checkpoints: Sequence[str],
        decoding: Decoding = Decoding(),  # noqa: B008 (frozen)
    ) -> None:
        self.decoding = decoding
        states = [stored.read(path) for path in checkpoints]
        self.codec = TextCodec(states, checkpoints)
        self._task = self.codec.task
        self._models: list[Any] = []
        for path in checkpoints:  # frees each state: it is as large as its model
            model = stored.build_model(self._task, states.pop(0), path)
            self._models.append(ready(model, self.decoding))
        self._decoders = lru_cache(maxsize=4)(partial(RowDecoder, self._task, self._models))
        self._spellers = cache(self._speller)

    def decoder(self, decoding: Decoding, n_best: int = 1) -> RowDecoder:
        """Return a decoder with these options; the last four decoders are cached."""
        return self._decoders(decoding, n_best)

    @property
    def langs(self) -> list[str]:
        """The model's languages."""
        return self.codec.langs

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Sources and targets that the model was trained on; all if it names none."""
        return self.codec.directions

    def translate(
        self,
        lines: Iterable[str],
        *,
        source: str,
        target: str,
        **options: Any,
    ) -> list[str]:
        """Return the translation of each line, in order; empty lines stay empty.

        Args:
            lines: One or more sentences each; a line that is too long for the model is split at
                ends of sentences.
            source: Language of the lines, as in `langs`.
            target: Language to translate into.
            options: Options of the search:

                - beam: Width of the beam, 5 by default; 1 is greedy search.
                - lenpen: Length penalty, 1 by default; higher values favour longer translations.
                - max_len_a: With `max_len_b`, limits a translation to a · (source tokens) + b
                  tokens; 0 by default.
                - max_len_b: See `max_len_a`; 200 by default.
                - max_tokens: Tokens in a batch, 12000 by default.
                - batch_size: Sentences in a batch.
                - sampling: Sample from the model's distribution instead of beam search. The model
                  draws `beam` samples, 1 by default, and the most probable is returned.
                - sampling_topk: Sample each token from this number of most probable tokens.
                - seed: Seed of the samples, 1 by default. Samples also depend on the batches.

        Raises:
            UserError: a language is unknown, an option is out of range, or a line has a sentence
                that is too long.
        """
        options = {name: value for name, value in options.items() if value is not None}
        if options.get("sampling"):
            options.setdefault("beam", 1)
        decoder = self.decoder(replace(self.decoding, **options))
        self.codec.check(source, [target], _ARGUMENTS)
        texts = Lines(_checked_texts("lines", lines))
        translated = self.translated(texts, source, [target], decoder)
        return [best.text for best, *_ in translated[target]]

    def translated(
        self,
        lines: Lines,
        source: str,
        targets: Sequence[str],
        decoder: RowDecoder,
        decode_all: DecodeAll | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> dict[str, list[list[Translated]]]:
        """Return the best translations of each line into each target, the best first.

        Args:
            lines: of the text; an empty one has an empty translation.
            source: language of the lines.
            targets: languages to translate into.
            decoder: of this translator.
            decode_all: decodes batches, in their order; by default in this process.
            advance: called with the number of lines in a batch.
        """
        batches = decoder.batches(self.codec.rows(lines, source, targets))
        outputs = (decode_all or partial(map, decoder.decode))(batches)
        texts: dict[LinePart, list[Translated]] = {}
        for batch, hypotheses in zip(batches, outputs, strict=True):
            for row, best in zip(batch, hypotheses, strict=True):
                texts[row.key] = self._spelled(row.key.target, best)
            advance(sum(row.key.part == 0 for row in batch))
        parts = defaultdict(list)
        for (target, line, _), several in sorted(texts.items()):
            parts[target, line].append(several)
        numbers = range(len(lines.lines))
        translated = {}
        for target in targets:
            translated[target] = [_best_of_line(parts[target, line], decoder) for line in numbers]
        return translated

    def score(
        self, sources: Iterable[str], targets: Iterable[str], *, source: str, target: str
    ) -> list[float]:
        """Return the log-probability of each target, given its source: forced decoding.

        It is the natural logarithm, summed over all tokens that the decoder writes: a language
        token if the model has one, the target's pieces, and the end. An ensemble's probability of a
        token is the mean of its models'. Two empty lines score 0.0, as the empty line translates to
        itself.

        Raises:
            UserError: a language is unknown, there are not as many targets as sources, or a line is
                too long.
        """
        totals = []
        for tokens in self.score_tokens(sources, targets, source=source, target=target):
            totals.append(sum((value for _, value in tokens), start=0.0))
        return totals

    def score_tokens(
        self, sources: Iterable[str], targets: Iterable[str], *, source: str, target: str
    ) -> list[list[tuple[str, float]]]:
        """Return each target's tokens with their log-probabilities, which `score` sums."""
        texts = _checked_texts("sources", sources), _checked_texts("targets", targets)
        if len(texts[1]) != len(texts[0]):
            rule = f"as many lines as there are sources, {len(texts[0]):,}"
            raise UserError(f"`targets` must be {rule}, but are {len(texts[1]):,} instead.")
        sides = Lines(texts[0], "the sources"), Lines(texts[1], "the targets")
        forced = self.forced(source, target, _ARGUMENTS)
        scores = forced.scores(*sides, self.decoding, partial(map, self.score_batch))
        symbols = self._task.target_dictionary
        named = []
        for tokens in scores:
            named.append([(symbols[token], value) for token, value in tokens])
        return named

    def forced(
        self, source: str, target: str, names: tuple[str, str] = ("--from", "--to")
    ) -> Forced:
        """Return the scorer of pairs of lines (UserError: a language is unknown).

        names: of the arguments, for errors.
        """
        self.codec.check(source, [target], names)
        longest = min(model.max_decoder_positions() for model in self._models)
        return Forced(self.codec, source, target, longest)

    def score_batch(self, batch: Sequence[Given]) -> list[list[float]]:
        """Return the log-probability of each token of a batch's translations.

        The longest source is first.
        """
        direction = batch[0].row.direction
        dictionary = self._task.target_dictionary
        sample = batch_of([pair.row for pair in batch], self._task, self._models, self.decoding)
        begins = direction.first_input or dictionary.eos()
        written = [pair.written for pair in batch]
        with limited_vocabulary(self._models, direction.end):
            return log_probs(self._models, sample["net_input"], written, begins, dictionary.pad())

    def _spelled(self, target: str, hypotheses: Sequence[Hypothesis]) -> list[Translated]:
        spell = self._spellers(target)
        texts = []
        for best in hypotheses:
            text = spell(best.tokens)
            score = bits(best.score)
            texts.append(Translated(text, score, len(best.tokens), best.is_cut))
        return texts

    def _speller(self, target: str) -> Callable[[Any], str]:
        ignored = [self._task.target_dictionary.eos(), *self.codec.language_tokens]
        return self.codec.target(target).speller(ignored)


def _best_of_line(parts: Sequence[Sequence[Translated]], decoder: RowDecoder) -> list[Translated]:
    """Join the translations of a line's parts.

    The best of each, the second best of each, and so on.
    """
    lines = []
    for rank in range(decoder.n_best):
        chosen = [texts[min(rank, len(texts) - 1)] for texts in parts]
        lines.append(joined(chosen, decoder.decoding.lenpen))
    return lines


def _checked_texts(name: str, lines: Iterable[str]) -> list[str]:
    """Return the lines (UserError: one string, or a line that is no string)."""
    texts = list(lines)
    if isinstance(lines, str) or not all(isinstance(line, str) for line in texts):
        raise_invalid(name, "a list of strings", lines)
    return texts
