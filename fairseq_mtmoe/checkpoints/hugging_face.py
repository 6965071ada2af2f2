"""Common parts of Hugging Face's folders and files of `mtmoe import-hf`."""

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Required, TypeVar

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.core.errors import UserError, first_line, raise_invalid
from fairseq_mtmoe.core.files import link, new_folder, read_json, regular_file
from fairseq_mtmoe.core.typed import Name, Rule, between, fault, mapping, mapping_of

# The remedy for a damaged file of this command
IMPORT_ANEW = "write it again with `mtmoe import-hf`"
CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
SHARED_FILE = "model-00001-of-00002.safetensors"  # of folders that share tensors
OWN_FILE = "model-00002-of-00002.safetensors"
TORCH = "pytorch_model.bin"
ADAPTERS = "adapter_config.json"
MOST = 1 << 24  # maximum of any size: a file with a larger one is damaged
# Annotations of configs
Size = Annotated[int, between(1, MOST)]
TokenId = Annotated[int, between(0, MOST)]
Blocks = Annotated[int, between(1, 1 << 10)]
Share = Annotated[float, between(0, 1)]
Dropout = Annotated[float, Rule("a number from 0 to below 1", lambda value: 0 <= value < 1)]
FileBeside = Annotated[
    Name, Rule("a file beside it", lambda name: name == Path(name).name and "\0" not in name)
]
_FILES: Any = mapping({"weight_map": Required[dict[str, FileBeside]]})  # an index of weights
_INDEX = re.compile(r"(?<=\.)(0|[1-9]\d{0,5})(?=\.)|(?<=^layers\.)\d+(?=\.)")

AnyConfig = TypeVar("AnyConfig")
AnyModel = TypeVar("AnyModel")


@dataclass(frozen=True)
class KeyMap:
    """Translates between Hugging Face's names of a backbone's parameters and ours."""

    modules: Mapping[str, str]  # Hugging Face's module -> ours; `{}` is a block's index
    parameters: Mapping[str, str]  # Hugging Face's parameter of a module -> ours
    ignored: re.Pattern[str]  # names of tensors outside the model, such as heads
    prefixes: tuple[str, ...] = ()  # optional prefixes of all names

    def our_key(self, key: str) -> str | None:
        """Return our name of Hugging Face's `key`; None outside the model.

        Raises `KeyError`: an unknown name.
        """
        prefix = next((prefix for prefix in self.prefixes if key.startswith(prefix)), "")
        inner = key.removeprefix(prefix)
        if self.ignored.fullmatch(inner):
            return None
        module, _, parameter = inner.rpartition(".")
        return f"{_translated(module, self.modules)}.{self.parameters[parameter]}"

    def hugging_face_key(self, key: str) -> str:
        """Return Hugging Face's name of our `key`, as in a model without heads."""
        module, _, parameter = key.rpartition(".")
        modules = {ours: theirs for theirs, ours in self.modules.items()}
        return f"{_translated(module, modules)}.{parameter}"


def _translated(module: str, table: Mapping[str, str]) -> str:
    index = _INDEX.search(module)
    if index is None or module in table:  # the first block may hold a module that all blocks share
        return table[module]
    return table[_INDEX.sub("{}", module, count=1)].format(index[0])


def check_fields(sizes: Any) -> None:
    """Raise a `UserError` for the first field that breaks its annotation."""
    kind: type = type(sizes)
    wrong = fault(vars(sizes), mapping_of(kind))
    if wrong is not None:
        raise UserError(f"`{wrong.path}` must be {wrong.rule}, but is {wrong.value} instead.")


@contextmanager
def naming_file(path: object) -> Iterator[None]:
    """Append the file's path to `UserError`s in the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{str(error).removesuffix('.')} (in `{path}`).") from error


def config_values(folder: Path, model_types: Collection[str]) -> dict[str, Any]:
    """Return the values in a folder's `config.json`.

    Raises `UserError`: its `model_type` is none of these.
    """
    values: Any = read_json(folder / CONFIG, "the `config.json` of a model's folder")
    if not isinstance(values, dict):
        raise_invalid(str(folder / CONFIG), "a dictionary", values)
    if values.get("model_type") not in model_types:
        with naming_file(folder / CONFIG):
            raise_invalid(
                "model_type", f"one of {', '.join(model_types)}", values.get("model_type")
            )
    return values


def config_of(kind: type[AnyConfig], values: Mapping[str, Any]) -> AnyConfig:
    """Return the sizes in a `config.json` (UserError: one is missing or impossible)."""
    sizes = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in values:
            raise UserError(f"`{CONFIG}` has no `{field.name}`.")
        sizes[field.name] = values[field.name]
    with naming_file(CONFIG):
        return kind(**sizes)


@dataclass(frozen=True)
class Imported(Generic[AnyModel]):
    """A folder's model, and the names of tensors that were left out."""

    model: AnyModel
    left_out: tuple[str, ...]  # tensors outside the model, and duplicates


@dataclass(frozen=True)
class Additions:
    """A folder's additions to a backbone."""

    values: Mapping[str, Any]  # of `config.json`
    tensors: Mapping[str, Tensor]  # by Hugging Face's names


def read_state(folder: Path, keys: KeyMap, kind: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return a state in float32 by our names, and the names of ignored tensors.

    Raises `UserError` if a tensor has an unknown name, occurs twice or is not floating-point.
    """
    state: dict[str, Tensor] = {}
    left_out = []
    for name, value in read_weights(folder).items():
        try:
            key = keys.our_key(name)
        except KeyError as error:
            raise UserError(
                f"`{folder}` is not a {kind}: it contains the unknown tensor `{name}`."
            ) from error
        if key is None:
            left_out.append(name)
            continue
        if key in state or not (torch.is_tensor(value) and value.is_floating_point()):
            raise UserError(
                f"`{name}` in `{folder}` must be a floating-point tensor that occurs once: "
                "download the weights again."
            )
        state[key] = value.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    return state, tuple(left_out)


def read_weights(folder: Path) -> dict[str, Any]:
    """Return a folder's safetensors or torch weights by Hugging Face's names.

    Tensors are memory-mapped: they are read on access.
    Raises `UserError` if weights are missing or damaged.
    """
    readers: Mapping[str, Callable[[Path], dict[str, Any]]] = {
        SAFETENSORS: _read_safetensors,
        TORCH: lambda path: file_io.load(str(path), mapped=True, remedy="download it again"),
    }
    for name, read in readers.items():
        index = folder / f"{name}.index.json"
        paths: list[Path] = []
        if (folder / name).exists():
            paths = [folder / name]
        elif index.exists():
            paths = _parts(index)
        weights: dict[str, Any] = {}
        for path in paths:
            weights |= named_values(path, read(path))
        if paths:
            return weights
    raise UserError(f"`{folder}` contains no weights of a model ({' or '.join(readers)}).")


def named_values(path: Path, values: Any) -> dict[str, Any]:
    """Return a file's weights by name (UserError: it holds something else)."""
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UserError(f"`{path}` does not contain named weights: download it again.")
    return values


def check_is_whole(folder: Path) -> None:
    """Raise a `UserError` if a folder has adapters without their model."""
    if (folder / ADAPTERS).exists() and not (folder / CONFIG).exists():
        raise UserError(
            f"`{folder}` contains only adapters (`{ADAPTERS}`) and no whole model: merge "
            "them into their model with `peft` (`merge_and_unload`), and save the result."
        )


def _parts(index: Path) -> list[Path]:
    """Return the files that an index names (UserError: they do not lie beside it)."""
    content = read_json(index)
    if fault(content, _FILES) is not None:
        raise UserError(
            f"`{index}` must have a `weight_map` to files in its folder: download it again."
        )
    return [index.with_name(name) for name in sorted(set(content["weight_map"].values()))]


def _read_safetensors(path: Path) -> dict[str, Any]:
    regular_file(path, "a file of safetensors")
    safetensors = _safetensors("read")
    try:
        tensors: dict[str, Any] = safetensors.load_file(path)
    except Exception as error:  # damaged bytes can raise anything
        message = first_line(error)[:200]
        raise UserError(
            f"`{path}` must be a file of safetensors, but cannot be read as one: {message}."
        ) from error
    return tensors


def _safetensors(action: str) -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise UserError(
            f"`safetensors` is required to {action} its files: run `pip install safetensors`."
        ) from error
    return safetensors.torch


def check_finite(
    path: str | Path, weights: Mapping[str, Tensor], name_of: Callable[[str], str] = str
) -> None:
    """Raise a `UserError` for the first tensor with NaN or infinity.

    Shared tensors are read once.
    """
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, value in weights.items():
        tensors.setdefault(value.data_ptr(), (name, value))
    for name, value in tensors.values():
        bounds = torch.aminmax(value) if value.numel() else ()  # one NaN makes both bounds NaN
        if not all(bool(bound.isfinite()) for bound in bounds):
            raise UserError(
                f"`{name_of(name)}` in `{path}` must have only finite numbers, but has NaN or "
                "infinity: the file is damaged or was saved after a failed training."
            )


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    files: Mapping[str, bytes],
    tensors: Mapping[str, Tensor],
    own: Collection[str] = (),
    like: Path | None = None,
) -> None:
    """Write a new folder, completely or not at all.

    own: names of tensors that other folders do not share; these get a file of their own.
    like: a folder that has the others; its file gets a second name here.

    Raises `UserError` if the folder exists or cannot be written, or `safetensors` is missing.
    """
    with new_folder(folder) as partial:
        (partial / CONFIG).write_bytes(as_json(config))
        for name, content in files.items():
            (partial / name).write_bytes(content)
        if not own:
            _write_safetensors(partial / SAFETENSORS, tensors)
            return
        file_of = {**dict.fromkeys(tensors, SHARED_FILE), **dict.fromkeys(own, OWN_FILE)}
        size = sum(value.nbytes for value in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": file_of}
        (partial / f"{SAFETENSORS}.index.json").write_bytes(as_json(index))
        _write_safetensors(partial / OWN_FILE, {name: tensors[name] for name in own})
        if like is not None:
            link(like / SHARED_FILE, partial / SHARED_FILE)
            return
        shared = {name: value for name, value in tensors.items() if name not in own}
        _write_safetensors(partial / SHARED_FILE, shared)


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    state = {name: value.contiguous() for name, value in tensors.items()}
    try:
        _safetensors("write").save_file(state, path, metadata={"format": "pt"})
    except UserError:
        raise
    except Exception as error:  # the library's own class, even for a full disk
        raise OSError(first_line(error)) from error
    path.chmod((path.parent / CONFIG).stat().st_mode)  # the library's files are their owner's


def as_json(value: Any) -> bytes:
    """Return a value as an indented JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def read_imported(
    path: str | Path,
    content: Mapping[str, Any] | None,
    name: str,
    kind: type[AnyConfig],
    wanted_tensors: Callable[[AnyConfig], Mapping[str, Tensor]],
) -> tuple[AnyConfig, Mapping[str, Any]]:
    """Return the sizes in a file of `mtmoe import-hf`, and its content.

    The file is read unless `content` is given.
    Raises `UserError` if the file is damaged or of another kind.

    name: of the sizes. kind: their class.
    wanted_tensors: returns the tensors of a model of these sizes.
    """
    if Path(path).is_dir():
        raise UserError(
            f"`{path}` must be a file of `mtmoe import-hf`, but is a folder; `mtmoe import-hf "
            f"{path} OUT` converts a Hugging Face folder."
        )
    content = content or file_io.load(str(path), remedy=IMPORT_ANEW)
    if "cfg" in content:
        raise UserError(
            f"`{path}` must be a file of `mtmoe import-hf`, but is a checkpoint; start from a "
            "checkpoint with `--finetune-from-model`."
        )
    sizes = content.get(name)
    state = content.get("model")
    if not (isinstance(sizes, dict) and isinstance(state, dict)):
        raise UserError(
            f"`{path}` is not a file of `mtmoe import-hf`: it lacks `{name}` or `model`."
        )
    try:
        config = kind(**sizes)
    except TypeError as error:
        raise UserError(
            f"`{path}` must be a file of `mtmoe import-hf`, but has other sizes: {error}."
        ) from error
    check_tensors(path, wanted_tensors(config), state)
    return config, content


def check_tensors(
    path: str | Path,
    wanted: Mapping[str, Tensor],
    state: Mapping[str, Any],
    name_of: Callable[[str], str] = str,
    types: Sequence[torch.dtype] = (torch.float32,),
) -> None:
    """Raise a `UserError` for the first missing, wrong or additional tensor.

    wanted: tensors of the right shapes. types: allowed dtypes.
    name_of: maps a key to the name in the error.
    """
    for name, like in wanted.items():
        if name not in state:
            raise UserError(f"`{path}` has no tensor `{name_of(name)}`.")
        tensor = state[name]
        if tensor.shape != like.shape or tensor.dtype not in types:
            rule = (
                f"{tuple(like.shape)}, {' or '.join(map(str, types))}, but is "
                f"{tuple(tensor.shape)}, {tensor.dtype}"
            )
            raise UserError(
                f"`{name_of(name)}` in `{path}` must be {rule.replace('torch.', '')} instead."
            )
    more = state.keys() - wanted.keys()
    if more:
        raise UserError(
            f"`{path}` must have only the tensors of its sizes, but also has `{min(more)}`."
        )
