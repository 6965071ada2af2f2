"""Gates folded into what they weigh: what the model says stays, and costs what a model without sources costs."""

from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.pemt.sources import Metadata
from tests.helpers.bert import perturb
from tests.helpers.invoked import mtmoe
from tests.helpers.pemt import BERT, RANK, T5, TRANSLATION, target_model
from tests.helpers.refused import refused
from tests.helpers.t5 import CONFIGS

each_adapter = pytest.mark.parametrize("adapter", ["lora", "bottleneck"])
CASES = {
    "translation": (TRANSLATION, {}),
    "translation, conditional": (TRANSLATION, dict(conditional=",".join(PARTS))),
    **{f"t5 {version}": (T5, dict(config=config)) for version, config in CONFIGS.items()},
    "bert": (BERT, {}),
}


def trained(backbone, **options):
    """A model of stage 2, and its options in a checkpoint."""
    model = perturb(target_model(make=backbone.make, **options))
    return model, {**backbone.kept_options(model, **options), "_name": f"pemt_{backbone.name}"}


def merge(folder, model, options, *arguments):
    """The merged checkpoint, and what the command says."""
    state = {
        "cfg": {"model": options, "task": None}, "model": model.state_dict(),
        "last_optimizer_state": {"state": {}, "param_groups": []},
        "extra_state": {"ema": model.state_dict(), "epoch": 3},
    }  # fmt: skip
    torch.save(state, folder / "checkpoint_best.pt")
    paths = (folder / "checkpoint_best.pt", folder / "merged.pt")
    result = CliRunner().invoke(commands, ["merge", *map(str, paths), *arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return torch.load(paths[1]), result.output


@each_adapter
@pytest.mark.parametrize(("backbone", "options"), CASES.values(), ids=CASES)
def test_merged_it_says_what_it_said_and_has_no_gates(backbone, options, adapter, tmp_path):
    model, kept = trained(backbone, adapter=adapter, **options)
    wanted, _ = backbone.says(model)
    state, said = merge(tmp_path, model, kept)
    state["cfg"]["model"].pop("_name")
    merged = backbone.made_again(state["cfg"]["model"])
    merged.load_state_dict(state["model"])
    torch.testing.assert_close(backbone.says(merged)[0], wanted, rtol=1e-5, atol=1e-5)
    assert merged.source_names == [] and not any(".gate." in key for key in state["model"])
    ranks = {module.mixture.adapters and module.mixture.adapters.rank for module in merged.encoder.layers}
    assert ranks == {None if adapter == "lora" else RANK * len(model.source_names)}
    assert "last_optimizer_state" not in state and state["extra_state"]["epoch"] == 3
    assert all(torch.equal(state["extra_state"]["ema"][key], value) for key, value in state["model"].items())
    assert model.source_names[0] in said


def test_adapters_have_no_class_in_transformers(tmp_path):
    state, _ = merge(tmp_path, *trained(T5))
    file_io.save(state, str(tmp_path / "merged.pt"))
    with pytest.raises(UserError, match=r"has adapters, .* use `mtmoe predict`"):
        mtmoe("export-hf", tmp_path / "merged.pt", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_what_cannot_be_merged_is_refused(tmp_path):
    """Gates that read each text, and what borrows nothing."""
    model, options = trained(TRANSLATION)
    nothing = replace(Metadata.from_text(options["pemt"]), sources=()).to_text()
    with pytest.raises(UserError, match="has no sources to merge"):
        merge(tmp_path, model, {**options, "pemt": nothing})
    with refused("--gate-input"):
        merge(tmp_path, model, {**options, "gate_input": "hidden"})
    assert not (tmp_path / "merged.pt").exists()
