"""Table 6's options, alone and in pairs, on one backbone after the other: a model does what they say, or refuses."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from fairseq_mtmoe.moe.adapters import ADAPTERS
from fairseq_mtmoe.slots import adapter_blocks
from tests.helpers import borrowing, pemt
from tests.helpers.encoders import all_numbers, task_batch
from tests.helpers.models import batch, stub_task
from tests.helpers.pemt_bert import bert_options, pemt_encoder
from tests.helpers.refused import refused

from fairseq_mtmoe.models.pemt.config import PemtTranslationConfig  # isort: skip
from fairseq_mtmoe.models.pemt.model import PemtBertModel, PemtT5Model, PemtTranslationModel  # isort: skip

ALONE = "alone"  # without sources, which is no option but the lack of one
CHANGES = (
    {"prompt_init": "random"}, {"no_prompt": True}, {ALONE: True}, {"adapter": "bottleneck"},
    {"gate_input": "activations"}, {"gate_input": "hidden"}, {"target_adapter_size": 2},
)  # fmt: skip
PAIRS = [{**one, **other} for one, other in itertools.combinations(CHANGES, 2) if not one.keys() & other.keys()]


def meaningless(options):
    """The option that has no meaning beside the others; None where all have one."""
    if options.get("no_prompt") and options.get("gate_input") == "activations":
        return "--gate-input"
    if options.get(ALONE) and "gate_input" in options:
        return "--gate-input"
    has_no_prompt = options.get("no_prompt") or options.get(ALONE)
    return "--prompt-init" if has_no_prompt and "prompt_init" in options else None


def t5(options, alone):
    make = pemt.pemt_model if alone else pemt.target_model
    model = make(**options)

    def again():
        cfg = pemt.pemt_options(pemt_sources="gone.pt" * (not alone), **options, pemt=model.noted_options["pemt"])
        return PemtT5Model.build_model(cfg, pemt.OneTask())

    return model, again, lambda model: model(**pemt.inputs())


def bert(options, alone):
    model = pemt_encoder(**options) if alone else pemt.target_model(make=pemt_encoder, **options)

    def again():
        cfg = bert_options(pemt_sources="gone.pt" * (not alone), **options, pemt=model.noted_options["pemt"])
        return PemtBertModel.build_model(cfg, SimpleNamespace(pretrained=None))

    def says(model):
        output = model(**task_batch())
        extra = {"task_sparsity": output.pop("task_sparsity")} if "task_sparsity" in output else {}
        return all_numbers(output), extra

    return model, again, says


def translation(options, alone):
    if alone:
        model = borrowing.pemt_model(**options)
        model.load_state_dict(borrowing.translator().state_dict())
    else:
        model = borrowing.begun_target(**options)

    def again():
        given = {"adapter_rank": borrowing.RANK, "pemt_sources": "gone.pt" * (not alone), **borrowing.SIZES, **options}
        cfg = PemtTranslationConfig(**given, pemt=model.noted_options["pemt"])
        return PemtTranslationModel.build_model(cfg, stub_task())

    return model, again, lambda model: model(**batch(task_ids=False))[:2]


def assert_it_is(model, options, alone):
    """Each option, seen in the model."""
    assert (model.encoder.prompt is None) == bool(alone or options.get("no_prompt"))
    assert model.encoder.gate_input == (
        None if alone else options.get("gate_input", "hidden" if options.get("no_prompt") else "correlation")
    )
    for block in adapter_blocks(model).values():
        bank = block.mixture.adapters
        assert (bank is None) == alone
        assert alone or type(bank) is ADAPTERS[options.get("adapter", "lora")]
        wanted = options.get("target_adapter_size", max(1, len(block.fc2.weight) // 16))
        assert block.mixture.target_adapter.down.out_features == wanted
    if "prompt_init" in options:
        described = {"description": True, "random": False}[options["prompt_init"]]
        embedded = model.prompt_embeddings()[list(model.metadata.tokens)]
        assert torch.equal(model.encoder.prompt.weight, embedded) == described


@pytest.mark.parametrize(
    ("backbone", "options"),
    [(backbone, pair) for number, pair in enumerate(PAIRS) for backbone in ((t5, bert, translation)[number % 3],)]
    + [(backbone, CHANGES[number]) for number, backbone in enumerate((bert, translation, t5) * 2)],
    ids=lambda case: "+".join(map(str, case.values())) if isinstance(case, dict) else case.__name__,
)
def test_options_alone_and_in_pairs(backbone, options):
    alone = ALONE in options
    given = {name: value for name, value in options.items() if name != ALONE}
    if name := meaningless(options):
        with refused(name):
            backbone(given, alone)
        return
    model, again, says = backbone(given, alone)
    assert_it_is(model, given, alone)
    pemt.perturbed(model).train()
    output, extra = says(model)
    assert ("task_sparsity" in extra) == (not alone)
    (output.square().mean() + extra.get("task_sparsity", 0)).backward()
    silent = [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]
    assert silent == [] and output.isfinite().all()
    kept = again().eval()
    kept.load_state_dict(model.state_dict())
    torch.testing.assert_close(says(kept)[0], says(model.eval())[0])
