"""COMET (Rei et al. 2020), by unbabel-comet and a local model; no downloads."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fairseq_mtmoe.core.digest import digest_of_file
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import regular_file


class Comet:
    """A COMET model, from a `checkpoints/model.ckpt` that `comet-score` downloads."""

    name = "COMET"

    def __init__(self, path: Path, cpu: bool) -> None:
        try:
            from comet import load_from_checkpoint
        except ModuleNotFoundError as error:
            raise UserError(
                "`--comet` needs unbabel-comet: install it by `pip install unbabel-comet`."
            ) from error
        self.signature = signature_of(path)
        try:
            # Its tokenizer is a pretrained encoder's, which must be in Hugging Face's cache.
            self._model = load_from_checkpoint(str(path), local_files_only=True)
        except Exception as error:  # unbabel-comet, Lightning and Hugging Face raise anything
            raise UserError(
                f"`{path}` must be a checkpoint of COMET, but cannot be loaded: {error}."
            ) from error
        self._gpus = int(torch.cuda.is_available() and not cpu)

    def __call__(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> list[float]:
        """Return each sentence's score, about 0 to 1, by the first reference."""
        rows = []
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True):
            rows.append({"src": source, "mt": hypothesis, "ref": reference})
        prediction = self._model.predict(rows, batch_size=16, gpus=self._gpus, progress_bar=False)
        return list(map(float, prediction.scores))


def signature_of(path: Path) -> str:
    """Return a model's signature, to quote with its scores (UserError: no such file)."""
    digest = digest_of_file(regular_file(path, "a checkpoint of COMET"))
    try:
        package = version("unbabel-comet")
    except PackageNotFoundError:
        package = "unknown"
    return f"model:{path.name}-{digest[:8]}|version:{package}"
