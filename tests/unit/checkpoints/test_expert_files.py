"""Experts in files of their own: written by some processes, read by others, and nothing else touched."""

import os
import shutil

import pytest
import torch

from fairseq_mtmoe.checkpoints import checksum, expert_files, file_io
from fairseq_mtmoe.checkpoints.expert_files import (
    ExpertReader,
    copy_with_experts,
    expert_folder,
    load_local,
    load_mapped,
    load_shared_part,
    localize,
    read_experts,
    remove_orphans,
    whole,
)
from fairseq_mtmoe.checkpoints.reader import CheckpointFile, peek
from fairseq_mtmoe.checkpoints.states import has_experts
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import replacing
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from tests.helpers.states import (
    EXPERT,
    assert_same,
    local_parameters,
    local_state,
    placements,
    trained,
    write_in_parts,
)

FC1 = "decoder.layers.1.moe.experts.fc1_weight"


@pytest.fixture(scope="module")
def checkpoint():
    """The state of 4 experts and its parameters; not to be changed."""
    return trained(4)


@pytest.fixture
def parts(checkpoint, tmp_path):
    """`checkpoint` as two processes save it."""
    path = tmp_path / "checkpoint_last.pt"
    write_in_parts(path, *checkpoint, processes=2)
    return path


def files_of(path):
    return sorted(expert_folder(path).glob("*/*"))


@pytest.mark.parametrize(("num_experts", "writers"), [(4, 1), (4, 2), (4, 4), (8, 2), (8, 4)])
@pytest.mark.parametrize("flat", [False, True])
def test_what_some_processes_wrote_any_others_read(tmp_path, num_experts, writers, flat):
    state, parameters = trained(num_experts, flat)
    path = tmp_path / "checkpoint_last.pt"
    write_in_parts(path, state, parameters, writers)
    assert len(files_of(path)) == writers
    for readers in (1, 2, 4):
        for placement in placements(num_experts, readers):
            expected = local_state(state, parameters, placement)
            local = localize(path, load_shared_part(path), placement, local_parameters(parameters, placement), flat)
            assert_same(local, expected)
            assert_same(load_local(path, placement, local_parameters(parameters, placement), flat), expected)
    assert_same(whole(path, load_shared_part(path)), state)


@pytest.mark.parametrize("flat", [False, True])
def test_a_whole_checkpoint_gives_every_process_its_share(tmp_path, flat):
    state, parameters = trained(4, flat)
    path = str(tmp_path / "checkpoint_last.pt")
    torch.save(state, path)  # as stock fairseq, and this project before it had parts
    for placement in (*placements(4, 2), *placements(4, 1)):
        expected = local_state(state, parameters, placement)
        local = local_parameters(parameters, placement)
        assert_same(localize(path, load_shared_part(path), placement, local, flat), expected)
        assert_same(load_local(path, placement, local, flat), expected)
    assert_same(whole(path, load_shared_part(path)), state)


def test_a_run_goes_on_in_the_other_precision(tmp_path):
    """From float32 with a moment per parameter to fp16 with one vector, in other processes."""
    state, parameters = trained(4)
    write_in_parts(tmp_path / "a.pt", state, parameters, 4)
    placement = placements(4, 2)[1]
    local = local_parameters(parameters, placement)
    moments = load_local(tmp_path / "a.pt", placement, local, flat=True)["last_optimizer_state"]
    vector = moments["state"][0]["exp_avg"]
    assert len(vector) == sum(shape.numel() for _, shape in local) and moments["state"][0]["step"] == 2
    pieces = dict(zip((name for name, _ in local), vector.split([s.numel() for _, s in local]), strict=True))
    expected = local_state(state, parameters, placement)["last_optimizer_state"]["state"]
    index = [name for name, _ in local].index(FC1)
    assert torch.equal(pieces[FC1].view(local[index][1]), expected[index]["exp_avg"])


def test_counts_of_updates_in_tensors_travel(tmp_path):
    """As torch's own Adam has them, unlike fairseq's."""
    state, parameters = trained(4)
    for entry in state["last_optimizer_state"]["state"].values():
        entry["step"] = torch.tensor(float(entry["step"]))
    write_in_parts(tmp_path / "a.pt", state, parameters, 2)
    assert_same(whole(tmp_path / "a.pt", load_shared_part(tmp_path / "a.pt")), state)


def test_reading_takes_what_overlaps_from_each_file_and_verifies_each_once(checkpoint, parts, monkeypatch):
    shared_part, verified = load_shared_part(parts), []

    def note(file):
        verified.append(os.path.basename(file._path))

    verify = CheckpointFile.verify
    monkeypatch.setattr(CheckpointFile, "verify", lambda self: self._is_verified or note(self) or verify(self))
    content = read_experts(parts, shared_part, 1, 2)
    assert torch.equal(content["model"][FC1], checkpoint[0]["model"][FC1][1:3]) and len(verified) == 2
    assert {tuple(v.shape[:1]) for v in content["optimizer"][FC1].values() if torch.is_tensor(v)} == {(2,)}
    verified.clear()
    reader = ExpertReader(parts, shared_part)
    assert set(reader.read(2, 1, ["model"])) == {"first", "count", "model"} and reader.read(3, 1)["first"] == 3
    assert verified == ["2-3.pt"]


def test_what_is_read_does_not_depend_on_the_files_any_more(parts):
    content = read_experts(parts, load_shared_part(parts), 0, 4)
    before = content["model"][FC1].clone()
    for file in files_of(parts):
        file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(content["model"][FC1], before)


def test_a_missing_file_is_named_with_the_folder_to_copy(parts):
    shared_part = load_shared_part(parts)
    files_of(parts)[1].unlink()
    with pytest.raises(UserError, match=r"2-3\.pt` must be there.*checkpoint_last\.experts` must lie beside"):
        read_experts(parts, shared_part, 0, 4)
    read_experts(parts, shared_part, 0, 2)  # nobody else needs it
    shutil.rmtree(expert_folder(parts))
    with pytest.raises(UserError, match=r"0-1\.pt` must be there"):
        whole(parts, shared_part)


def test_an_older_checkpoint_is_offered_only_with_all_its_experts(parts, tmp_path):
    """A missing and a damaged expert file, a foreign one, and a checkpoint that is whole."""
    whole_one, missing, damaged, foreign = (tmp_path / f"checkpoint_{number}.pt" for number in range(1, 5))
    for number, path in enumerate((whole_one, missing, damaged, foreign)):
        copy_with_experts(parts, path)
        os.utime(path, (1000 + number, 1000 + number))  # the whole one is the oldest
    files_of(missing)[0].unlink()
    for path, content in ((damaged, b"x"), (foreign, None)):
        file = files_of(path)[0]
        file.unlink()  # its other names keep the content
        file.write_bytes(content or files_of(path)[0].read_bytes())
    assert checksum.newest_good(parts) == whole_one
    files_of(parts)[1].unlink()
    with pytest.raises(
        UserError, match=f"copy both, or use an older one: the newest good one beside it is `{whole_one}`"
    ):
        whole(parts, load_shared_part(parts))


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9, 0.999])
def test_a_flipped_bit_is_found(parts, place):
    file = files_of(parts)[0]
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"0-1\.pt"):
        read_experts(parts, load_shared_part(parts), 0, 1)


def test_the_file_of_another_save_is_refused(checkpoint, parts, tmp_path):
    state, parameters = trained(4, seed=2)
    write_in_parts(tmp_path / "other.pt", state, parameters, 2)
    mine, others = files_of(parts)[0], files_of(tmp_path / "other.pt")[0]
    shutil.copy(others, mine)
    with pytest.raises(UserError, match=r"0-1\.pt` must be the file that was saved with `.*checkpoint_last\.pt`"):
        read_experts(parts, load_shared_part(parts), 0, 1)


def damage_list(experts):
    yield {**experts, "id": "../../elsewhere"}
    yield {**experts, "num_experts": 5}
    yield {**experts, "files": experts["files"][1:]}
    yield {**experts, "files": [{**experts["files"][0], "name": "../0-1.pt"}, experts["files"][1]]}
    yield {**experts, "files": [{**experts["files"][0], "count": "2"}, experts["files"][1]]}
    yield {key: value for key, value in experts.items() if key != "keys"}
    yield None


def test_a_trunk_leads_nowhere_else(parts):
    shared_part = load_shared_part(parts)
    for experts in damage_list(shared_part["experts"]):
        file_io.save({**shared_part, "experts": experts}, str(parts))
        for load in (load_shared_part, load_mapped):
            with pytest.raises(UserError, match="but its list of them is damaged"):
                load(parts)
    file_io.save({**shared_part, "experts": {"version": 2, "places": []}}, str(parts))
    with pytest.raises(UserError, match="newer version"):
        load_shared_part(parts)


def test_another_number_of_experts_is_refused(checkpoint, parts, tmp_path):
    state, parameters = checkpoint
    torch.save(state, tmp_path / "whole.pt")
    for path in (parts, tmp_path / "whole.pt"):
        for placement in (ExpertPlacement(8, 0, 2), ExpertPlacement(2, 0, 2)):
            with pytest.raises(UserError, match="`--num-experts` must be 4 to go on from"):
                load_local(path, placement, local_parameters(parameters, placement), False)


def test_a_dense_checkpoint_is_taken_as_it_is(tmp_path):
    state = {"model": {"encoder.fc1.weight": torch.ones(2)}, "last_optimizer_state": {"state": {}}}
    torch.save(state, tmp_path / "dense.pt")
    assert_same(load_local(tmp_path / "dense.pt", ExpertPlacement(4, 0, 2), [], True), state)
    assert_same(whole(tmp_path / "dense.pt", state), state)
    assert "last_optimizer_state" not in whole(tmp_path / "dense.pt", state, ["model"])


def test_experts_are_seen_without_reading(checkpoint, parts, tmp_path):
    file_io.save(checkpoint[0], str(tmp_path / "whole.pt"))
    file_io.save({"model": {"encoder.fc1.weight": torch.ones(2)}}, str(tmp_path / "dense.pt"))
    found = {
        name: has_experts(peek(tmp_path / f"{name}.pt") or {}) for name in ("checkpoint_last", "whole", "dense", "none")
    }
    assert found == {"checkpoint_last": True, "whole": True, "dense": False, "none": False}


def test_a_missing_checkpoint_is_one_sentence(tmp_path):
    for load in (load_shared_part, load_mapped, lambda path: load_local(path, ExpertPlacement(4, 0, 2), [], False)):
        with pytest.raises(UserError, match="there is none"):
            load(tmp_path / "none.pt")
    with pytest.raises(UserError, match=r"must end in `\.pt`"):
        expert_folder(tmp_path / "checkpoint")


def test_a_copy_shares_the_files_and_outlives_the_original(checkpoint, parts, tmp_path):
    target = tmp_path / "elsewhere" / "checkpoint_best.pt"
    write_in_parts(target, *trained(4, seed=2), processes=4)
    copy_with_experts(parts, target)
    assert [file.name for file in files_of(target)] == ["0-1.pt", "2-3.pt"]  # those of before are gone
    assert all(map(os.path.samefile, files_of(parts), files_of(target)))
    copy_with_experts(parts, target)
    shutil.rmtree(expert_folder(parts))
    parts.unlink()
    assert_same(whole(target, load_shared_part(target)), checkpoint[0])


def test_a_copy_to_another_disk_is_a_copy(checkpoint, parts, tmp_path, monkeypatch):
    def no_link(source, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    copy_with_experts(parts, tmp_path / "copy.pt")
    assert not any(map(os.path.samefile, files_of(parts), files_of(tmp_path / "copy.pt")))
    assert_same(whole(tmp_path / "copy.pt", load_shared_part(tmp_path / "copy.pt")), checkpoint[0])


def test_a_copy_of_a_whole_checkpoint_takes_the_place_of_one_in_parts(checkpoint, parts, tmp_path):
    file_io.save(checkpoint[0], str(tmp_path / "whole.pt"))
    copy_with_experts(tmp_path / "whole.pt", parts)
    assert not expert_folder(parts).exists()
    assert_same(load_shared_part(parts), checkpoint[0])


def test_a_copy_that_lacks_a_file_changes_nothing(checkpoint, parts, tmp_path):
    target = tmp_path / "checkpoint_best.pt"
    state, parameters = trained(4, seed=2)
    write_in_parts(target, state, parameters, 2)
    files_of(parts)[1].unlink()
    with pytest.raises(UserError, match=r"2-3\.pt` must be a checkpoint file, but there is none"):
        copy_with_experts(parts, target)
    assert len(files_of(target)) == 2
    assert_same(whole(target, load_shared_part(target)), state)


def test_tidying_removes_what_no_trunk_names_and_nothing_else(checkpoint, parts, tmp_path):
    kept = files_of(parts)
    stale = expert_folder(parts) / "00112233445566aa"
    foreign = [
        expert_folder(parts) / "notes.txt",
        expert_folder(parts) / "other" / "0-1.pt",
        expert_folder(parts) / "bbbbbbbbbbbbbbbb" / "notes.txt",
        tmp_path / "my.experts" / "0-1.pt",
        tmp_path / "out.experts" / "0123456789abcdef" / "0-1.pt",  # whose shared part another command is going to write
        tmp_path / "folder" / "0123456789abcdef" / "0-1.pt",
    ]
    with pytest.raises(KeyboardInterrupt), replacing(stale / "4-7.pt") as partial:
        raise KeyboardInterrupt
    gone = [stale / "0-3.pt", partial, tmp_path / "checkpoint_1_2.experts" / "0123456789abcdef" / "0-7.pt"]
    for file in (*foreign, *gone):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    remove_orphans(tmp_path)
    assert all(file.exists() for file in (*kept, *foreign)) and not any(file.exists() for file in gone)
    assert not stale.exists() and not (tmp_path / "checkpoint_1_2.experts").exists()


def test_tidying_one_checkpoint_leaves_the_others(parts, tmp_path):
    other = tmp_path / "checkpoint_7.experts" / "0123456789abcdef" / "0-7.pt"
    stale = expert_folder(parts) / "00112233445566aa" / "0-3.pt"
    for file in (other, stale):
        file.parent.mkdir(parents=True)
        file.write_text("x")
    remove_orphans(parts)
    assert other.exists() and not stale.exists() and len(files_of(parts)) == 2


def test_tidying_keeps_all_beside_a_trunk_that_cannot_be_read(parts):
    stale = expert_folder(parts) / "00112233445566aa" / "0-3.pt"
    stale.parent.mkdir()
    stale.write_text("x")
    parts.write_bytes(parts.read_bytes()[:-3000])
    remove_orphans(parts)
    assert stale.exists() and len(files_of(parts)) == 3


def test_names_of_saves_differ():
    assert len({expert_files.new_id() for _ in range(100)}) == 100


def test_keys_of_the_helpers_are_those_of_the_model(checkpoint):
    assert sum(EXPERT in key for key in checkpoint[0]["model"]) == 8
