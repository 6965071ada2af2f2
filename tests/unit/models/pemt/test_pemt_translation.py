"""Translators that borrow from language pairs: prompts before words, adapters, and gates in the decoder."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_mtmoe.checkpoints.key_maps import TASK_EMBEDDINGS, VOCABULARY
from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.models.pemt.sources import backbone, fingerprint
from tests.helpers.borrowing import DESCRIPTION, describing_task, pemt_model, target_model, translator
from tests.helpers.models import TASKS, batch, stub_task
from tests.helpers.refused import refused

CONDITIONAL = dict(conditional=",".join(PARTS))
GATE_INPUTS = ("correlation", "activations", "hidden")


def source_model(**options):
    model = pemt_model(pemt_stage="source", **options)
    model.load_state_dict(translator(**{k: v for k, v in options.items() if k == "conditional"}).state_dict())
    return model


def net_input(model):
    return batch(task_ids=bool(model.task_names))


def test_a_prompt_begins_as_what_the_encoder_reads_of_the_description_and_words_keep_their_places():
    model, dense = source_model(), translator()
    tokens = batch(task_ids=False)["src_tokens"]
    x, context, _ = model.encoder.embed(tokens, None)
    plain, _, _ = dense.encoder.embed(tokens, None)
    size = len(DESCRIPTION)
    assert torch.equal(x[size:], plain)
    described = dense.encoder.embed_scale * dense.encoder.embed_tokens.weight[list(DESCRIPTION)]
    assert torch.equal(x[:size], described.unsqueeze(1).expand_as(x[:size]))
    assert torch.equal(context.padding_mask[:, size:], tokens.eq(1)) and not context.padding_mask[:, :size].any()
    assert context.prompt_length == size


@pytest.mark.parametrize("options", [{}, CONDITIONAL], ids=["dense", "conditional"])
def test_a_sentence_is_translated_alike_with_padding_on_either_side(options):
    model = source_model(**options)
    words, target = batch()["src_tokens"][:1], batch()["prev_output_tokens"][:1]
    pad = words.new_full((1, 3), 1)
    inputs = dict(src_lengths=torch.tensor([7]), prev_output_tokens=target)
    inputs |= dict(task_ids=torch.tensor([1])) if options else {}
    wanted = model(words, **inputs)[0]
    for padded in (torch.cat([pad, words], 1), torch.cat([words, pad], 1)):
        torch.testing.assert_close(model(padded, **inputs)[0], wanted, rtol=1e-4, atol=1e-5)


def test_words_that_adapt_to_tasks_have_the_bias_that_they_have_without_a_prompt():
    model, dense = source_model(**CONDITIONAL), translator(**CONDITIONAL)
    inputs = batch()
    found, wanted = [], []
    for each, biases in ((model, found), (dense, wanted)):
        block = each.encoder.layers[0]
        x, context, _ = each.encoder.embed(inputs["src_tokens"], inputs["task_ids"])
        biases.append(block.bias_of(x, context))
    size = len(DESCRIPTION)
    real = ~inputs["src_tokens"].eq(1).repeat_interleave(2, 0)
    both = real.unsqueeze(1) & real.unsqueeze(2)
    assert wanted[0][both].any()
    assert torch.equal(found[0][:, size:, size:][both], wanted[0][both])
    assert not found[0][:, :size].any() and not found[0][:, :, :size].any()


@pytest.mark.parametrize(
    ("gate_input", "options"), [*((name, {}) for name in GATE_INPUTS), ("hidden", CONDITIONAL)], ids=str
)
def test_a_translation_that_grows_word_by_word_has_the_scores_of_the_whole(tmp_path, gate_input, options):
    """With three hypotheses of each sentence, whose order changes, and sentences that end."""
    model = target_model(tmp_path, gate_input=gate_input, **options)
    inputs = net_input(model)
    whole = model(**inputs)[0]
    order = torch.arange(4).repeat_interleave(3)
    target = inputs.pop("prev_output_tokens")[order]
    encoded = model.encoder(**inputs)
    encoded = model.encoder.reorder_encoder_out(encoded, order)
    state, rows = {}, order
    turn = torch.tensor([2, 1, 0])
    for length in range(1, target.shape[1] + 1):
        found = model.decoder(target[:, :length], encoder_out=encoded, incremental_state=state)[0]
        real = target[:, length - 1].ne(1)
        wanted = whole[rows, length - 1]
        torch.testing.assert_close(found[:, 0][real], wanted[real], rtol=1e-4, atol=1e-5)
        kept = torch.arange(len(rows)).view(-1, 3)
        kept = kept[1:] if length == 2 else kept
        chosen = kept[:, turn].flatten()
        rows, target = rows[chosen], target[chosen]
        model.decoder.reorder_incremental_state_scripting(state, chosen)
        encoded = model.encoder.reorder_encoder_out(encoded, chosen)


def test_attention_that_comes_out_is_to_words(tmp_path):
    model = target_model(tmp_path)
    inputs = batch(task_ids=False)
    attention = model(**inputs)[1]["attn"][0]
    assert attention.shape == (4, 6, 7)
    generator = SequenceGenerator([model], stub_task().target_dictionary, beam_size=2, max_len_b=5)
    found = generator.generate([model], {"net_input": {k: v for k, v in inputs.items() if "src" in k}})
    assert all(each["attention"].shape[0] == 7 for sentence in found for each in sentence)


def test_of_norms_that_adapt_to_tasks_stage_2_trains_the_norm_alone(tmp_path):
    trained = {name for name, each in target_model(tmp_path, **CONDITIONAL).named_parameters() if each.requires_grad}
    norms = {name for name in trained if "layer_norm" in name}
    assert norms and all(name.endswith(("layer_norm.weight", "layer_norm.bias")) for name in norms)
    assert not any("film" in name for name in trained)


@pytest.mark.parametrize("option", ["cross_self_attention", "checkpoint_activations", "quant_noise_pq"])
def test_what_does_not_go_with_borrowing_is_refused(option):
    with refused(f"--{option.replace('_', '-')}"):
        pemt_model(pemt_stage="source", **{option: 0.1 if option == "quant_noise_pq" else True})


def test_a_task_that_describes_nothing_is_refused():
    with refused("--task"):
        pemt_model(task=stub_task(), pemt_stage="source")


def with_a_language_more(state):
    """A translator's state after `mtmoe add-task`."""
    grown = {name for name in state if name.endswith((*VOCABULARY, TASK_EMBEDDINGS))}
    return {name: torch.cat([value, value[-1:]]) if name in grown else value for name, value in state.items()}


@pytest.mark.parametrize("earlier", [False, True], ids=["now", "0.1.11"])
@pytest.mark.parametrize("options", [{}, CONDITIONAL], ids=["dense", "conditional"])
def test_sources_from_before_a_language_was_added_fit_and_those_of_another_translator_do_not(
    options, earlier, tmp_path
):
    """Of its last three symbols the translator knows languages; 0.1.11's fingerprints covered them."""
    state = translator(**options).state_dict()
    source = pemt_model(task=describing_task("aa-bb", language_symbols=3), pemt_stage="source", **options)
    source.load_state_dict(state)
    if earlier:
        digest = fingerprint(backbone(source))
        source.backbone_fingerprint.copy_(torch.tensor(list(bytes.fromhex(digest))))
    file = str(source.export_source(str(tmp_path)))
    names = {"task_names": ",".join([*TASKS, "dd"])} if options else {}

    def target(state):
        task = describing_task(symbols=21, language_symbols=4)
        model = pemt_model(task=task, pemt_sources=file, **options, **names)
        model.load_state_dict(state)

    grown = with_a_language_more(state)
    target(grown)
    grown["encoder.embed_tokens.weight"] = grown["encoder.embed_tokens.weight"].clone()
    grown["encoder.embed_tokens.weight"][5] += 1e-3  # a word
    with refused("aa-bb.pt"):
        target(grown)
