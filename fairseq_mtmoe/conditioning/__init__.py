"""What adapts a network to each sentence's task; pure torch, of no backbone.

Implements "Conditionally Adaptive Multi-Task Learning" (CA-MTL), §2.1.
"""

from fairseq_mtmoe.conditioning.alignment import ConditionalAlignment
from fairseq_mtmoe.conditioning.attention import ConditionalAttentionBias, block_width
from fairseq_mtmoe.conditioning.bottleneck import ConditionalBottleneck
from fairseq_mtmoe.conditioning.film import FiLM
from fairseq_mtmoe.conditioning.layer_norm import ConditionalLayerNorm, apply_norm
from fairseq_mtmoe.conditioning.parts import (
    ALIGNMENT,
    ATTENTION,
    BOTTLENECK,
    NORM,
    PARTS,
    conditional_names,
    with_new_conditions,
)
from fairseq_mtmoe.conditioning.task_embeddings import TaskEmbeddings, Tasks

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
