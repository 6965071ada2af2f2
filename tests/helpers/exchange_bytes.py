"""The bytes and operations of an expert layer's exchange, as docs/concepts/communication.md states them.

All are per process and update. A layer has N experts, which P processes hold between them.
"""

COUNT_BYTES = 8  # Numbers of tokens and of rows are int64.
SCORE_BYTES = 4  # Scores are float32; the answers, numbers of experts, are int32.


def row_bytes(sent: float, arrived: float, width: int, element_size: int, backward: bool = True) -> float:
    """Return the bytes of rows that leave for their experts, and of rows that go back; gradients go the same ways."""
    return (1 + backward) * (sent + arrived) * width * element_size


def count_bytes(num_experts: int, num_processes: int, shuffles: bool) -> int:
    """Return the bytes that say how many rows each expert gets."""
    if shuffles:  # The number of rows from each process comes with the answers.
        return (num_processes - 1) * num_experts * SCORE_BYTES
    return (num_experts - num_experts // num_processes) * COUNT_BYTES


def shuffle_bytes(sent: float, arrived: float, num_experts: int) -> float:
    """Return the bytes of scores that other processes assign, and of answers for theirs."""
    return (sent * (num_experts + 1) + arrived) * SCORE_BYTES


def gather_bytes(num_processes: int, stacks: int = 1) -> int:
    """Return the bytes of the numbers of tokens, which a model that shuffles gathers once."""
    return stacks * (num_processes - 1) * COUNT_BYTES


def num_operations(shuffles: bool, backward: bool = True) -> int:
    """Return the collective operations of one expert layer, without that gathering."""
    return 3 + 2 * backward + shuffles
