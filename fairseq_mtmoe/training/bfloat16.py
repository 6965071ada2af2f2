"""`--bf16` on the command line: fairseq then takes the machine for a TPU, whether it has GPUs or not, and fails."""

import functools
from collections.abc import Callable, MutableMapping
from importlib.util import find_spec
from typing import Any

from fairseq.distributed import utils


def install() -> None:
    """Correct the options before fairseq's commands act on them. Safe to call any number of times."""
    if not hasattr(utils.call_main, "installed_by"):
        utils.call_main = _correcting(utils.call_main)


def _correcting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_main(cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
        if cfg.common.bf16 and cfg.common.tpu and find_spec("torch_xla") is None:
            for options in cfg.values():
                if isinstance(options, MutableMapping) and "tpu" in options:
                    options["tpu"] = False
        return original(cfg, main, **kwargs)

    call_main.installed_by = __name__  # type: ignore[attr-defined]
    return call_main
