"""What checkpoints keep of their task's settings."""

import pytest
import torch

from fairseq_mtmoe.errors import UserError
from tests.helpers.digits import digit_task, make_digit_corpus
from tests.helpers.refused import refused


def test_generation_follows_the_checkpoint(digits, tmp_path):
    training = digit_task(digits, lang_pairs="en-cc,en-aa", decoder_langtok=True, task_ids="pair")
    generation = digit_task(digits, source_lang="en", target_lang="cc", encoder_langtok=None)
    dictionary = generation.source_dictionary
    assert dictionary.index("__bb__") != dictionary.unk()
    torch.save(training.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    generation.load_state_dict(state)
    assert generation.source_dictionary is dictionary and dictionary == training.source_dictionary
    assert generation.args.langtoks == {"main": ("tgt", "tgt")} and generation.args.task_ids == "pair"
    assert generation.data_manager.lang_dict == training.data_manager.lang_dict
    with refused("--target-lang"):
        digit_task(digits, source_lang="en", target_lang="bb").load_state_dict(state)


def test_a_language_that_the_model_knows_need_not_be_in_the_data(digits, tmp_path):
    """Its dictionary is the joined one of the languages that are there."""
    data = make_digit_corpus(tmp_path, train=20, valid=2, test=2, targets="aa,bb")
    task = digit_task(data, source_lang="en", target_lang="cc")
    with pytest.raises(UserError, match="The language cc of the pair en-cc is unknown; known are aa, bb, en"):
        task.build_model(None)  # of stock fairseq, whose checkpoints do not say their languages
    task.load_state_dict(digit_task(digits).state_dict())
    assert task.langs == ["aa", "bb", "cc", "en"] and task.target_dictionary.index("__cc__") == 16
    assert task.target_dictionary == digit_task(digits, source_lang="en", target_lang="cc").target_dictionary
    with open(data / "dict.aa.txt", "a", encoding="utf-8") as file:
        file.write("more 1\n")
    with pytest.raises(UserError, match="The dictionary of cc is missing"):
        digit_task(data, source_lang="en", target_lang="cc")


def test_the_models_of_an_ensemble_must_order_their_languages_alike(digits):
    generation = digit_task(digits, source_lang="en", target_lang="cc")
    generation.load_state_dict({})  # stock fairseq's keep nothing
    for _ in range(2):
        generation.load_state_dict(digit_task(digits).state_dict())
    with pytest.raises(UserError, match="one has aa, bb, cc, en and another en, cc, bb, aa"):
        generation.load_state_dict(digit_task(digits, langs="en,cc,bb,aa").state_dict())


def test_a_run_that_goes_on_with_other_options_says_so_and_keeps_its_own(digits, caplog):
    before = digit_task(digits, langs="en,aa,bb,cc").state_dict()
    training = digit_task(digits, decoder_langtok=True)
    training.load_state_dict(before)
    assert training.state_dict()["langs"] == ["aa", "bb", "cc", "en"]
    assert training.state_dict()["langtoks"] == {"main": ("tgt", "tgt")}
    training.load_state_dict(digit_task(digits, decoder_langtok=True).state_dict())  # says nothing
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings[0].startswith("langs was ['en', 'aa', 'bb', 'cc'] when the checkpoint was trained, and is ['aa',")
    assert len(warnings) == 2  # and langtoks
