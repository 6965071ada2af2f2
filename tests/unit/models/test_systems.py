"""Models are found by looking into `models/`."""

import subprocess
import sys

from fairseq_mtmoe import models


def test_each_folder_is_a_system_in_the_order_of_names(tmp_path, monkeypatch):
    for name in ("zebra", "ape", "_shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    assert models.systems() == ["ape", "base_sparse", "ca_mtl", "mt_tag", "pemt", "t5", "zebra"]


def test_fairseq_knows_every_system_after_loading_the_plugin():
    code = """if True:
        from argparse import Namespace
        from fairseq import utils
        from fairseq.models import MODEL_REGISTRY
        utils.import_user_module(Namespace(user_dir="fairseq_mtmoe"))
        print(sorted(name for name in MODEL_REGISTRY if name.startswith("base_")))
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "['base_dense', 'base_moe']" in result.stdout
