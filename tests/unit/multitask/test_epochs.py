"""The position in an epoch: any number of processes goes on with exactly the batches that were not seen."""

import itertools
from functools import partial

import pytest
from fairseq.data import iterators
from torch.utils.data import Dataset

from fairseq_mtmoe.training.epochs import SharedEpochIterator
from tests.helpers.refused import refused

BATCHES = 13


class Sentences(Dataset):
    """Sentence i is the number i; the batches of every epoch are others."""

    def __getitem__(self, index):
        return index

    def batches(self, epoch, count=BATCHES):
        return [[100 * epoch + number, -(100 * epoch + number)] for number in range(count)]


def stock(rank, processes, make=iterators.EpochBatchIterator, count=BATCHES, **options):
    options |= {"seed": 5, "num_shards": processes, "shard_id": rank}
    return make(
        dataset=Sentences(), collate_fn=list, batch_sampler=lambda data, epoch: data.batches(epoch, count), **options
    )


ours = partial(stock, make=SharedEpochIterator)


def all_ours(processes, **options):
    return [ours(rank, processes, **options) for rank in range(processes)]


def in_global_order(shares):
    """The batches of all processes in the order of the epoch; the dummies of those that ran out are at the end."""
    assert len({len(share) for share in shares}) == 1
    together = [batch for row in itertools.zip_longest(*shares) for batch in row]
    seen = [batch for batch in together if batch]
    assert together[: len(seen)] == seen and len(together) - len(seen) < len(shares)
    return seen


def consume(iterators_, rounds):
    """Go some rounds into the next epoch with every process; returns the batches, and one state."""
    shares = [list(itertools.islice(iterator.next_epoch_itr(), rounds)) for iterator in iterators_]
    states = [iterator.state_dict() for iterator in iterators_]
    assert all(state == states[0] for state in states)
    return in_global_order(shares), states[0]


def resume(state, processes, **options):
    resumed = all_ours(processes, epoch=state["epoch"], **options)
    for iterator in resumed:
        iterator.load_state_dict(state)
    return resumed


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1), (2, 2), (3, 4), (4, 2)])
def test_another_number_of_processes_goes_on_with_what_is_left(before, after):
    whole, following = (consume(all_ours(1, epoch=epoch), BATCHES)[0] for epoch in (1, 2))
    for rounds in range(1, -(-BATCHES // before)):
        first, state = consume(all_ours(before), rounds)
        assert first == whole[: rounds * before] and state["batches_in_epoch"] == rounds * before
        resumed = resume(state, after)
        rest, end = consume(resumed, BATCHES)
        assert rest == whole[len(first) :]
        assert (end["epoch"], end["iterations_in_epoch"], end["batches_in_epoch"]) == (2, 0, 0)
        assert consume(resumed, BATCHES)[0] == following  # the same objects …
        assert consume(resume(end, before), BATCHES)[0] == following  # … and those of another start


@pytest.mark.parametrize(
    ("processes", "options"),
    [(1, {}), (2, {"buffer_size": 2}), (3, {"grouped_shuffling": True}), (4, {"skip_remainder_batch": True})],
)
def test_as_many_processes_see_what_fairseqs_see(processes, options):
    for rank in range(processes):
        theirs, mine = stock(rank, processes, **options), ours(rank, processes, **options)
        batches = list(theirs.next_epoch_itr())
        assert list(mine.next_epoch_itr()) == batches
        assert list(theirs.next_epoch_itr()) == list(mine.next_epoch_itr())  # the second epoch
        for stop in range(1, len(batches)):
            saved = []
            for whole in (stock(rank, processes, **options), ours(rank, processes, **options)):
                list(itertools.islice(whole.next_epoch_itr(), stop))
                saved.append(whole.state_dict())
            assert saved[1].items() >= saved[0].items()  # fairseq reads our states …
            for state in saved:  # … and we read fairseq's
                resumed = ours(rank, processes, **options)
                resumed.load_state_dict(state)
                rest = resumed.next_epoch_itr()
                assert (rest.n, len(rest), resumed.iterations_in_epoch) == (stop, len(batches), stop)
                assert list(rest) == batches[stop:]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_groups_that_are_shuffled_stay_those_of_the_start(after):
    options = {"grouped_shuffling": True}
    whole, _ = consume(all_ours(2, **options), BATCHES)
    _, state = consume(all_ours(2, **options), 2)
    rest, end = consume(resume(state, after, **options), BATCHES)
    assert rest == whole[4:]
    anew, _ = consume(all_ours(after, epoch=2, **options), BATCHES)
    assert consume(resume(end, after, **options), BATCHES)[0] == anew


@pytest.mark.parametrize(("processes", "freq", "skip"), [(1, 1, False), (1, 3, True), (2, 2, True), (2, 5, False)])
def test_updates_of_another_size_end_with_the_epoch(processes, freq, skip):
    """fairseq's own iterator loses batches here, and then begins the epoch anew."""
    _, state = consume(all_ours(2, update_freq=[2]), 2)
    shares = []
    for worker in resume(state, processes, update_freq=[freq]):
        updates = iterators.GroupedIterator(worker.next_epoch_itr(), freq, skip_remainder_batch=skip)
        length, groups = len(updates) - updates.n, list(updates)
        assert len(groups) == length and worker.end_of_epoch()
        shares.append([batch for group in groups for batch in group])
    left = consume(all_ours(1), BATCHES)[0][4:]
    whole_updates = -(-len(left) // processes) // freq * freq * processes
    assert in_global_order(shares) == (left[:whole_updates] if skip else left)


@pytest.mark.parametrize(("processes", "freq", "left_out"), [(1, 1, 0), (2, 1, 0), (4, 2, 0), (3, 1, 2), (1, 3, 2)])
def test_only_an_incomplete_last_update_is_left_out(processes, freq, left_out):
    shares = []
    for worker in all_ours(processes, count=8, skip_remainder_batch=True, update_freq=[freq]):
        updates = list(iterators.GroupedIterator(worker.next_epoch_itr(), freq, skip_remainder_batch=True))
        assert worker.end_of_epoch() and all(len(update) == freq and all(update) for update in updates)
        shares.append(list(itertools.chain.from_iterable(updates)))
    assert len(in_global_order(shares)) == 8 - left_out


def test_each_epochs_update_frequency_counts():
    worker = ours(0, 1, epoch=2, update_freq=[1, 4, 3])
    for epoch, first in ((1, 7), (2, 4), (3, 6), (9, 6)):
        worker.load_state_dict({"epoch": epoch, "batches_in_epoch": 7})
        assert worker.next_epoch_itr().n == first and worker.iterations_in_epoch == 7


def test_a_state_can_be_of_another_epoch_than_the_iterator_and_unshuffled():
    worker, other = ours(0, 1, epoch=3), ours(0, 1)
    list(itertools.islice(worker.next_epoch_itr(shuffle=False), 4))
    assert other.first_batch == [100, -100]
    other.load_state_dict(worker.state_dict())
    assert list(other.next_epoch_itr()) == Sentences().batches(3)[4:]


def test_a_position_behind_the_end_is_refused():
    _, state = consume(all_ours(1), 9)
    with refused("--reset-dataloader"):
        ours(0, 2, count=9).load_state_dict(state)
