"""Checkpoints made of others: copies, experts in other files, means, prices; and shards that nothing names, go."""

import collections
import copy
import os
from unittest.mock import Mock

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA

from fairseq_mtmoe.checkpoints import file_io, rewriting
from fairseq_mtmoe.checkpoints.assemble import load_shared_part
from fairseq_mtmoe.checkpoints.key_maps import PRICES
from fairseq_mtmoe.checkpoints.loading import load_ema
from fairseq_mtmoe.checkpoints.rewriting import EPOCHS, UPDATES, average, copy_with_experts, newest, remove_orphans
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import replacing
from fairseq_mtmoe.moe import remember_prices, running_prices
from tests.helpers.models import batch, moe_model
from tests.helpers.refused import refused
from tests.helpers.states import assert_same, files_of, read_whole, save_all, trained, write_in_parts


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


def test_what_no_shared_part_names_is_removed_and_nothing_else(parts, tmp_path):
    kept = files_of(parts)
    stale = expert_folder(parts) / "00112233445566aa"
    foreign = [expert_folder(parts) / name for name in ("notes.txt", "other/0-1.pt", "bbbbbbbbbbbbbbbb/notes.txt")]
    foreign += [tmp_path / name / "0-1.pt" for name in ("my.experts", "folder/0123456789abcdef")]
    foreign.append(tmp_path / "out.experts/0123456789abcdef/0-1.pt")  # another command will write its shared part
    with pytest.raises(KeyboardInterrupt), replacing(stale / "4-7.pt") as partial:
        raise KeyboardInterrupt
    other = write(tmp_path / "checkpoint_1_2.experts" / "0123456789abcdef" / "0-7.pt")
    gone = [write(stale / "0-3.pt"), write(partial), other]
    kept += map(write, foreign)
    good = parts.read_bytes()
    parts.write_bytes(good[:-3000])
    for path in (parts, tmp_path / "out.bin"):  # all stays beside what cannot be read or has another name
        remove_orphans(path)
    assert all(file.exists() for file in (*kept, *gone))
    parts.write_bytes(good)
    remove_orphans(parts)  # of this checkpoint alone
    assert other.exists() and not stale.exists()
    suffixed = write(tmp_path / "checkpoint_1_2_x.experts" / "0123456789abcdef" / "0-7.pt")
    remove_orphans(tmp_path)
    assert all(file.exists() for file in (*kept, suffixed)) and not any(file.exists() for file in gone)
    assert not (tmp_path / "checkpoint_1_2.experts").exists()
    remove_orphans(tmp_path, "_x")
    assert all(file.exists() for file in kept) and not suffixed.parents[1].exists()


def test_a_copy_shares_the_files_and_outlives_the_original(checkpoint, parts, tmp_path, monkeypatch):
    target = tmp_path / "elsewhere" / "checkpoint_best.pt"
    write_in_parts(target, *trained(4, seed=2), processes=4)
    copy_with_experts(parts, target)
    assert [file.name for file in files_of(target)] == ["0-1.pt", "2-3.pt"]  # those of before are gone
    assert all(map(os.path.samefile, files_of(parts), files_of(target)))
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(18, "Invalid cross-device link")))
    copy_with_experts(parts, tmp_path / "copy.pt")
    assert not any(map(os.path.samefile, files_of(parts), files_of(tmp_path / "copy.pt")))
    copy_with_experts(*save_all(tmp_path, checkpoint[0]), parts)  # experts and all
    assert not expert_folder(parts).exists()
    for path in (target, tmp_path / "copy.pt"):
        assert_same(read_whole(path), checkpoint[0])


def test_a_copy_that_lacks_a_file_changes_nothing(parts, tmp_path):
    target, (state, parameters) = tmp_path / "checkpoint_best.pt", trained(4, seed=2)
    write_in_parts(target, state, parameters, 2)
    files_of(parts)[1].unlink()
    with refused("2-3.pt"):
        copy_with_experts(parts, target)
    assert len(files_of(target)) == 2
    assert_same(read_whole(target), state)


@pytest.mark.parametrize(("flat", "whole_before"), [(False, True), (True, False)])
def test_parts_of_any_size_hold_the_same(tmp_path, flat, whole_before):
    state, parameters = trained(8, flat)
    source = tmp_path / "in.pt"
    if whole_before:
        torch.save(state, source)
    else:
        write_in_parts(source, state, parameters, 4)
    for size, names in ((3, ["0-2.pt", "3-5.pt", "6-7.pt"]), (8, ["0-7.pt"])):
        target = tmp_path / f"out{size}.pt"
        assert rewriting.write_in_parts(source, target, size) == len(names)
        assert [file.name for file in files_of(target)] == names
        assert_same(read_whole(target), state)
        sizes = [file.stat().st_size for file in files_of(target)]
        assert sum(sizes) < 2 * source.stat().st_size + 20_000 * len(sizes)
    rewriting.write_whole(target, tmp_path / "single.pt")
    assert_same(load_shared_part(tmp_path / "single.pt"), state)


@pytest.mark.parametrize("shared", [True, False])
def test_trained_parameters_are_found_in_a_models_state(shared):
    """Also where copies from a GPU have made several tensors of a shared one."""
    state, parameters = trained(4, share_all_embeddings=shared, share_decoder_input_output_embed=False)
    assert rewriting.parameters_of(state["model"]) == parameters
    assert rewriting.parameters_of({name: value.clone() for name, value in state["model"].items()}) == parameters


def test_moments_that_cannot_be_told_apart_are_refused(tmp_path):
    state, _ = trained(4)
    frozen, other = copy.deepcopy(state), copy.deepcopy(state)
    frozen["last_optimizer_state"]["param_groups"][0]["params"].pop()
    other["last_optimizer_state"]["state"][0]["exp_avg"] = torch.zeros(3)
    for wrong in (frozen, other):
        torch.save(wrong, tmp_path / "in.pt")
        with refused("in.pt"):
            rewriting.write_in_parts(tmp_path / "in.pt", tmp_path / "out.pt", 2)
    assert not (tmp_path / "out.pt").exists() and not expert_folder(tmp_path / "out.pt").exists()
    del frozen["last_optimizer_state"]
    torch.save(frozen, tmp_path / "in.pt")
    rewriting.write_in_parts(tmp_path / "in.pt", tmp_path / "out.pt", 2)
    assert_same(read_whole(tmp_path / "out.pt"), frozen)


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, monkeypatch):
    state, parameters = trained(4)
    source, target = tmp_path / "in.pt", tmp_path / "out.pt"
    write_in_parts(source, state, parameters, 2)
    write_in_parts(target, state, parameters, 1)
    save = file_io.save

    def save_on_a_full_disk(content, path):
        if path == str(target) or path.endswith("1-1.pt"):
            raise UserError("No space left on device")
        return save(content, path)

    monkeypatch.setattr(file_io, "save", save_on_a_full_disk)
    for size in (1, 2):
        with pytest.raises(UserError, match="No space left"):
            rewriting.write_in_parts(source, target, size)
    assert [file.name for file in files_of(target)] == ["0-3.pt"]
    assert_same(read_whole(target), state)


def mean_of(states):
    """The loop of fairseq's script: the sum in order of the files, float16 in float32, then divided; in its type."""
    params = collections.OrderedDict()
    for state in states:
        for key, value in state["model"].items():
            value = value.float() if value.dtype == torch.float16 else value
            params[key] = params[key] + value if key in params else value.clone()
    for key, value in params.items():
        params[key] = value.div_(len(states)).to(states[0]["model"][key].dtype)
    mean = {**states[0], "model": params}
    del mean["last_optimizer_state"]
    return mean


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_averages_are_fairseqs_scripts(tmp_path, dtype):
    (one, parameters), (two, _) = (trained(4, seed=seed) for seed in (1, 2))
    for state in (one, two):
        state["model"] = collections.OrderedDict((key, value.to(dtype)) for key, value in state["model"].items())
    paths = save_all(tmp_path, one, two)
    write_in_parts(paths[0], one, parameters, 4)
    assert_same(average(paths), mean_of([one, two]))
    assert_same(average(reversed(paths)), mean_of([two, one]))


def test_an_average_has_the_types_and_shares_what_its_first_checkpoint_shares(tmp_path):
    """bfloat16 is summed in float32. Values that differ in another checkpoint are not lost."""
    models = ({"w": torch.tensor([n], dtype=torch.bfloat16), "n": torch.tensor([int(n)])} for n in (256.0, 1.0, 2.0))
    mean = average(save_all(tmp_path, *({"model": model} for model in models)))["model"]
    assert (mean["w"].dtype, mean["w"].item(), mean["n"].item()) == (torch.bfloat16, 86.5, 86)
    one, two = (torch.full((50, 40), value, dtype=torch.half) for value in (1.0, 2.0))
    states = [{"model": {"encoder": of, "decoder": of, "output": of}} for of in (one, two)]
    mean = average(save_all(tmp_path, *states))["model"]
    assert len({value.data_ptr() for value in mean.values()}) == 1 and mean["output"][0, 0] == 1.5
    states[1]["model"]["output"] = one
    mean = average(save_all(tmp_path, *states))["model"]
    assert mean["encoder"].data_ptr() == mean["decoder"].data_ptr() and mean["output"][0, 0] == 1


def test_other_parameters_rows_of_other_pieces_languages_or_tasks_and_other_models_are_refused(tmp_path):
    model = {"w": torch.ones(2)}

    def averaged(*tables):
        return average(save_all(tmp_path, *({"model": model, **table} for table in tables)))["model"]

    for other in ({"v": torch.ones(2)}, {"w": torch.ones(3)}, {"w": torch.ones(2).long()}, {}):
        with refused("1.pt"):
            averaged({}, {"model": other})
    of_pieces = [
        {"task_state": {"vocabulary": [{"symbols": list(pieces), "model": torch.zeros(1, dtype=torch.uint8)}]}}
        for pieces in ("ab", "ba")
    ]
    of_languages = [{"task_state": {"langs": langs}} for langs in (["de", "cs"], ["cs", "de"])]
    of_tasks = [{"cfg": {"model": {"task_names": names}}} for names in ("cola,rte", "rte,cola")]
    of_pairs = [{"cfg": {"task": {"source_lang": "en", "target_lang": target}}} for target in ("de", "cs")]
    of_heads = [{"cfg": {"model": {"encoder_attention_heads": heads}}} for heads in (2, 4)]
    of_tokens = [{"task_state": {"task_ids": kind}} for kind in ("source", "target")]
    for one, other in (of_pieces, of_languages, of_tasks, of_pairs, of_heads, of_tokens):
        assert torch.equal(averaged(one, one, {})["w"], model["w"])
        with refused("1.pt", "0.pt"):
            averaged(one, other)


def test_the_newest_are_those_with_the_highest_numbers(tmp_path):
    names = ("2.pt", "10.pt", "9.pt", "_3_40.pt", "_12_7.pt", "_best.pt", "_last.pt", "1.pt.old")
    second, tenth, ninth, of_40, of_7, *_ = paths = [tmp_path / f"checkpoint{name}" for name in names]
    for path in paths:
        path.touch()
    assert newest(tmp_path, EPOCHS, 2, None) == [tenth, ninth]
    assert newest(tmp_path, EPOCHS, 2, 9) == [ninth, second]
    assert newest(tmp_path, UPDATES, 2, None) == [of_40, of_7]
    for option, wrong in (("epoch", (EPOCHS, 4, None)), ("update", (UPDATES, 0, None)), ("epoch", (EPOCHS, 3, 9))):
        with refused(f"--num-{option}-checkpoints"):
            newest(tmp_path, *wrong)
    with refused("--inputs"):
        newest(tmp_path / "none", EPOCHS, 1, None)


def test_models_in_half_precision_save_prices_in_full(tmp_path):
    model = moe_model(num_experts=4, expert_gates="base").bfloat16().train()
    model(**batch())
    remember_prices(running_prices(model))
    mean = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5))
    mean.step(model)
    halves = {"model": model.state_dict(), "extra_state": {"ema": mean.get_model().state_dict()}}
    [path] = save_all(tmp_path, halves)
    for named in (file_io.load(str(path))["model"], load_ema(str(path))["model"]):
        prices = {name: value for name, value in named.items() if name.endswith(PRICES)}
        assert_same(prices, {name: model.state_dict()[name] for name in prices})
        assert len(prices) == 4 and {value.dtype for value in prices.values()} == {torch.float32}
