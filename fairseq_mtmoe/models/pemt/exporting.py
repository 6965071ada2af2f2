"""A merged model of PEMT for `transformers`: what it has beside its backbone, as `modeling_pemt.py` loads it.

No class of the library's has adapters after feed-forward layers, so that the folder brings one along.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_mtmoe.backbones.hugging_face import Additions
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.models.pemt.about import About
from fairseq_mtmoe.models.pemt.config import SOURCE
from fairseq_mtmoe.models.pemt.stages import PROMPT, is_added

_CODE = Path(__file__).with_name("modeling_pemt.py")
_PART = re.compile(r"(?P<stack>encoder|decoder)\.layers\.(?P<block>\d+)\.mixture\.(?P<part>.+)")
# A part of ours -> its name there; a bank of adapters has one member, and `up` the other way round.
_NAMES = {
    **{f"target_adapter.{name}.{kind}": f"{name}.{kind}" for name in ("down", "up") for kind in ("weight", "bias")},
    **{"adapters.down": "narrow.weight", "adapters.down_bias": "narrow.bias"},
    **{"adapters.up": "widen.weight", "adapters.up_bias": "widen.bias"},
}
# What is loaded by which of the library's automatic classes.
_LOADED_BY = {
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "Model": "AutoModel",
}


def separated(
    path: Path, options: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The state of a model's backbone with its heads, and what PEMT added.

    Raises:
        UserError: it is a source, or borrows from sources under gates.
    """
    if options.get("pemt_stage") == SOURCE:
        raise UserError(f"`{path}` must be of `--pemt-stage target`, but is a source for others to borrow from.")
    if About.from_text(options["pemt"]).sources:
        raise UserError(
            f"`{path}` must have its sources folded in, which no class of `transformers` mixes; "
            f"`mtmoe merge {path} merged.pt` first, and export that."
        )
    added = {name: value for name, value in state.items() if is_added(name)}
    return {name: value for name, value in state.items() if name not in added}, added


def additions(added: Mapping[str, Tensor], base: str, architecture: str) -> Additions:
    """What a folder has beside the backbone's.

    Args:
        added: see `separated`.
        base: what names of the backbone's parameters begin with there; empty, or with a dot at its end.
        architecture: the library's class of the backbone, such as `BertModel`.

    Raises:
        UserError: a part has no name there.
    """
    tensors = {}
    for name, value in added.items():
        found = _PART.fullmatch(name)
        if found is not None and found["part"] in _NAMES:
            one = value[0] if found["part"].startswith("adapters.") else value
            place = _place(found["stack"], found["block"], architecture)
            turned = one.t() if found["part"] == "adapters.up" else one
            tensors[f"{base}{place}.adapters.{_NAMES[found['part']]}"] = turned.contiguous()
        elif name == f"{PROMPT}weight":
            tensors[f"{base}prompt"] = value
        elif found is not None:
            raise UserError(f"The checkpoint must be as `mtmoe merge` writes it, but has `{name}`: it is damaged.")
    own = f"Pemt{architecture}"
    loaded_by = next(loader for ending, loader in _LOADED_BY.items() if architecture.endswith(ending))
    values = {
        "architectures": [own],
        "auto_map": {loaded_by: f"{_CODE.stem}.{own}"},
        "pemt": {
            "prompt": len(tensors.get(f"{base}prompt", ())),
            "target": _rows(tensors, ".adapters.down.bias"),
            "beside": _rows(tensors, ".adapters.narrow.bias"),
        },
    }
    return Additions(values, tensors, {_CODE.name: _CODE.read_bytes()})


def _place(stack: str, block: str, architecture: str) -> str:
    if architecture.startswith("T5"):
        return f"{stack}.block.{block}.layer.{1 if stack == 'encoder' else 2}"
    return f"encoder.layer.{block}"


def _rows(tensors: Mapping[str, Tensor], ending: str) -> int:
    return next((len(value) for name, value in tensors.items() if name.endswith(ending)), 0)
