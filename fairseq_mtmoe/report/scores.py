"""BLEU, chrF++, spBLEU and others of a language pair, with sacreBLEU's signatures.

spBLEU is BLEU over the pieces of a SentencePiece model (Goyal et al. 2022, "The Flores-101
evaluation benchmark").
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_mtmoe.core.digest import digest_of
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import read_bytes
from fairseq_mtmoe.core.sentencepieces import load_sentencepiece
from fairseq_mtmoe.core.typed import Name, Text, between, structured

# sacreBLEU's tokenisers of languages that its default cannot split
_TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}
SPBLEU = "spBLEU"
FIELDS = {
    "BLEU": ("bleu", "bleu_signature"),
    "chrF++": ("chrf", "chrf_signature"),
    SPBLEU: ("spbleu", "spbleu_signature"),
}
"""Fields with the score and the signature of each of sacreBLEU's metrics."""
OPTIONAL = (
    "more_references",
    "hypotheses_sha256",
    "spbleu",
    "spbleu_signature",
    "metrics",
    "metric_signatures",
)
"""Fields that files leave out where they are empty."""
Count = Annotated[int, between(0, 10**12)]
Figure = Annotated[float, between(-1000, 1000)]


@dataclass(frozen=True)
class PairScore:
    """Scores of a pair on one test set, from 0 to 100."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    pair: Name
    tier: Text  # one of TIERS, or "" if unknown
    sentences: Count
    bleu: Figure
    chrf: Figure  # chrF++: with words up to bigrams
    bleu_signature: Text
    chrf_signature: Text
    references: Text = ""  # the references' file
    more_references: Count = 0  # number of further references of every sentence, or of some
    altered_references: Count = 0  # references that lost words outside the dictionary
    untranslated: Count = 0  # sentences longer than the model's positions
    hypotheses_sha256: Text = ""  # of the file of hypotheses
    spbleu: Figure | None = None  # BLEU over the pieces of a SentencePiece model
    spbleu_signature: Text = ""
    # Other metrics than sacreBLEU's, such as COMET, from 0 to 1.
    metrics: Mapping[Text, Figure] = field(default_factory=dict)
    metric_signatures: Mapping[Text, Text] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """The scores by metric."""
        figures = {metric: getattr(self, name) for metric, (name, _) in FIELDS.items()}
        if self.spbleu is None:
            del figures[SPBLEU]
        return {**figures, **self.metrics}

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures by metric, where there is one."""
        signatures = {metric: getattr(self, name) for metric, (_, name) in FIELDS.items()}
        signatures |= self.metric_signatures
        return {metric: signature for metric, signature in signatures.items() if signature}

    @property
    def remarks(self) -> list[str]:
        """Remarks on sentences and references that the scores do not fully cover."""
        remarks = []
        if self.altered_references:
            remarks.append(
                f"{self.altered_references} of {self.sentences} references lost words that the "
                "dictionary does not have"
            )
        if self.untranslated:
            remarks.append(f"{self.untranslated} longer than the model's positions not translated")
        return remarks

    @property
    def fields(self) -> dict[str, object]:
        """The JSON fields except the pair, without optional ones that are empty."""
        fields = dict(vars(self))
        del fields["pair"]
        return {name: value for name, value in fields.items() if value or name not in OPTIONAL}


def score_of(fields: dict[str, Any]) -> PairScore:
    """Return the score with these fields (UserError: they are not a score's)."""
    return structured(PairScore, fields, "scores of a pair")


def bleu_tokenizer(language: str) -> str:
    """Return sacreBLEU's tokeniser for a language: `de`, `zh_CN`, `ja_XX`, `kor`, …."""
    return _TOKENIZERS.get(re.split("[-_]", language)[0].lower(), "13a")


class PieceBleu:
    """Cuts texts into a SentencePiece model's pieces (UserError: it is no model)."""

    def __init__(self, path: Path) -> None:
        content = read_bytes(path, "a SentencePiece model")
        try:
            self._model = load_sentencepiece(content)
        except RuntimeError as error:
            raise UserError(f"`{path}` is not a SentencePiece model.") from error
        self.name = f"spm-{path.name}-{digest_of(content)[:8]}"

    def cut(self, line: str) -> str:
        """Return a sentence as pieces joined by spaces."""
        return " ".join(self._model.encode_as_pieces(line))


def scorer_of(metric: str, pair: str, pieces: PieceBleu | None) -> Any:
    """Return sacreBLEU's metric for a pair; `pieces` is the tokeniser of spBLEU.

    It does not warn about sentences that end in " .".
    """
    if metric == "chrF++":
        return CHRF(word_order=2)
    scorer: Any = BLEU(tokenize=bleu_tokenizer(pair.rpartition("-")[2]), force=True)
    if metric == SPBLEU and pieces is not None:
        scorer.tokenizer = pieces.cut
        scorer.tokenizer_signature = pieces.name
    return scorer


def score_pair(
    pair: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    tier: str = "",
    more_references: Sequence[Sequence[str]] = (),
    pieces: PieceBleu | None = None,
) -> PairScore:
    """Score a pair's detokenised sentences: BLEU, chrF++; spBLEU with `pieces`.

    BLEU equals that of `fairseq-generate --scoring sacrebleu --sacrebleu-tokenizer T` with this
    language's T. `more_references` are further lists; "" where a sentence has no further reference.
    """
    if not references:
        raise UserError(
            f"The test set of {pair} holds no sentence to score: prepare the data again."
        )
    if len(hypotheses) != len(references):
        rule = f"{len(references)} sentences, one for each reference"
        raise_invalid(f"hypotheses of {pair}", rule, len(hypotheses))
    # sacreBLEU accepts None for a missing reference, although its types do not.
    all_references: list[Any] = [list(references)]
    for lines in more_references:
        all_references.append([line or None for line in lines])
    fields: dict[str, Any] = {}
    for metric, (score_field, signature_field) in FIELDS.items():
        if metric == SPBLEU and pieces is None:
            continue
        scorer = scorer_of(metric, pair, pieces)
        fields[score_field] = float(scorer.corpus_score(hypotheses, all_references).score)
        fields[signature_field] = str(scorer.get_signature())
    return PairScore(pair, tier, len(references), **fields, more_references=len(more_references))
