"""Write checkpoints from others: copies, other shards, or averages.

Shards without a shared part, which a killed or failed save leaves behind, are removed unless a
shared part is unreadable. Files that this package did not write stay.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io, sharding
from fairseq_mtmoe.checkpoints.assemble import ShardReader, load_shared_part, whole, write_shard
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile, peek
from fairseq_mtmoe.checkpoints.head_labels import labels_of, match_labels
from fairseq_mtmoe.checkpoints.key_maps import AVERAGES, PRICES, VOCABULARY
from fairseq_mtmoe.checkpoints.optimizer_state import OptimizerState, Parameters
from fairseq_mtmoe.checkpoints.rebuild import model_options, plain
from fairseq_mtmoe.checkpoints.sharding import Content, State
from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.core.files import regular_file, replacing
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement

# Patterns of names before suffix and `.pt`
EPOCHS = r"checkpoint(\d+)"
UPDATES = r"checkpoint_\d+_(\d+)"
_DELETED = r"checkpoint(\d+|_\d+_\d+|\.best_.*)"  # names that fairseq deletes with `--keep-…`
# Shards, with partial files of killed processes
_SHARD = re.compile(r"\d+-\d+\.pt|\.\d+-\d+\.[\w-]+\.\d+(\.[0-9a-f]{8})?\.pt")
# Buffers: a format's version, a tensor that gives fairseq's sinusoidal positions their type,
# running prices.
_BUFFERS = (".version", "._float_tensor", *PRICES)
_HALF = (torch.float16, torch.bfloat16)
# Options that change what equal parameters compute, of a model and of its task
_MODEL_OPTIONS = (
    *("encoder_attention_heads", "decoder_attention_heads", "activation_fn", "no_scale_embedding"),
    *("sinusoids", "decoder_begins_with_pad", "expert_gates", "expert_combine", "encoder", "t5"),
)
_TASK_OPTIONS = ("langtoks", "lang_tok_style", "encoder_langtok_last", "task_ids")


def remove_orphans(path: str | Path, suffix: str = "") -> None:
    """Remove shards that no shared part names, of a checkpoint or of a run's folder.

    Shards without a shared part are removed only if the run itself deletes such names: a save may
    be in progress.

    suffix: the run's `--checkpoint-suffix`.
    """
    with suppress(OSError):  # unreadable files stay
        path = Path(path)
        deleted = _with_suffix(_DELETED, suffix)
        in_folder = path.is_dir()
        folders: list[Path] = []
        if in_folder:
            folders = [*path.glob(f"*{sharding.FOLDER_SUFFIX}")]
        elif path.suffix == ".pt":
            folders = [path.with_suffix(sharding.FOLDER_SUFFIX)]
        for folder in folders:
            shared_part = folder.with_suffix(".pt")
            expected = shared_part.exists() or not in_folder or deleted.fullmatch(shared_part.name)
            if not expected or not folder.is_dir() or folder.is_symlink():
                continue
            state = peek(shared_part) if shared_part.exists() else {}
            if state is not None:
                _remove_saves(folder, keep=plain(state.get("experts")).get("id"))


def _with_suffix(name: str, suffix: str) -> re.Pattern[str]:
    return re.compile(name + re.escape(suffix) + r"\.pt")


def _remove_saves(folder: Path, keep: str | None) -> None:
    for save in [*folder.iterdir()]:
        if (
            save.name != keep
            and sharding.SAVE_ID.fullmatch(save.name)
            and save.is_dir()
            and not save.is_symlink()
        ):
            with suppress(OSError):
                for file in [*save.iterdir()]:
                    if _SHARD.fullmatch(file.name):
                        file.unlink()
                save.rmdir()
    with suppress(OSError):  # something is in it
        folder.rmdir()


def copy_with_experts(source: str | Path, target: str | Path) -> None:
    """Copy a checkpoint over `target`, whole or not at all; shards become hard links.

    Raises `UserError` if it is damaged.
    """
    with CheckpointFile(source) as file, _shards_beside(target, source, file.peek() or {}):
        file.copy_to(str(target))


def save_whole(state: State, target: str | Path) -> None:
    """Write a whole state over `target` and its shards, completely or not at all."""
    file_io.save(state, str(target))
    remove_orphans(target)


def save_with_experts(state: State, source: str | Path, target: str | Path) -> None:
    """Write a state over `target`, with the shards beside `source` that it names."""
    with _shards_beside(target, source, state):
        file_io.save(state, str(target))


@contextmanager
def _shards_beside(target: str | Path, source: str | Path, state: State) -> Iterator[None]:
    """Put the shards of `source` beside `target`; at the end, keep those it names."""
    try:
        if sharding.is_shared_part(state):
            for here, there in zip(
                sharding.shards_of(source, state), sharding.shards_of(target, state), strict=True
            ):
                _link(here, there)
        yield
    finally:
        remove_orphans(target)  # it reads the target again, which an error left unchanged


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it if that fails."""
    try:
        with replacing(target) as partial:
            os.link(regular_file(source), partial)
    except UserError:
        with CheckpointFile(source) as file:
            file.copy_to(str(target))


def write_in_parts(
    source: Path,
    target: Path,
    experts_per_file: int,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> int:
    """Write `source` to `target` with `experts_per_file` experts per file.

    It reads one shard at a time and returns the number of shards. `track` wraps the loop over them
    to show progress. Raises `UserError` if there are no experts or fewer, or the checkpoint is
    damaged.
    """
    state = load_shared_part(source, mapped=True)
    num_experts = _num_experts(source, state)
    if not 1 <= experts_per_file <= num_experts:
        raise_invalid(
            "--experts-per-file",
            f"from 1 to the {num_experts} experts of `{source}`",
            experts_per_file,
        )
    shared_part, read = _parts(source, state, num_experts)
    save_id = sharding.new_id()
    folder = sharding.expert_folder(target) / save_id
    files = []
    try:
        for first in track(range(0, num_experts, experts_per_file)):
            files.append(
                write_shard(folder, read(first, min(experts_per_file, num_experts - first)))
            )
        file_io.save(sharding.with_shard_list(shared_part, save_id, files), str(target))
    finally:
        remove_orphans(target)
    return len(files)


def write_whole(source: Path, target: Path) -> None:
    """Write the checkpoint `source` with all experts in the file `target` (UserError)."""
    state = load_shared_part(source, mapped=True)
    _num_experts(source, state)
    save_whole(whole(source, state), target)


def parameters_of(model: dict[str, Tensor]) -> Parameters:
    """Return names and shapes of trained parameters in a model's state, in order."""
    embeddings: list[Tensor] = []
    parameters = []
    for name, value in model.items():
        if name.endswith(_BUFFERS):
            continue
        if name.endswith(VOCABULARY):
            # Compare values: fairseq's copy from a GPU to the CPU splits a shared tensor.
            if any(torch.equal(value, other) for other in embeddings):
                continue
            embeddings.append(value)
        parameters.append((name, value.shape))
    return parameters


def _num_experts(source: Path, state: State) -> int:
    num_experts = sharding.count_experts(state)
    if not num_experts:
        raise UserError(f"`{source}` is dense: it has no experts to reshard.")
    return num_experts


def _parts(
    source: Path, state: State, num_experts: int
) -> tuple[State, Callable[[int, int], Content]]:
    """Return the shared part, and a function that reads some of the experts."""
    if sharding.is_shared_part(state):
        return state, ShardReader(source, state).read
    parameters = parameters_of(state["model"])
    try:
        shared_part, content = sharding.split(
            state, ExpertPlacement(num_experts, 0, num_experts), parameters
        )
        saved = state.get("last_optimizer_state")
        if (
            saved is not None
            and OptimizerState.from_saved(saved, parameters).misfit(parameters) is not None
        ):
            raise UserError("The optimizer state does not match the parameters' shapes.")
    except UserError as error:
        raise UserError(
            f"`{source}` lacks the optimizer's moments of some parameters, so its experts cannot "
            "be split off; resume it with several processes, which save shards."
        ) from error
    return shared_part, lambda first, count: sharding.narrow(content, first, count)


def average(paths: Iterable[Path]) -> State:
    """Return the first checkpoint with the mean of all parameters (UserError).

    It has no optimizer's state. Half precision is summed in float32. Tensors keep the first
    checkpoint's type, and share memory as there. It holds the sum and one checkpoint's parameters
    at a time.
    """
    result: State = {}
    total: dict[str, Tensor] = OrderedDict()
    first = Path()
    count = 0
    for count, path in enumerate(paths, start=1):  # noqa: B007 (it is their number)
        parts = ("model",) if result else ("model", *AVERAGES)
        state = whole(path, load_shared_part(path, mapped=True), parts)
        model = state.get("model")
        if not model:
            raise UserError(f"`{path}` contains no parameters of a model to average.")
        if not result:
            first = path
            result = state
            total.update((key, _summand(value).clone()) for key, value in model.items())
            continue
        match_labels(str(path), state, labels_of(str(first), model_options(result) or {}))
        model = state["model"]
        _check_same(model, total, path, first)
        _check_rows(state, result, path, first)
        _check_options(state, result, path, first)
        for key, value in model.items():
            total[key] += _summand(value)
    for key, value in total.items():
        rounding = None if value.is_floating_point() else "floor"
        mean = value.div_(count, rounding_mode=rounding)
        total[key] = mean.to(result["model"][key].dtype)
    _tie_like(result["model"], total)
    return {**result, "model": total}


def _tie_like(model: Mapping[str, Tensor], values: dict[str, Tensor]) -> None:
    """Let equal values share memory where they do in the model, such as embeddings."""
    firsts: dict[tuple[Any, ...], str] = {}
    for name, value in model.items():
        first = firsts.setdefault((value.data_ptr(), value.shape, value.stride()), name)
        if torch.equal(values[name], values[first]):
            values[name] = values[first]


def newest(
    folder: Path, name: str, count: int, upper_bound: int | None, suffix: str = ""
) -> list[Path]:
    """Return the `count` checkpoints with the highest numbers up to a bound.

    Args:
        folder: of the checkpoints.
        name: EPOCHS or UPDATES.
        count: number of checkpoints.
        upper_bound: of their numbers.
        suffix: the run's `--checkpoint-suffix`.
    """
    pattern = _with_suffix(name, suffix)
    try:
        files = os.listdir(folder)
    except OSError as error:
        raise UserError(
            f"`--inputs` must be one folder with checkpoints, but `{folder}` is not a folder."
        ) from error
    numbers = {}
    for match in filter(None, map(pattern.fullmatch, files)):
        if upper_bound is None or int(match[1]) <= upper_bound:
            numbers[int(match[1])] = match[0]
    option = "--num-epoch-checkpoints"
    example = f"checkpoint3{suffix}.pt"
    if name == UPDATES:
        option = "--num-update-checkpoints"
        example = f"checkpoint_2_500{suffix}.pt"
    bound = "" if upper_bound is None else f" up to {upper_bound}"
    if not numbers:
        raise UserError(
            f"`{folder}` contains no checkpoints such as {example}{bound} for `{option}`; check "
            "`--checkpoint-suffix`, which must be the run's."
        )
    if not 1 <= count <= len(numbers):
        raise_invalid(
            option, f"from 1 to the {len(numbers)} such checkpoints of `{folder}`{bound}", count
        )
    return [folder / numbers[number] for number in sorted(numbers, reverse=True)[:count]]


def _summand(value: Tensor) -> Tensor:
    return value.float() if value.dtype in _HALF else value


def _check_same(
    model: dict[str, Tensor], total: dict[str, Tensor], path: Path, first: Path
) -> None:
    different = _kinds(model) ^ _kinds(total)
    if different:
        name, *_ = min(different)
        raise UserError(f"`{path}` cannot be averaged with `{first}`: `{name}` differs.")


def _kinds(model: dict[str, Tensor]) -> set[tuple[Any, ...]]:
    return {(name, value.shape, value.is_floating_point()) for name, value in model.items()}


def _check_rows(state: State, other: State, path: Path, first: Path) -> None:
    """Check that rows stand for the same pieces, languages and tasks (UserError)."""
    rows = _rows(state)
    others = _rows(other)
    for name in rows:
        if rows[name] and others[name] and rows[name] != others[name]:
            raise UserError(
                f"`{path}` cannot be averaged with `{first}`: their {name} differ, or their order."
            )


def _rows(state: State) -> dict[str, Any]:
    settings = state.get("task_state") or {}
    task = plain(plain(state.get("cfg")).get("task"))
    pair = [task[name] for name in ("source_lang", "target_lang") if task.get(name)]
    return {
        "pieces": [side["symbols"] for side in settings.get("vocabulary") or []],
        "languages": settings.get("langs") or task.get("langs") or pair,
        "tasks": (model_options(state) or {}).get("task_names"),
    }


def _check_options(state: State, other: State, path: Path, first: Path) -> None:
    """Check that equal parameters compute the same in both models (UserError)."""
    options = _computing_options(state)
    others = _computing_options(other)
    for name in options.keys() & others.keys():
        if options[name] != others[name]:
            raise UserError(
                f"`{path}` cannot be averaged with `{first}`: `{flag(name)}` is {options[name]} in "
                f"one and {others[name]} in the other."
            )


def _computing_options(state: State) -> dict[str, Any]:
    model = model_options(state) or {}
    task = state.get("task_state") or {}
    options = {name: model[name] for name in _MODEL_OPTIONS if name in model}
    return options | {name: task[name] for name in _TASK_OPTIONS if name in task}
