"""What persistent workers of plain loaders tell one another: when an epoch is over, and when that no longer counts."""

from __future__ import annotations

import itertools
import pickle

import pytest

from forebay.torch._control import Control


def test_the_next_epoch_begins_once_all_workers_have_ended_one() -> None:
    control = Control()
    for epoch in range(2):
        for worker in range(3):
            control.begin(worker, 3, crew=1, at_end=False)
        control.start = 5
        for worker in (2, 0, 1):
            assert (control.epoch, control.start) == (epoch, 5)
            control.finish(worker, 3, crew=1, epoch=epoch, round=control.round)
        assert (control.epoch, control.start) == (epoch + 1, 0)


@pytest.mark.parametrize("ended", range(1, 4))
def test_workers_that_end_what_a_load_made_void_do_not_move_the_position(ended: int) -> None:
    """Risk H2, H10: batches that were under way when the loop was left are read on, to the end of the epoch maybe."""
    for early in itertools.product((False, True), repeat=3):
        control = Control()
        for worker in range(3):
            control.begin(worker, 3, crew=1, at_end=False)
        begun = control.round
        for worker in range(3):
            if early[worker] and not all(early):
                control.finish(worker, 3, crew=1, epoch=0, round=begun)
        control.begin_round()  # the training process loads
        control.epoch, control.start = 4, 16
        for worker in range(ended):
            control.finish(worker, 3, crew=1, epoch=0, round=begun)
        for worker in range(3):
            control.begin(worker, 3, crew=1, at_end=False)
            assert (control.epoch, control.start) == (4, 16)


def test_workers_that_are_gone_end_no_epoch_of_those_that_start() -> None:
    """Risk H2, H6: the loop was left when some had read ahead to their end; of the next workers the first are done
    before the last have begun, which then read the epoch after."""
    control = Control()
    for worker in range(3):
        control.begin(worker, 3, crew=1, at_end=False)
    for worker in (1, 2):
        control.finish(worker, 3, crew=1, epoch=0, round=control.round)
    for worker in range(3):
        control.begin(worker, 3, crew=2, at_end=False)
        assert control.epoch == 0
        control.finish(worker, 3, crew=2, epoch=0, round=control.round)
    assert control.epoch == 1


def test_an_epoch_that_was_chosen_stays_and_its_position_is_used_up() -> None:
    """Risk H6."""
    control = Control()
    control.epoch, control.start, control.epoch_is_set = 3, 16, True
    for worker in range(2):
        control.begin(worker, 2, crew=1, at_end=False)
    before = control.round
    for worker in range(2):
        control.finish(worker, 2, crew=1, epoch=3, round=before)
    assert (control.epoch, control.start) == (3, 0)
    assert control.round != before, "a position that a worker has loaded is used up too"


def test_a_worker_at_the_end_of_its_share_counts_as_ended_before_it_begins() -> None:
    """Risk H7: a loader that saved behind the last batch makes iterators of what it loads, and reads none of them."""
    control = Control()
    for worker in range(2):
        control.finish(worker, 2, crew=1, epoch=0, round=control.round)
        control.begin(worker, 2, crew=1, at_end=True)
    assert control.epoch == 1


def test_a_copy_by_pickle_alone_has_numbers_of_its_own() -> None:
    control = Control()
    control.epoch = 7
    copy = pickle.loads(pickle.dumps(control))
    control.epoch = 8
    assert copy.epoch == 7
