"""What adapts a network to each sentence's task; pure torch, of no backbone.

Implements "Conditionally Adaptive Multi-Task Learning" (CA-MTL), §2.1.
"""

from fairseq_mtmoe.conditioning.attention import ConditionalAttentionBias, block_width
from fairseq_mtmoe.conditioning.film import FiLM, TaskEmbeddings, Tasks
from fairseq_mtmoe.conditioning.modules import (
    ALIGNMENT,
    ATTENTION,
    BOTTLENECK,
    NORM,
    PARTS,
    ConditionalAlignment,
    ConditionalBottleneck,
    ConditionalLayerNorm,
    apply_norm,
    conditional_names,
    with_new_conditions,
)

__all__ = [
    "ALIGNMENT",
    "ATTENTION",
    "BOTTLENECK",
    "NORM",
    "PARTS",
    "ConditionalAlignment",
    "ConditionalAttentionBias",
    "ConditionalBottleneck",
    "ConditionalLayerNorm",
    "FiLM",
    "TaskEmbeddings",
    "Tasks",
    "apply_norm",
    "block_width",
    "conditional_names",
    "with_new_conditions",
]
