"""Conditional parts, which adapt a network to each sentence's task.

They are those of CA-MTL, §2.1, in pure torch, for any backbone.

FiLM is `(1 + γ(z))·x + β(z)`, with γ and β one linear map of a task's embedding z. γ and β of all
tasks, (K, F), are computed once per pass, or once per text in incremental decoding
(`Tasks.keeping`). Each token takes its task's row.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import LongTensor, Tensor, nn
from torch.nn import functional as F

STD = 0.02  # of initial weights, as in the authors' code
NARROWING = 3  # a bottleneck's input width divided by its inner width
ATTENTION = "attention"
NORM = "norm"
ALIGNMENT = "alignment"
BOTTLENECK = "bottleneck"
PARTS = (ATTENTION, NORM, ALIGNMENT, BOTTLENECK)


class FiLM(nn.Module):
    """A linear map from task embeddings (K, D) to γ and β (K, F); D is `dim`."""

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        self.linear = initialized(nn.Linear(dim, 2 * features))

    def forward(self, z_KD: Tensor) -> tuple[Tensor, Tensor]:
        """Return each task's 1 + γ and β, (K, F) both; at first 1 and 0 for zeros."""
        gamma_KF, beta_KF = self.linear(z_KD).chunk(2, -1)
        return 1 + gamma_KF, beta_KF


def modulated(x: Tensor, scale_KF: Tensor, shift_KF: Tensor, task_ids: LongTensor) -> Tensor:
    """Return `x` (…, B, F) scaled and shifted by the rows of its tasks (B,)."""
    return x * scale_KF.index_select(0, task_ids) + shift_KF.index_select(0, task_ids)


def initialized(linear: nn.Linear) -> nn.Linear:
    """Initialize a layer as the authors' code does, and return it."""
    nn.init.normal_(linear.weight, std=STD)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


@dataclass(frozen=True)
class Tasks:
    """The task embeddings of a forward pass, with gradients."""

    raw_KD: Tensor  # the table itself, which alignment reads
    shared_KD: Tensor  # the transformed table, which all other modules read
    # See `keeping`
    kept: dict[nn.Module, tuple[Tensor, Tensor]] | None = field(default=None, compare=False)

    def keeping(self) -> Self:
        """Return a copy that caches each module's result over many passes of a text."""
        return replace(self, kept={})

    def once(
        self, module: nn.Module, make: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return `make()`, from the cache if this object keeps one."""
        if self.kept is None:
            return make()
        if module not in self.kept:
            self.kept[module] = make()
        return self.kept[module]


class TaskEmbeddings(nn.Module):
    """The embedding table (K, D) and its linear transform.

    Alignment does not read the transform. The table starts at zero, where FiLM is the identity.
    """

    def __init__(self, num_tasks: int, dim: int, transforms: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_tasks, dim))
        self.transform = initialized(nn.Linear(dim, dim)) if transforms else None

    def forward(self) -> Tasks:
        """Return the embeddings of all tasks for a pass."""
        shared_KD = self.weight if self.transform is None else self.transform(self.weight)
        return Tasks(self.weight, shared_KD)


class ConditionalLayerNorm(nn.LayerNorm):
    """Layer norm with task-dependent scale and shift (§2.1.3, equation 3).

    `h = (a-μ)/σ · γ_0·(1+γ(z)) + β_0 + β(z)`, with a pretrained norm's `weight` and `bias`.
    """

    def __init__(self, size: int, dim: int, eps: float = 1e-5) -> None:
        super().__init__(size, eps)
        self.film = FiLM(dim, size)

    @classmethod
    def from_norm(cls, norm: Any, dim: int) -> Self:
        """Return a module with the parameters of torch's or fairseq's norm, to replace it."""
        conditional = cls(norm.normalized_shape[0], dim, norm.eps).to(norm.weight)
        conditional.weight = norm.weight
        conditional.bias = norm.bias
        return conditional

    def forward(  # type: ignore[override]
        self, x: Tensor, tasks: Tasks, task_ids: LongTensor
    ) -> Tensor:
        """Return `x` (…, B, H) normalized for the tasks (B,) of its sentences or tokens."""
        normed = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return modulated(normed, *tasks.once(self, lambda: self._of(tasks)), task_ids)

    def _of(self, tasks: Tasks) -> tuple[Tensor, Tensor]:
        """Return the scale and shift of each task, (K, H) both."""
        scale_KH, shift_KH = self.film(tasks.shared_KD)
        return self.weight * scale_KH, self.bias + shift_KH


def apply_norm(
    norm: nn.Module, x: Tensor, tasks: Tasks | None, task_ids: LongTensor | None
) -> Tensor:
    """Return `norm(x)`; a conditional norm also gets the tasks."""
    normed: Tensor = norm(x, tasks, task_ids) if isinstance(norm, ConditionalLayerNorm) else norm(x)
    return normed


class ConditionalAlignment(nn.Module):
    """`x·R(z)` between embeddings and first block (§2.1.2, equation 2).

    `R(z) = FiLM(R; z)`; R starts as the identity. Tasks need no matrices of their own:
    `x·R(z) = (1 + γ(z))·(x·R) + β(z)·Σ_i x_i`.
    """

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.film = FiLM(dim, size)
        self.weight = nn.Parameter(torch.eye(size))

    def forward(self, x: Tensor, tasks: Tasks, task_ids: LongTensor) -> Tensor:
        """Return `x` (…, B, H) aligned for the tasks (B,) of its sentences or tokens."""
        scale_KH, beta_KH = tasks.once(self, lambda: self.film(tasks.raw_KD))
        aligned = F.linear(x, self.weight.t()) * scale_KH.index_select(0, task_ids)
        return aligned + x.sum(-1, keepdim=True) * beta_KH.index_select(0, task_ids)


class ConditionalBottleneck(nn.Module):
    """`B(x) = up(down(FiLM(norm(x); z)))` (§2.1.4), linear from H to H/3 to H.

    begins_at_zero: whether the output is 0 at the start of training.
    """

    def __init__(
        self, dim: int, size: int, begins_at_zero: bool, norm: nn.LayerNorm | None = None
    ) -> None:
        super().__init__()
        self.layer_norm = norm
        narrow = max(1, size // NARROWING)
        self.film = FiLM(dim, size)
        self.down = initialized(nn.Linear(size, narrow))
        self.up = initialized(nn.Linear(narrow, size))
        if begins_at_zero:
            nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor, tasks: Tasks, task_ids: LongTensor) -> Tensor:
        """Return the bottleneck's output, shaped as `x` (…, B, H)."""
        if self.layer_norm is not None:
            x = apply_norm(self.layer_norm, x, tasks, task_ids)
        scale_and_shift = tasks.once(self, lambda: self.film(tasks.shared_KD))
        output: Tensor = self.up(self.down(modulated(x, *scale_and_shift, task_ids)))
        return output


def block_width(positions: int, size: int) -> int:
    """Return an attention block's tokens: 22 for BERT base's 128 positions.

    There are H/L blocks, for L `positions` and the model width H, `size` (§2.1.1).
    """
    blocks = max(1, size // positions)
    return -(-positions // blocks)


class ConditionalAttentionBias(nn.Module):
    """M(z) of conditional attention, `softmax(M(z) + QKᵀ/√d)·V` (§2.1.1).

    `M(z) = ⊕_n FiLM(A_n; z)`, the same for all heads. Pairs of tokens in the same block of
    neighbours get `(1 + γ_j(z))·A_ij + β_j(z)`, all others 0. A has a row for each of `positions`
    and a column for each of a block's `width` tokens, as γ and β. Beyond `positions` the pattern
    repeats, and blocks do not cross its end.
    """

    def __init__(self, dim: int, positions: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.film = FiLM(dim, width)
        self.weight = nn.Parameter(torch.zeros(positions, width))

    def of_tasks(self, tasks: Tasks, length: int) -> Tensor:
        """Return M(z) of every task for sentences of `length` tokens.

        Its shape is (K, L, L): task, query, key.
        """
        scale_KW, shift_KW = self.film(tasks.shared_KD)
        position_L = torch.arange(length, device=self.weight.device)
        row_L = position_L % len(self.weight)
        column_L = row_L % self.width
        begin_L = position_L - column_L  # the block's first token
        in_block_LL = begin_L.unsqueeze(1) == begin_L
        rows_LW = self.weight.index_select(0, row_L)
        values_KLW: Tensor = scale_KW.unsqueeze(1) * rows_LW + shift_KW.unsqueeze(1)
        return values_KLW.index_select(2, column_L) * in_block_LL

    def row_of_tasks(self, tasks: Tasks, position: int) -> Tensor:
        """Return every task's row of M(z) up to a position, (K, position + 1).

        For incremental decoding.
        """
        row = position % len(self.weight)
        num_before = position - row % self.width
        num_in_block = row % self.width + 1
        scale_KW, shift_KW = tasks.once(self, lambda: self.film(tasks.shared_KD))
        bias_KW = (scale_KW * self.weight[row] + shift_KW)[:, :num_in_block]
        return F.pad(bias_KW, (num_before, 0))

    def forward(
        self, tasks: Tasks, task_ids: LongTensor, length: int, position_BL: Tensor | None = None
    ) -> Tensor:
        """Return the bias (B, 1, L, L) of attention scores.

        position_BL: the tokens' positions; by default 0, 1, ….
        """
        bias_KLL = self.of_tasks(tasks, length)
        if position_BL is None:
            return bias_KLL.index_select(0, task_ids).unsqueeze(1)
        # The gradient of an embedding, unlike that of indexing, is summed in a fixed order.
        rows_BLL = F.embedding(task_ids.unsqueeze(1) * length + position_BL, bias_KLL.flatten(0, 1))
        return rows_BLL.gather(2, position_BL.unsqueeze(1).expand_as(rows_BLL)).unsqueeze(1)


# Modules whose parameters are all conditional; a conditional norm is not among them
_OF_CONDITIONS = (
    TaskEmbeddings,
    FiLM,
    ConditionalAttentionBias,
    ConditionalAlignment,
    ConditionalBottleneck,
)


def conditional_names(model: nn.Module) -> Iterator[str]:
    """Yield the names of a model's conditional parameters."""
    for path, module in model.named_modules():
        if isinstance(module, _OF_CONDITIONS):
            for name, _ in module.named_parameters(prefix=path):
                yield name


def with_new_conditions(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state with the conditional parameters of `model`.

    A state that already has conditional parameters is returned unchanged.
    """
    names = set(conditional_names(model))
    if names & state.keys():
        return dict(state)
    state_of_model = model.state_dict()
    return {**{name: state_of_model[name] for name in names}, **state}
