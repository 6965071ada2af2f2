"""spBLEU: BLEU over the pieces of a SentencePiece model (Goyal et al. 2022, "The Flores-101 evaluation benchmark").

sacreBLEU has it with models that it downloads. Here the model is a file that is there, and the signature says which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sentencepiece import SentencePieceProcessor

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_bytes

References = Sequence[Sequence[str | None]]


class PieceBleu:
    """BLEU over the pieces of one model.

    Args:
        path: the model, such as Flores-200's.

    Raises:
        UserError: it is no SentencePiece model.
    """

    def __init__(self, path: Path) -> None:
        content = read_bytes(path, "a SentencePiece model")
        self._model = SentencePieceProcessor()
        try:
            # Its constructor takes an empty file for no file.
            self._model.load_from_serialized_proto(content)
        except RuntimeError as error:
            raise UserError(f"`{path}` must be a SentencePiece model, but is not one.") from error
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.name = f"spm-{path.name}-{self.sha256[:8]}"

    def __call__(self, hypotheses: Sequence[str], references: References) -> tuple[float, str]:
        """BLEU of a corpus, from 0 to 100, and its signature.

        Args:
            hypotheses: detokenised.
            references: lists as long as that; None where a sentence has no further reference.
        """
        bleu = BLEU(tokenize="none", force=True)
        score = bleu.corpus_score(self.cut(hypotheses), [self.cut(lines) for lines in references])
        return float(score.score), self.signature(bleu)

    def cut(self, lines: Sequence[str | None]) -> list[Any]:
        """Sentences as pieces with spaces between them."""
        return [None if line is None else self._pieces(line) for line in lines]

    def signature(self, bleu: BLEU) -> str:
        """That of sacreBLEU's metric, which has scored texts that were cut."""
        found = bleu.get_signature()
        found.update("tok", self.name)
        return str(found)

    def _pieces(self, line: str) -> str:
        # sacreBLEU takes the spaces at a line's end away before it looks for pieces.
        return " ".join(self._model.encode_as_pieces(line.rstrip()))
