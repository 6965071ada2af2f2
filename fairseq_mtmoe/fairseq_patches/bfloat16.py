"""`--bf16` on the command line: fairseq then takes the machine for a TPU, whether it has GPUs or not, and fails."""

import functools
from collections.abc import Callable, MutableMapping
from importlib.util import find_spec
from typing import Any


def correcting_tpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's `call_main`, which takes the machine for a TPU only where it can be one."""

    @functools.wraps(original)
    def call_main(cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
        if cfg.common.bf16 and cfg.common.tpu and find_spec("torch_xla") is None:
            for options in cfg.values():
                if isinstance(options, MutableMapping) and "tpu" in options:
                    options["tpu"] = False
        return original(cfg, main, **kwargs)

    return call_main
