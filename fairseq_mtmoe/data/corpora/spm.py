"""One SentencePiece model for all languages, trained on temperature-sampled text.

As ML-50's data was made (Tang et al. 2020, following XLM): the share of a language in the training text is
proportional to (its share of all lines)^(1/T), so that the vocabulary has pieces for small languages too.
"""

from __future__ import annotations

import io
import multiprocessing
import re
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import sentencepiece

from fairseq_mtmoe.data.sampling import apportion, temperature_probabilities
from fairseq_mtmoe.errors import UserError

MAX_LINES = 400_000
"""Lines of text that the model is trained on at most; more change no vocabulary of this size, and take minutes."""

THREADS = 8
"""Of training: as many on every machine, as sums depend on it, and the model says how many there were."""

LEAST_COVERAGE = 0.98  # that SentencePiece takes
OPTIONS = ("--vocab-size", "--character-coverage")
"""What a user of the command line calls size and character coverage."""

RECIPE_NAMES = ("vocabulary.size", "vocabulary.character_coverage")
"""What they are called in a recipe."""

LARGEST_SIZE = 1_000_000
"""Of a vocabulary: beyond what any model has."""

LEAST_PIECES, MOST_PIECES = 1000, 32_000
"""Of a vocabulary whose size nobody says, unless the text is too small for them."""

CHARACTERS_PER_PIECE = 4000

SIZE_RULE = (
    f"two for each different character and one more for every {CHARACTERS_PER_PIECE:,} characters of the text, from"
    f" {LEAST_PIECES:,} to {MOST_PIECES:,}, as far as the text allows"
)

_TOO_FEW_PIECES = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_TOO_MANY_PIECES = re.compile(r"set it to a value <= (\d+)")


class TextTooSmall(UserError):
    """A text does not give so many pieces.

    Attributes:
        most: how many it gives.
    """

    def __init__(self, sentence: str, most: int = 0) -> None:
        super().__init__(sentence)
        self.most = most


def temperature_quotas(sizes: Mapping[str, int], temperature: float, total: int) -> dict[str, int]:
    """How many of `total` lines each language gets: in proportion to size^(1/temperature), and at least one."""
    shares = temperature_probabilities(list(sizes.values()), temperature)
    counts = apportion(total, shares, offset=0.5)
    return {lang: max(1, int(count)) for lang, count in zip(sizes, counts, strict=True)}


def train_model_apart(
    lines: Sequence[str],
    vocab_size: int,
    character_coverage: float,
    required_characters: str = "",
    names: tuple[str, str] = OPTIONS,
) -> bytes:
    """`train_model` in a process of its own, which an interrupt ends at once: training itself, in C++, sees none."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (list(lines), vocab_size, character_coverage, required_characters, names)
    process = context.Process(target=_train_and_send, args=(sender, *arguments), daemon=True)
    process.start()
    sender.close()
    try:
        result: bytes | Exception = receiver.recv()
    except EOFError:
        raise UserError("SentencePiece was stopped from outside, for want of memory most likely.") from None
    finally:
        process.kill()
        process.join()
    if isinstance(result, Exception):
        raise result
    return result


def _train_and_send(sender: Connection, *arguments: Any) -> None:
    # Ctrl-C reaches every process of a terminal; the one that waits for this process ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sender.send(train_model(*arguments))
    except Exception as error:
        sender.send(error)


def train_model(
    lines: Sequence[str],
    vocab_size: int,
    character_coverage: float,
    required_characters: str = "",
    names: tuple[str, str] = OPTIONS,
) -> bytes:
    """A serialized unigram model with exactly `vocab_size` pieces, the same bytes for the same lines.

    Its special pieces have fairseq's names and places, so that an id is the same in the model and in a fairseq
    dictionary made from it. Characters that are required have a piece, whatever the coverage says. Raises `UserError`,
    in which size and coverage are called by `names`, if the text does not fit the vocabulary's size.
    """
    model = io.BytesIO()
    required: dict[str, Any] = {"required_chars": required_characters} if required_characters else {}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            normalization_rule_name="identity",  # ours is NFC; SentencePiece's NFKC would rewrite references
            bos_id=0,
            pad_id=1,
            eos_id=2,
            unk_id=3,
            num_threads=THREADS,
            minloglevel=2,
            **required,
        )
    except RuntimeError as error:
        raise _vocabulary_error(str(error), vocab_size, names) from error
    return model.getvalue()


def _vocabulary_error(message: str, vocab_size: int, names: tuple[str, str]) -> Exception:
    size, coverage = names
    if match := _TOO_FEW_PIECES.search(message):
        return UserError(
            f"`{size}` must be at least {match[1]}, the number of characters in this text,"
            f" but is {vocab_size} instead; raise it or lower `{coverage}`."
        )
    if match := _TOO_MANY_PIECES.search(message):
        sentence = f"`{size}` must be at most {match[1]} for this text, but is {vocab_size} instead."
        return TextTooSmall(sentence, int(match[1]))
    return RuntimeError(f"SentencePiece failed: {message}")
