"""Options of models that adapt to each sentence's task."""

from dataclasses import dataclass
from typing import Any, FrozenSet

from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.options import TaskOptions, check_rules, names_of_tasks, option, value_of
from fairseq_mtmoe.core.typed import at_least, one_of

NONE = "none"
FORMS = ("base", "large")


@dataclass
class ConditionalOptions(TaskOptions):
    """Options of every model that can have conditional parts; backbones read them."""

    conditional: str = option(
        NONE,
        "parts that adapt to each sentence's task, as in CA-MTL: a comma-separated list of "
        "attention, norm, alignment and bottleneck, or none",
    )
    conditional_positions: int = option(
        128,
        "number of positions for which conditional attention learns a bias, in (model width / "
        "positions) blocks; longer sentences repeat the pattern",
        at_least(1),
    )


@dataclass
class EncoderConditionalOptions(ConditionalOptions):
    """`ConditionalOptions` with an option of encoders."""

    conditional_form: str = option(
        "base",
        "place of the encoder's bottlenecks and conditional norms: base (one bottleneck, in the "
        "last block, and the last norm of each upper block) or large (a chain of bottlenecks "
        "beside all blocks, and all upper norms)",
        one_of(FORMS),
    )


def conditional_parts(cfg: Any) -> FrozenSet[str]:
    """Return the parts that `--conditional` names (UserError: unknown ones).

    The options of an older model, without `--conditional`, have none.
    """
    names = value_of(cfg, ConditionalOptions, "conditional")
    parts = frozenset() if names == NONE else frozenset(names.split(","))
    if not parts <= set(PARTS):
        raise_invalid(
            "--conditional", f"a comma-separated list of {', '.join(PARTS)}, or {NONE}", names
        )
    check_rules(cfg, ConditionalOptions)
    if parts and not names_of_tasks(cfg):
        raise UserError(
            f"`--conditional {names}` requires a task that gives each sentence a task id, such as "
            "`--task glue` or `--task translation_heated`."
        )
    return parts


def has_large_form(cfg: Any) -> bool:
    """Return whether `--conditional-form` is large (UserError: an unknown form)."""
    check_rules(cfg, EncoderConditionalOptions)
    return bool(value_of(cfg, EncoderConditionalOptions, "conditional_form") == FORMS[1])
