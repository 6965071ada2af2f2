"""Options: the same as those of fairseq's task, errors are one sentence; and what checkpoints keep of them."""

import argparse
import json
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.options import get_training_parser, parse_args_and_arch
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.task.config import TranslationHeatedConfig
from fairseq_mtmoe.translation.task.options import arguments
from fairseq_mtmoe.translation.task.task import TranslationHeatedTask
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.digits import digit_task, make_digit_corpus
from tests.helpers.models import SIZES, BaseMoEConfig, DenseConfig
from tests.helpers.refused import refused

NEW = {
    *("heating_coefficient", "heating_epochs", "heating_updates", "natural_from_epoch", "task_ids", "description"),
    *("sample_pieces", "sample_pieces_of"),
    *("eval_bleu", "eval_chrf", "eval_bleu_args", "eval_bleu_detok", "eval_bleu_detok_args", "eval_bleu_remove_bpe"),
    *("eval_tokenized_bleu", "eval_bleu_print_samples", "init_model", "train_only", "encoder_langtok_last"),
}


def config(data, **options):
    defaults = {"lang_pairs": "en-aa,en-bb", "seed": 1, "dataset_impl": None, "train_subset": "train", "max_epoch": 0}
    return TranslationHeatedConfig(data=data and str(data), **{**defaults, "save_dir": "", **options})


def of(data, **options):
    return arguments(config(data, **options))


def command_line(task, *args):
    parser = get_training_parser(task)
    return parse_args_and_arch(parser, ["--task", task, "--optimizer", "adam", *map(str, args)])


def test_every_option_of_fairseqs_task_keeps_its_name_and_default():
    ours, theirs = argparse.ArgumentParser(), argparse.ArgumentParser()
    TranslationHeatedTask.add_args(ours)
    TranslationMultiSimpleEpochTask.add_args(theirs)
    ours, theirs = ({a.dest: a for a in parser._actions if a.dest != "help"} for parser in (ours, theirs))
    assert ours.keys() == theirs.keys() | NEW
    for name in theirs:
        assert ours[name].option_strings[-1:] == theirs[name].option_strings[-1:] or name[:6] in ("source", "target")
        assert set(theirs[name].option_strings) == set(ours[name].option_strings)
        default = theirs[name].default
        assert ours[name].default == (",".join(default) if isinstance(default, list) else default)
        assert ours[name].help


def test_options_that_fairseqs_task_has_read_already_are_read_as_they_were_written(digits):
    given = ("--arch", "transformer_tiny", "--lang-pairs", "en-aa,en-bb", "--langs", "en,bb,aa")
    args = command_line("translation_multi_simple_epoch", digits, *given)
    TranslationMultiSimpleEpochTask.setup_task(args)
    found = arguments(TranslationHeatedConfig.from_namespace(args))
    right = of(digits, langs="en,bb,aa")
    for name in ("langs", "lang_pairs", "langtoks_specs", "left_pad_source", "left_pad_target"):
        assert getattr(found, name) == getattr(right, name)


def test_the_command_line_and_a_configuration_file_give_the_same_arguments(digits):
    weights = {"main:en-aa": 0.25, "main:en-bb": 0.75}
    given = ("--lang-pairs", "en-aa,en-bb", "--langtoks", "{'main': ('src', 'tgt')}", "--sampling-weights", weights)
    cli = command_line("translation_heated", digits, "--arch", "transformer", *given, "--seed", 7)
    cli = convert_namespace_to_omegaconf(cli)
    file = {
        "_name": "translation_heated", "data": str(digits), "lang_pairs": "en-aa,en-bb",
        "langtoks": "{'main': ('src', 'tgt')}", "sampling_weights": str(weights),
    }  # fmt: skip
    others = {name: cli[name] for name in ("common", "dataset", "optimization", "checkpoint")}
    merged = OmegaConf.merge(OmegaConf.create({"task": TranslationHeatedConfig(), **others}), {"task": file})
    first, second = arguments(cli.task), arguments(merged.task)
    assert vars(first) == vars(second)
    assert (first.langs, first.seed) == (["aa", "bb", "en"], 7)
    assert (first.langtoks, first.sampling_weights) == ({"main": ("src", "tgt")}, weights)


def test_lists_can_be_in_files(digits, tmp_path):
    weights = json.dumps({"main:en-aa": 1, "main:en-cc": 2})
    files = {"lang_pairs": "en-aa,en-cc\n", "lang_dict": "en\ncc\n\naa\n", "sampling_weights_from_file": weights}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    args = of(digits, **{name: str(tmp_path / name) for name in files})
    assert args.lang_pairs == ["en-aa", "en-cc"] and args.langs == ["en", "cc", "aa"]
    assert args.sampling_weights == {"main:en-aa": 1, "main:en-cc": 2}


def test_languages_are_those_of_the_pairs_or_in_generation_of_the_directory(digits, tmp_path):
    assert of(digits).langs == ["aa", "bb", "en"]
    to_bb = {"lang_pairs": None, "source_lang": "en", "target_lang": "bb"}
    generation = of(digits, **to_bb)
    assert generation.langs == ["aa", "bb", "cc", "en"] and generation.lang_pairs == ["en-bb"]
    for folder in (tmp_path, tmp_path / "x"):
        with refused("data"):
            of(folder, **to_bb)


@pytest.mark.parametrize(("wrong", "options"), [
    ("data", {"data": "/nowhere"}),
    ("data", {"data": __file__}),  # a file may name folders
    ("--lang-pairs", {"lang_pairs": None}),
    ("--lang-pairs", {"lang_pairs": "en"}),
    ("--langs", {"langs": "en,aa,bb", "lang_dict": "x"}),
    ("--source-lang", {"source_lang": "en"}),
    ("--task-ids", {"task_ids": "aa+bb,bb+cc"}),
    ("--sampling-weights", {"sampling_weights": "[" * 1000}),
    ("--langtoks", {"langtoks": "{'main': open('/tmp/written', 'w')}"}),  # fairseq calls `eval` on it
    ("the value of main in --langtoks", {"langtoks": "{'main': 5}"}),
    ("--load-alignments", {"load_alignments": True, "lang_tok_replacing_bos_eos": True}),
    ("--langtoks-specs", {"langtoks": "{'mined': ('src.mined', 'tgt.mined')}"}),
    ("--extra-lang-pairs", {"extra_data": "{'mined': '/nowhere'}"}),
    ("--extra-data", {"extra_lang_pairs": "{'mined': 'en-cc'}"}),
    ("--eval-bleu-args", {"eval_bleu": True, "eval_bleu_args": "{"}),
    ("--eval-bleu-args", {"eval_bleu": True, "eval_bleu_args": '{"sampling": 1}'}),
    ("--eval-bleu-args", {"eval_bleu": True, "eval_bleu_args": '{"beam": 1.5}'}),
])  # fmt: skip
def test_a_wrong_option_is_one_sentence(wrong, options, digits):
    with refused(wrong):
        digit_task(**{"data": digits, **options}).begin_epoch(1, None)


def test_an_unknown_language_is_named(digits):
    with pytest.raises(UserError, match="language bb of the pair en-bb is unknown"):
        of(digits, langs="en,aa")
    with pytest.raises(UserError, match=r"dictionary of aaa; the most similar one is dict\.aa\.txt"):
        of(digits, lang_pairs="en-aaa")
    one_for_all = str(digits / "dict.en.txt")
    assert of(digits, lang_pairs="en-zz", target_dict=one_for_all).langs == ["en", "zz"]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged(b"en-aa,en-bb\nen-cc\n"), name=st.sampled_from(["lang_pairs", "lang_dict"]))
def test_any_list_in_a_file_is_a_value_or_a_sentence(content, name, digits, tmp_path):
    (tmp_path / "file").write_bytes(content)
    args = value_or_sentence(lambda: of(digits, **{name: str(tmp_path / "file")}))
    assert args is None or all(lang in args.langs for pair in args.lang_pairs for lang in pair.split("-"))


def test_generation_and_validation_follow_the_checkpoint(digits, tmp_path):
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
    with refused("a language of --lang-pairs"):
        digit_task(digits).load_state_dict(state)


def test_a_language_that_the_model_knows_need_not_be_in_the_data(digits, tmp_path):
    data = make_digit_corpus(tmp_path, train=20, valid=2, test=2, targets="aa,bb")
    task = digit_task(data, source_lang="en", target_lang="cc")
    with pytest.raises(UserError, match="The language cc of the pair en-cc is unknown"):
        task.build_model(None)  # of stock fairseq, whose checkpoints do not say their languages
    task.load_state_dict(digit_task(digits).state_dict())
    assert task.langs == ["aa", "bb", "cc", "en"] and task.target_dictionary.index("__cc__") == 16
    assert task.target_dictionary == digit_task(digits, source_lang="en", target_lang="cc").target_dictionary


def test_the_models_of_an_ensemble_must_order_their_languages_alike(digits):
    generation = digit_task(digits, source_lang="en", target_lang="cc")
    generation.load_state_dict({})  # stock fairseq's keep nothing
    for _ in range(2):
        generation.load_state_dict(digit_task(digits).state_dict())
    with pytest.raises(UserError, match="same languages in the same order"):
        generation.load_state_dict(digit_task(digits, langs="en,cc,bb,aa").state_dict())


def checkpoint_of(task, **model):
    state = {"task_state": task.state_dict(), "cfg": {"model": {"task_names": ",".join(task.task_names), **model}}}
    return {**state, "args": None}


def test_a_run_that_goes_on_keeps_its_own_options_and_says_what_changed(digits, caplog):
    more = {"langtoks": "{'mined': ('src.mined', 'tgt.mined')}", "langtoks_specs": "main,mined"}
    training = digit_task(digits, decoder_langtok=True, **more)
    training.take_up("old.pt", checkpoint_of(digit_task(digits)), goes_on=True)
    assert training.state_dict()["langtoks"]["main"] == ("tgt", "tgt")
    assert "langtoks was " in caplog.text


@pytest.mark.parametrize(("options", "named"), [
    ({"langs": "en,cc,bb,aa"}, "--langs"),
    ({"task_ids": "pair", "lang_pairs": "en-bb,en-aa,en-cc"}, "the tasks of --task-ids"),
])  # fmt: skip
def test_another_order_of_languages_or_tasks_gives_no_other_weights_silently(options, named, digits, caplog):
    ordered = {name: value for name, value in options.items() if name == "task_ids"}
    before = checkpoint_of(digit_task(digits, **{"langs": "en,aa,bb,cc", **ordered}))
    run = digit_task(digits, **{"langs": "en,aa,bb,cc", **options})
    with refused(named):
        run.take_up("old.pt", before, goes_on=True)
    run.take_up("old.pt", before, goes_on=False)
    assert " begins with the weights of " in caplog.text


def test_fixed_experts_must_keep_their_tasks_though_there_may_be_more_experts(digits):
    options = {"langs": "en,aa,bb,cc", "task_ids": "pair"}
    before = checkpoint_of(digit_task(digits, lang_pairs="en-aa,en-cc", **options), expert_gates="base,fixed")
    with refused("the tasks of --task-ids"):
        digit_task(digits, **options).take_up("old.pt", before, goes_on=True)
    digit_task(digits, lang_pairs="en-aa,en-cc,en-bb", **options).take_up("old.pt", before, goes_on=True)


def test_fine_tuning_keeps_what_the_model_knows_of_its_vocabulary(digits):
    known = {"vocabulary_ends": {"aa": [9, 9]}, "generation": {"num_beams": 4}, "new_symbols": [1, 1]}
    before = checkpoint_of(digit_task(digits))
    before["task_state"] = {**before["task_state"], **known, "other": 1}
    task = digit_task(digits)
    task.take_up("old.pt", before, goes_on=False)
    saved = task.state_dict()
    assert {name: saved[name] for name in known} == known and "other" not in saved


def test_data_of_another_vocabulary_of_the_same_size_is_refused(digits):
    task = digit_task(digits)
    own = task.target_dictionary.symbols[4 : task.dictionary_sizes[id(task.target_dictionary)]]
    model = torch.zeros(3, dtype=torch.uint8)
    for symbols in (own, [*own, "new"], own[::-1]):
        saved = {**task.state_dict(), "vocabulary": [{"symbols": symbols, "model": model}]}
        uses = partial(task.load_state_dict, saved), partial(task.take_up, "old.pt", {"task_state": saved}, False)
        for use in uses:
            with nullcontext() if symbols[0] == own[0] else pytest.raises(UserError, match="vocabulary of the data"):
                use()


def build(data, task, model):
    kind, name = DenseConfig, "base_dense"
    if "expert_gates" in model:
        kind, name = partial(BaseMoEConfig, num_experts=4), "base_moe"
    cfg = OmegaConf.structured(kind(**SIZES, **model))
    cfg._name = name
    return digit_task(data, **{"encoder_langtok": None, **task}).build_model(cfg)


@pytest.mark.parametrize(("task", "model", "alike"), [
    ({"encoder_langtok": "src"}, {"expert_gates": "base"}, "aa, bb, cc"),
    ({"task_ids": "aa+cc"}, {"expert_gates": "task"}, "aa, cc"),
    ({"task_ids": "source"}, {"expert_gates": "fixed"}, "aa, bb, cc"),
    ({"lang_pairs": "aa-en,en-bb,bb-aa"}, {}, None),
    ({"decoder_langtok": True}, {}, None),
    ({}, {"expert_gates": "task,base"}, None),
    ({}, {"conditional": "bottleneck"}, None),
])  # fmt: skip
def test_a_training_needs_a_token_or_a_gate_of_the_target(digits, task, model, alike, caplog):
    """Or a user insists, and is warned."""
    if alike is None:
        build(digits, task, model)
        return
    with refused("--decoder-langtok", "--encoder-langtok tgt") as error:
        build(digits, task, model)
    assert f" {alike} apart, the targets of en," in str(error.value)
    build(digits, {**task, "langtoks": "{'main': (None, None)}"}, model)
    assert f" {alike} apart, the targets of en:" in caplog.text
