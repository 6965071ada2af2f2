"""Models are found by looking into `models/`."""

from fairseq_mtmoe import models


def test_each_folder_is_a_system_in_the_order_of_names(tmp_path, monkeypatch):
    for name in ("zebra", "ape", "_shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    assert models.systems() == ["ape", "base_sparse", "ca_mtl", "mt_tag", "pemt", "t5", "zebra"]
