"""Options of models that adapt to each sentence's task."""

from dataclasses import dataclass
from typing import Any, FrozenSet

from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.options import TaskOptions, names_of_tasks, option, value_of

NONE = "none"
FORMS = ("base", "large")


@dataclass
class ConditionalOptions(TaskOptions):
    """Mixed into the configuration of every model that can have conditional parts; the backbones read it."""

    conditional: str = option(
        NONE,
        "what adapts to each sentence's task as in CA-MTL: comma-separated parts of attention, norm, "
        "alignment and bottleneck, or none",
    )
    conditional_positions: int = option(
        128,
        "positions whose bias conditional attention learns, in as many blocks as the width is times that; "
        "beyond, they begin anew",
    )


@dataclass
class EncoderConditionalOptions(ConditionalOptions):
    """The same with what only an encoder has."""

    conditional_form: str = option(
        "base",
        "where an encoder's bottlenecks and conditional norms are: base, one bottleneck in the last block "
        "and the upper blocks' last norms, or large, a chain of bottlenecks beside all blocks and all upper norms",
    )


def conditional_parts(cfg: Any) -> FrozenSet[str]:
    """The parts that `--conditional` names; none in the options of a model from before it."""
    given = value_of(cfg, ConditionalOptions, "conditional")
    parts = frozenset() if given == NONE else frozenset(given.split(","))
    if not parts <= set(PARTS):
        raise_invalid("--conditional", f"a comma-separated list of {', '.join(PARTS)}, or {NONE}", given)
    if value_of(cfg, ConditionalOptions, "conditional_positions") < 1:
        raise_invalid("--conditional-positions", "at least 1", cfg.conditional_positions)
    if parts and not names_of_tasks(cfg):
        raise UserError(
            f"`--conditional {given}` needs a task that gives each sentence a task id, such as `--task glue` or "
            "`--task translation_heated`, but this one gives none."
        )
    return parts


def has_large_form(cfg: Any) -> bool:
    """Whether `--conditional-form` is large; a `UserError` where it is nothing known."""
    form = value_of(cfg, EncoderConditionalOptions, "conditional_form")
    if form not in FORMS:
        raise_invalid("--conditional-form", " or ".join(FORMS), form)
    return bool(form == FORMS[1])
