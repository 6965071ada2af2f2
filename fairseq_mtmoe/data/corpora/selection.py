"""Which of the harvested languages become language pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairseq_mtmoe.errors import UserError

MIN_TRAINING_SHARE = 0.5
"""A language is taken without being asked for if at least this share of its messages is left for training."""


def select_languages(
    num_messages: Mapping[str, int], held_out: int, langs: Sequence[str] = (), max_langs: int | None = None
) -> list[str]:
    """The languages to use, largest first; `num_messages` counts different messages by language.

    `langs` if given; otherwise all that keep enough for training when `held_out` messages are put aside, thinned to
    `max_langs` evenly along the order of sizes, the largest and the smallest included, so that the skew stays.
    Raises `UserError` if a language is too small, or if none is large enough.
    """
    for lang in langs:
        if num_messages.get(lang, 0) <= held_out:
            raise UserError(
                f"`--valid-size` and `--test-size` must leave {lang} messages to train on, but it has"
                f" {num_messages.get(lang, 0)} and they hold out {held_out}."
            )
    enough = langs or [lang for lang, count in num_messages.items() if count * (1 - MIN_TRAINING_SHARE) >= held_out]
    if not enough:
        raise UserError(
            f"`--valid-size` and `--test-size` must leave messages to train on, but the largest language has"
            f" {max(num_messages.values(), default=0)} and they hold out {held_out}."
        )
    ordered = sorted(enough, key=lambda lang: (-num_messages[lang], lang))
    return ordered if max_langs is None else _thin(ordered, max_langs)


def _thin(ordered: list[str], number: int) -> list[str]:
    if number >= len(ordered):
        return ordered
    if number == 1:
        return ordered[:1]
    return [ordered[round(index * (len(ordered) - 1) / (number - 1))] for index in range(number)]
