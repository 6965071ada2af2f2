"""A checkpoint's model and settings for use with other data; nothing is executed."""

import copy
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig, OmegaConf, open_dict

from fairseq_mtmoe.checkpoints import loading, rebuild
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import checkpoint_file
from fairseq_mtmoe.core.options import check_rules, option
from fairseq_mtmoe.core.typed import Rule
from fairseq_mtmoe.moe.parallel.placement import whole_models
from fairseq_mtmoe.training.indexed_files import check_ids
from fairseq_mtmoe.translation.data.file_names import find_side

# Tasks that translate one pair
TASKS = ("translation_heated", "translation_multi_simple_epoch", "translation")
OF_BENCHMARKS = ("glue", "text_to_text")  # tasks scored by the task table's metrics


COUNT = Rule(
    f"a whole number from 1 to {2**31 - 1}",
    lambda value: isinstance(value, int) and 1 <= value < 2**31,
)


@dataclass(frozen=True)
class Inference:
    """Options of computation with fairseq's names (UserError: one is wrong)."""

    batch_size: int | None = option(None, None, COUNT)
    max_tokens: int | None = option(None, None, COUNT)
    fp16: bool = False
    bf16: bool = False
    cpu: bool = False

    def __post_init__(self) -> None:
        if self.fp16 and self.bf16:
            raise UserError("`--bf16` cannot be combined with `--fp16`.")
        check_rules(self, type(self))

    @property
    def use_cuda(self) -> bool:
        """Whether to compute on a GPU."""
        return torch.cuda.is_available() and not self.cpu

    def to_device(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a batch on the model's device."""
        if not self.use_cuda:
            return sample
        moved: dict[str, Any] = utils.move_to_cuda(sample)
        return moved


def read(path: str) -> dict[str, Any]:
    """Return a checkpoint with all experts, without the optimizer's state (UserError)."""
    checkpoint_file(path)  # fairseq would search further places
    with whole_models():  # `task_settings` checks the task, `build_model` the model
        state = loading.load_for_fairseq(path, loading.LoadContext(kinds=()))
    state.pop("last_optimizer_state", None)
    return state


def task_settings(
    state: dict[str, Any],
    path: str,
    tasks: Sequence[str] = TASKS,
    what: str = "a task that translates",
) -> Any:
    """Return a copy of a checkpoint's task settings without scoring by BLEU.

    It is for `change` and `setup_task` (UserError: the task is not one of `tasks`).
    """
    cfg = state.get("cfg")
    if state.get("args") is not None:
        cfg = convert_namespace_to_omegaconf(state["args"])
    task: Any = (cfg or {}).get("task")
    name = rebuild.plain(task).get("_name")
    if name not in tasks:
        raise_invalid(path, f"a checkpoint of {what} ({', '.join(tasks)})", name)
    rebuild.check_name(path, state, "task")  # fairseq may find another name in them
    if isinstance(task, DictConfig):
        settings = _completed(task)
    else:
        settings = copy.deepcopy(task)
        # fairseq's multilingual task evaluates a string, and would read the result as False the
        # next time.
        for side in {"left_pad_source", "left_pad_target"} & vars(settings).keys():
            setattr(settings, side, str(getattr(settings, side)))
    if setting(settings, "eval_bleu"):
        change(settings, eval_bleu=False)
    return settings


def _completed(task: DictConfig) -> DictConfig:
    """Return a copy with fairseq's defaults for values that `mtmoe import-hf` leaves."""
    values: Any = OmegaConf.to_container(task, resolve=True)
    cfg = OmegaConf.structured(FairseqConfig())
    with open_dict(cfg):
        cfg.task = {name: value for name, value in values.items() if value is not None}
    completed: DictConfig = cfg.task
    return completed


def build_model(task: Any, state: dict[str, Any], path: str) -> Any:
    """Build the model of a loaded checkpoint (UserError: unknown, or for other data)."""
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([path], task=task, state=state)
    return models[0]


def placed(model: Any, fp16: bool, bf16: bool, use_cuda: bool) -> Any:
    """Return the model in the precision and on the device to compute with."""
    if fp16:
        model.half()
    if bf16:
        model.bfloat16()
    if use_cuda:
        model.cuda()
    return model


def setting(settings: Any, name: str) -> Any:
    """Return a value of fairseq's settings of either kind; None if it is missing."""
    return settings.get(name) if isinstance(settings, DictConfig) else getattr(settings, name, None)


def change(settings: Any, **values: Any) -> None:
    """Set values of fairseq's settings of either kind."""
    if isinstance(settings, DictConfig):
        with open_dict(settings):
            settings.update(values)
    else:
        vars(settings).update(values)


def remember(settings: Any, state: Mapping[str, Any]) -> None:
    """Set languages and pairs from a task's state, so that no files are needed."""
    if langs := state.get("langs", ()):
        as_text = not isinstance(settings, Namespace) or isinstance(setting(settings, "langs"), str)
        change(settings, langs=",".join(langs) if as_text else list(langs), lang_dict=None)
    pairs = state.get("lang_pairs")
    # The option may name a file of another folder.
    if pairs and not setting(settings, "extra_lang_pairs"):
        change(settings, lang_pairs=",".join(pairs))


def pairs_of(settings: Any, state: Mapping[str, Any]) -> list[str]:
    """Return the language pairs of a task's state, or else of its settings."""
    return names_in(state.get("lang_pairs") or setting(settings, "lang_pairs"))


def names_in(value: str | Sequence[str] | None) -> list[str]:
    """Return the names in an option of fairseq's, which is a list or text with commas."""
    return value.split(",") if isinstance(value, str) else list(value or ())


def check_pair(folder: str, subset: str, pair: str, dictionaries: Sequence[Dictionary]) -> bool:
    """Return whether a pair's files exist (UserError: ids beyond a dictionary)."""
    source, target = pair.split("-")
    prefixes = [find_side(folder, subset, source, target, lang) for lang in (source, target)]
    for prefix, dictionary in zip(prefixes, dictionaries, strict=True):
        if prefix is not None:
            check_ids(prefix, len(dictionary))
    return None not in prefixes
