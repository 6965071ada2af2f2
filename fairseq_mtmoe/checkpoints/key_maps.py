"""What is called otherwise in another checkpoint, as tables: in a dense model's, and in that of an older version.

Each parameter of a dense model goes somewhere in the sparse model made from it. The names are those of state dicts. A
block's feed-forward layer becomes its experts' stacked parameters; all else keeps its name. Parameters of the sparse
model that no row names, the gates', start afresh.
"""

from __future__ import annotations

import re
from typing import Any

# Within the names of a sparse model's state, after the block's path:
MOE = ".moe."  # the layer that took the place of the feed-forward one
EXPERTS = ".moe.experts."  # its experts, stacked
SHARED = ".moe.shared."  # the expert of all tokens, which has no bias of the output
GATE = ".moe.gate.weight"
# Within those of one that adapts to tasks: the table, and by which part of `--conditional` the others are
TASK_EMBEDDINGS = "task_embeddings.weight"
VOCABULARY = ("embed_tokens.weight", "output_projection.weight")  # which can be one tensor
CONDITIONS = {
    "attention": ".attention_bias.",
    "norm": "_layer_norm.film.",
    "alignment": ".alignment.",
    "bottleneck": ".bottleneck.",
}
MIXTURE = ".mixture."  # what stands beside the feed-forward layer of a block with adapters
SIDE_CHAIN = ".side_chain."  # the bottlenecks of an encoder in the large form
# In a checkpoint's `extra_state`:
GATE_RATE = "gate_rate"  # at which rate the gates learn

# name within a block of the dense model -> name within the experts, and the shared one, of the same block of the sparse
DENSE_TO_EXPERTS = {
    "fc1.weight": "fc1_weight",
    "fc1.bias": "fc1_bias",
    "fc2.weight": "fc2_weight",
    "fc2.bias": "fc2_bias",
}
FIRST_WEIGHT = EXPERTS + DENSE_TO_EXPERTS["fc1.weight"]  # of all experts of a block, (N, F, H)
FIRST_SHARED = SHARED + DENSE_TO_EXPERTS["fc1.weight"]  # of the shared one, (D, H)

# criterion's class in the optimizer's history: of 0.1.0 -> since then
CRITERIONS = {"MoELabelSmoothedCrossEntropyCriterion": "LabelSmoothedCrossEntropyCriterion"}

_FEED_FORWARD = re.compile(r"^((?:.*\.)?(?:encoder|decoder)\.layers\.\d+)\.(fc[12]\.(?:weight|bias))$")


def expert_key(dense_key: str, expert_blocks: set[str]) -> str | None:
    """The stacked parameter that a dense model's parameter is copied into, or None if it keeps its name.

    `expert_blocks` holds the blocks with experts, such as `encoder.layers.1`.
    """
    match = _FEED_FORWARD.match(dense_key)
    if match is None or match[1] not in expert_blocks:
        return None
    return f"{match[1]}{EXPERTS}{DENSE_TO_EXPERTS[match[2]]}"


def rename_criterions(state: dict[str, Any]) -> None:
    """Give the criterions of a checkpoint the names that they have now, in place."""
    for entry in state.get("optimizer_history", ()):
        name = entry.get("criterion_name")
        entry["criterion_name"] = CRITERIONS.get(name, name)
