import logging
import subprocess
import warnings

import pytest

from fairseq_mtmoe.core.known_warnings import filter_known
from tests.helpers.commands import BIN, REPOSITORY


def shown(text, category, module, ask="default"):
    with warnings.catch_warnings(record=True) as found:
        warnings.resetwarnings()
        if ask != "default":
            warnings.simplefilter(ask)
        filter_known()
        warnings.warn_explicit(text, category, "file.py", 1, module=module, registry={})
    return bool(found)


@pytest.mark.parametrize(("text", "category", "module"), [
    ("\nThe version_base parameter is not specified.\nPlease", UserWarning, "hydra.experimental.initialize"),
    ("`broadcast_buffers` is deprecated. Use", FutureWarning, "fairseq_mtmoe.training.steps"),
    ("Support for mismatched key_padding_mask and attn_mask is", UserWarning, "torch.nn.functional"),
])  # fmt: skip
def test_a_known_warning_is_left_out_unless_the_user_wants_it(text, category, module):
    assert not shown(text, category, module)
    assert shown(text, category, module, ask="always")
    assert shown(text, category, "a.users.module") or module.startswith("torch")
    assert shown("Something else is wrong.", category, module)


def test_a_message_of_fairseqs_imports_is_left_out():
    """On tensorboardX, which this package does without."""
    filter_known()
    assert not logging.getLogger("fairseq.tasks.text_to_speech").isEnabledFor(logging.INFO)


def test_our_commands_show_none(tmp_path):
    dense = REPOSITORY / "tests" / "golden" / "v0_2_0" / "dense" / "checkpoint_last.pt"
    command = [BIN / "mtmoe", "upcycle", dense, tmp_path / "sparse.pt", "--num-experts", "2"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=REPOSITORY)
    assert "2 experts per layer" in result.stdout and "Warning" not in result.stderr
