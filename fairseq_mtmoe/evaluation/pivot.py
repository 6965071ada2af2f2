"""Translation in two steps through a pivot language, by one model or two."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.evaluation import stored
from fairseq_mtmoe.evaluation.text_batches import Forms
from fairseq_mtmoe.evaluation.text_translator import TextTranslator
from fairseq_mtmoe.evaluation.translator import Batch, Decoding, Translation, Translator

OPTIONS = "--lang-pairs", "--pivot"  # options that name the languages of the first step


class Pivot:
    """A pivot language, each step's models (several are an ensemble), and the pairs.

    Args:
        lang: the pivot language.
        first: checkpoints of the first step.
        second: checkpoints of the second step; empty: the same.
        sizes: numbers of sentences by pair.
        data: directory with the vocabulary of older checkpoints of the first step.
        decoding: the search's options.

    Raises:
        UserError: no pair has two other languages, or a model lacks a language or the vocabulary.
    """

    def __init__(
        self, lang: str, first: Sequence[str], second: Sequence[str], sizes: Mapping[str, int], data: str,
        decoding: Decoding,
    ) -> None:  # fmt: skip
        self.lang, self._decoding = lang, decoding
        self._models = [(tuple(first), data), (tuple(second or first), None if second else data)]
        self.pairs = [pair for pair in sizes if lang not in pair.split("-")]
        self.sentences = sum(sizes[pair] for pair in self.pairs)
        if not self.pairs:
            raise_invalid("--pivot", f"another language than those of each pair ({', '.join(sizes)})", lang)
        for step, (paths, folder) in enumerate(self._models):
            forms = Forms([stored.settings_in(path) for path in paths], paths, folder)
            for pair in self.pairs:
                source, target = self._ways(pair)[step]
                forms.check(source, [target], OPTIONS[::-1] if step else OPTIONS)

    def _ways(self, pair: str) -> list[tuple[str, str]]:
        source, _, target = pair.partition("-")
        return [(source, self.lang), (self.lang, target)]

    def name(self, pair: str) -> str:
        """Return a pair's name in two steps, `ha-en-zu`."""
        return "-".join([pair.partition("-")[0], self.lang, pair.partition("-")[2]])

    def beside(
        self, texts: Iterable[Translation], translator: Translator, subset: str, note: Callable[[Batch], object],
        known: Mapping[str, Mapping[int, str]],
    ) -> Iterator[Translation]:  # fmt: skip
        """Yield direct translations, then those of the same sentences in two steps.

        The direct model is released before others are loaded. `note` and `known` are as in `Translator`.
        """
        direct = {}
        for text in texts:
            direct[text.pair] = text
            yield text
        translator.release()
        models: dict[object, TextTranslator] = {}
        for pair in self.pairs:
            name, sources = self.name(pair), translator.sources(pair, subset)
            found = known.get(name)
            if found is None:
                for model in self._models:
                    if model not in models:
                        models[model] = TextTranslator(model[0], self._decoding, model[1])
                found = _through([models[model] for model in self._models], self._ways(pair), sources)
                note({name: found})
            numbers = direct[pair].numbers
            hypotheses = [found.get(number, "") for number in numbers]
            lost = sum(number not in found for number in numbers)
            yield replace(direct[pair], pair=name, hypotheses=hypotheses, untranslated=lost)


def _through(
    steps: Sequence[TextTranslator], ways: Sequence[tuple[str, str]], lines: Sequence[str]
) -> Mapping[int, str]:
    """Translate lines step by step, without those too long for a model."""
    texts = dict(enumerate(lines))
    for step, (source, target) in zip(steps, ways, strict=True):
        pieces = step.forms.source(source).encode(list(texts.values()))
        fitting = [number for number, one in zip(texts, pieces, strict=True) if len(one) <= step.forms.room]
        found = step.translate([texts[number] for number in fitting], source=source, target=target)
        texts = dict(zip(fitting, found, strict=True))
    return texts
