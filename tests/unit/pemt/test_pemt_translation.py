"""Translators that borrow from language pairs: prompts before words, adapters, and gates in the decoder."""

from functools import partial

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_mtmoe.checkpoints.key_maps import TASK_EMBEDDINGS, VOCABULARY
from fairseq_mtmoe.conditioning import PARTS
from tests.helpers.bert import perturb
from tests.helpers.decoding import decode
from tests.helpers.models import TASKS, batch, stub_task
from tests.helpers.pemt import DESCRIPTIONS, TRANSLATION, pemt_translator, target_model, translator
from tests.helpers.refused import refused

CONDITIONAL = dict(conditional=",".join(PARTS))
source_model = partial(pemt_translator, pemt_stage="source")


def test_a_prompt_begins_as_what_the_encoder_reads_of_the_description_and_words_keep_their_places():
    model, dense = source_model(), translator()
    tokens = batch(task_ids=False)["src_tokens"]
    x, _, _ = model.encoder.embed(tokens, None)
    plain, _, _ = dense.encoder.embed(tokens, None)
    size = len(DESCRIPTIONS["cc"])
    assert torch.equal(x[size:], plain)
    described = dense.encoder.embed_scale * dense.encoder.embed_tokens.weight[list(DESCRIPTIONS["cc"])]
    assert torch.equal(x[:size], described.unsqueeze(1).expand_as(x[:size]))


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
    inputs, biases = batch(), []
    for model in (source_model(**CONDITIONAL), translator(**CONDITIONAL)):
        x, context, _ = model.encoder.embed(inputs["src_tokens"], inputs["task_ids"])
        biases.append(model.encoder.layers[0].bias_of(x, context))
    found, wanted = biases
    size = len(DESCRIPTIONS["cc"])
    real = ~inputs["src_tokens"].eq(1).repeat_interleave(2, 0)
    both = real.unsqueeze(1) & real.unsqueeze(2)
    assert wanted[both].any()
    assert torch.equal(found[:, size:, size:][both], wanted[both])
    assert not found[:, :size].any() and not found[:, :, :size].any()


@pytest.mark.parametrize(
    ("gate_input", "options"),
    [("correlation", {}), ("activations", {}), ("hidden", {}), ("hidden", CONDITIONAL)],
    ids=str,
)
def test_a_translation_that_grows_word_by_word_has_the_scores_of_the_whole(gate_input, options):
    model = perturb(target_model(make=pemt_translator, gate_input=gate_input, **options))
    decode(model, batch(task_ids=bool(model.task_names)))


def test_attention_that_comes_out_is_to_words():
    model = perturb(target_model(make=pemt_translator))
    inputs = batch(task_ids=False)
    generator = SequenceGenerator([model], stub_task().target_dictionary, beam_size=2, max_len_b=5)
    found = generator.generate([model], {"net_input": {k: v for k, v in inputs.items() if "src" in k}})
    assert all(each["attention"].shape[0] == 7 for sentence in found for each in sentence)


def test_what_does_not_go_with_borrowing_is_refused():
    for option in ("cross_self_attention", "checkpoint_activations"):
        with refused(f"--{option.replace('_', '-')}"):
            source_model(**{option: True})
    with refused("--task"):  # it describes nothing
        TRANSLATION.made_again(dict(pemt_stage="source"))


def with_a_language_more(state):
    """A translator's state after `mtmoe add-task`."""
    grown = {name for name in state if name.endswith((*VOCABULARY, TASK_EMBEDDINGS))}
    return {name: torch.cat([value, value[-1:]]) if name in grown else value for name, value in state.items()}


@pytest.mark.parametrize("options", [{}, CONDITIONAL], ids=["dense", "conditional"])
def test_sources_from_before_a_language_was_added_fit_and_those_of_another_translator_do_not(options, tmp_path):
    state = translator(**options).state_dict()
    source = source_model(name="aa", language_symbols=3, **options)
    file = str(source.export_source(str(tmp_path)))
    names = {"task_names": ",".join([*TASKS, "dd"])} if options else {}

    target = partial(pemt_translator, pemt_sources=file, symbols=21, language_symbols=4, **options, **names)
    grown = with_a_language_more(state)
    target(state=grown)
    grown["encoder.embed_tokens.weight"] = grown["encoder.embed_tokens.weight"].clone()
    grown["encoder.embed_tokens.weight"][5] += 1e-3  # a word
    with refused("aa.pt"):
        target(state=grown)
