"""What all streaming datasets are: an `IterableDataset` with a position, divided among ranks and workers."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.context import get_spawning_popen
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from torch.utils.data import IterableDataset, get_worker_info

from forebay._stats import Counters, merge_stats
from forebay.exceptions import ConfigError, PrefetchClosedError
from forebay.torch._carry import Surroundings
from forebay.torch._control import Control
from forebay.torch._deal import Deal
from forebay.torch._errors import with_sendable_errors
from forebay.torch._live import Live
from forebay.torch._mixture import Mixture
from forebay.torch._parent import end_with_parent
from forebay.torch._position import Position, check_state, make_state
from forebay.torch._ranks import find_world
from forebay.torch._reading import Share
from forebay.types import Stats

if TYPE_CHECKING:
    from forebay._dataset import ChunkedDataset

__all__ = ["Stream", "checked_int"]

#: Samples that are dealt together where no batch size is known.
BLOCK = 64


#: The stream for which this thread starts the workers of a loader, or is one, and what tells them how far it is. Other
#: threads that begin to iterate the same stream meanwhile must not see it.
_told: ContextVar[tuple[Stream, Control] | None] = ContextVar("forebay-told", default=None)


class Stream(IterableDataset[Any]):
    """Common part of the streaming datasets. Its methods work on all of them.

    Iterating gives this rank's and this worker's share of the epoch. An iteration that reaches the end advances the
    epoch, unless `set_epoch` chose it; one that is left early is begun anew by the next, from where it began.
    """

    def __init__(
        self,
        *,
        batch_size: int | None,
        drop_last: bool,
        rank: int | None,
        world_size: int | None,
        partitions: int | None,
    ) -> None:
        super().__init__()
        self._members: tuple[ChunkedDataset, ...] = ()
        self._rank, self._world_size = checked_int("rank", rank, 0), checked_int("world_size", world_size, 1)
        self._asked_partitions = self._partitions = checked_int("partitions", partitions, 1)
        if not isinstance(drop_last, bool):
            raise ConfigError(f"drop_last must be True or False, not {drop_last!r}", option="drop_last")
        self._control = Control()
        self._control.batch = checked_int("batch_size", batch_size, 1) or 0
        self._control.drop_last = drop_last
        self._channel: Control | None = None
        self._dealt: tuple[int, bool] | None = None
        self._live: Live | None = None
        self._resume: Position | None = None
        self._resume_round = 0
        self._resume_unread = False
        self._serial = 0
        self._counters = Counters()
        self._settle()

    @abstractmethod
    def _mixture(self, epoch: int, partitions: int) -> Mixture:
        """How the samples of an epoch are made of the members'."""

    @abstractmethod
    def _description(self) -> dict[str, Any]:
        """What the order depends on, besides epoch and partitions; plain values, for the state."""

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self._control.epoch

    @property
    def batch_size(self) -> int | None:
        """Samples a batch and rank, as the dataset was told; None where nobody did."""
        return self._control.batch or None

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last global batch is left out, as the dataset was told."""
        return bool(self._control.drop_last)

    def __len__(self) -> int:
        """Samples of a whole epoch that this rank gets, from the loader that was last made for this dataset, if any."""
        self._settle()
        batch, drop_last = self._dealt or (None, None)
        return self._deal(Position(epoch=self.epoch), self._control, batch=batch, drop_last=drop_last).samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that iterations read, until another is chosen or loaded; a position loaded for it stays."""
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
            raise ConfigError(f"epoch must be an int of at least 0, not {epoch!r}", option="epoch")
        if epoch != self._control.epoch:
            self._control.epoch, self._control.start = epoch, 0
            self._control.begin_round()
            self._resume = None
        self._live = None
        self._control.epoch_is_set = True

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last sample that was taken, as plain JSON-able values of a few hundred bytes.

        Raises:
            ConfigError: The workers of a plain ``DataLoader`` are inside of an epoch: only they know how far.
        """
        self._settle()
        if (self._live is None or self._live.ended) and self._control.is_being_read and _this_worker() is None:
            raise ConfigError(
                "the workers of a plain DataLoader are inside of an epoch, and this process is not told how far: save"
                " the state of a StreamingDataLoader or of torchdata's StatefulDataLoader, or ask between epochs",
                option="num_workers",
            )
        position = self._begin_at() if self._live is None else self._live.position()
        return make_state(position, partitions=self._control.partitions, description=self._description())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a position; ranks, workers and batch size may be others than when it was saved.

        Raises:
            ConfigError: The state is not one, or of another dataset or order; the field is named.
        """
        position, partitions = check_state(
            state_dict, partitions=self._asked_partitions, description=self._description()
        )
        total = self._mixture(position.epoch, partitions).total
        if position.start > total:
            raise ConfigError(f"the state is at sample {position.start} of {total}", option="consumed")
        self._partitions = partitions
        self._serial += 1
        self._live = None
        if position.start == total and not position.inside:
            position = Position(epoch=position.epoch + 1)
        worker = _this_worker()
        # A worker keeps its own position whole: the other workers load theirs, and share the control.
        self._resume = position if position.inside or worker is not None else None
        if position.epoch != self._control.epoch:
            self._control.epoch_is_set = False  # what was chosen before is not what the state asks for
        self._control.epoch, self._control.start = position.epoch, position.start
        self._settle()
        if worker is None:
            self._control.begin_round()
        self._resume_round = self._control.round
        self._resume_unread = worker is not None
        if worker is not None and self._is_at_end(worker):
            # A loader that saved at the end of an epoch never reads what it loads: this is the last chance to say so.
            self._control.finish(*worker, crew=_crew(), epoch=position.epoch, round=self._resume_round)

    def stats(self) -> Stats:
        """Counters of this process since the dataset was made."""
        return merge_stats([self._counters.snapshot(), *(member.stats() for member in self._members)])

    def close(self) -> None:
        """Stop every iteration, let go of every lease and connection. A second call does nothing."""
        for member in self._members:
            member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        worker = _this_worker()
        control = self._told_channel()
        if control is not None:
            position = Position(epoch=control.epoch, start=control.start)
            steps = self._share(position, control, worker).steps()
            return steps if worker is None else with_sendable_errors(steps)
        self._settle()
        if worker is not None:
            end_with_parent()  # torch itself sees to it for children of the trainer's own only, and after seconds
            self._control.begin(*worker, crew=_crew(), at_end=self._is_at_end(worker))
        position, round = self._begin_at(), self._control.round
        self._resume_unread = False
        live = Live(position, self._deal(position, self._control), self._serial, worker, round, position.inside)
        if position.inside and position.shape != live.shape:
            raise ConfigError(
                f"the state was taken inside of a batch, with {_in_words(position.shape)}, and this is"
                f" {_in_words(live.shape)}: resume with the same, or save the state of a StreamingDataLoader",
                option="batch_size",
            )
        self._live = live
        return self._items(live) if worker is None else with_sendable_errors(self._items(live))

    def count_for(self, batch: int, *, drop_last: bool) -> None:
        """A loader was made that deals so, and `len` says from now on what it gives; nothing else goes by it."""
        self._dealt = batch, drop_last

    def count_batches(self, batch: int, *, drop_last: bool) -> int:
        """Batches of a whole epoch, of ``batch`` samples a rank; the same on every rank."""
        self._settle()
        return self._deal(Position(epoch=self.epoch), self._control, batch=batch, drop_last=drop_last).steps

    def begin_run(self, channel: Control, batch: int, *, drop_last: bool) -> Live:
        """Begin an iteration of a loader; its workers, or this process, go by what is written to ``channel``."""
        if (resume := self._loaded()) is not None:
            raise ConfigError(
                f"the state was taken inside of a batch, with {_in_words(resume.shape)}, and a loader begins with"
                " a whole one: save the state of a StreamingDataLoader",
                option="batch_size",
            )
        self._settle()
        channel.take_over(self._control)
        channel.batch, channel.drop_last = batch, drop_last
        position = Position(epoch=channel.epoch, start=channel.start)
        self._live = Live(position, self._deal(position, channel), self._serial)
        return self._live

    @contextmanager
    def told_by(self, channel: Control) -> Iterator[None]:
        """Iterators that are made within, here or in a worker, give whole steps, as ``channel`` says."""
        token = _told.set((self, channel))
        try:
            yield
        finally:
            _told.reset(token)

    def _told_channel(self) -> Control | None:
        told = _told.get()
        return told[1] if told is not None and told[0] is self else self._channel

    def travellers(self) -> dict[str, object]:
        """What goes along to workers that was given by the user, by the name under which that was done."""
        things: dict[str, object] = {"dataset": type(self)}
        for member in self._members:
            things |= member.travellers()
        return things

    def check_current(self, live: Live) -> None:
        """Refuse to go on with an iteration that a loaded state made void.

        Raises:
            PrefetchClosedError: It is.
        """
        if live.serial != self._serial:
            raise PrefetchClosedError("a state was loaded after this iterator was made; begin another one")

    def advance(self, live: Live, steps: int, repeated: int) -> None:
        """A loader gave away its first ``steps`` steps; the last of them had ``repeated`` samples of other ranks."""
        live.steps = steps
        if repeated:
            self._counters.add(padded=repeated)
        if steps >= live.deal.steps:
            self.finish(live)

    def finish(self, live: Live) -> None:
        """An epoch was read to its end: the next iteration reads the next one."""
        if live.ended or live is not self._live or live.serial != self._serial:
            return
        live.ended = True
        control = self._control
        if live.worker is not None:
            control.finish(*live.worker, crew=_crew(), epoch=live.begun.epoch, round=live.round)
            return
        self._resume = None
        control.start = 0
        if control.is_being_read:  # by workers of a plain loader that was left early, most likely
            control.begin_round()
        if not control.epoch_is_set:
            control.epoch = live.begun.epoch + 1

    def _loaded(self) -> Position | None:
        """The loaded position, where the control does not say it all, until its epoch was read to the end."""
        return self._resume if self._resume_unread or self._resume_round == self._control.round else None

    def _begin_at(self) -> Position:
        return self._loaded() or Position(epoch=self._control.epoch, start=self._control.start)

    def _is_at_end(self, worker: tuple[int, int]) -> bool:
        """Whether nothing is left of the worker's share at the loaded position."""
        position = self._loaded()
        return position is not None and position.inside >= self._deal(position, self._control).samples_of(*worker)

    def _items(self, live: Live) -> Iterator[Any]:
        """Items one by one, for a plain loader or none: the position moves with each."""
        self.check_current(live)
        taken = live.taken
        skip, inside = divmod(taken, live.deal.batch)
        for step in self._share(live.begun, self._control, live.worker, skip).steps():
            if step.repeated:
                self._counters.add(padded=len(step.items))
            for item in step.items[inside:]:
                if live.serial != self._serial:
                    self.check_current(live)
                taken += 1
                live.taken = taken
                yield item
            inside = 0
        self.finish(live)

    def _share(self, position: Position, control: Control, worker: tuple[int, int] | None, skip: int = 0) -> Share:
        number, workers = worker or (0, 1)
        return Share(
            members=self._members,
            mixture=self._mixture(position.epoch, control.partitions),
            then=self._mixture(position.epoch + 1, control.partitions),
            deal=self._deal(position, control),
            worker=number,
            workers=workers,
            skip=skip,
        )

    def _deal(
        self, position: Position, control: Control, *, batch: int | None = None, drop_last: bool | None = None
    ) -> Deal:
        world = control.world
        batch = control.batch if batch is None else batch
        drop_last = bool(control.drop_last) if drop_last is None else drop_last
        end = total = self._mixture(position.epoch, control.partitions).total
        if not batch and drop_last:
            # Without a batch size, what is dropped is what would make the ranks uneven.
            total -= (total - position.start) % world
        return Deal(
            total=total,
            end=end,
            partitions=control.partitions,
            consumed=position.start,
            batch=batch or BLOCK,
            world=world,
            rank=control.rank,
            drop_last=drop_last and bool(batch),
            pad=bool(batch),
        )

    def _settle(self) -> None:
        """Find out who else trains."""
        control = self._control
        world = find_world(self._rank, self._world_size)
        if get_worker_info() is not None and world.size == 1:
            return  # a spawned worker knows no process group: the training process said at the pickling
        control.rank, control.world = world.rank, world.size
        control.partitions = self._partitions or world.machines

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        state = {**self.__dict__, "_live": None, "_channel": self._told_channel()}
        # On the way to a worker, of whatever loader: what comes after it is opened in the trainer's surroundings.
        return state if get_spawning_popen() is None else {"_surroundings": Surroundings(), **state}


def _this_worker() -> tuple[int, int] | None:
    """Number of this worker and how many there are; None in the training process."""
    info = get_worker_info()
    return None if info is None else (info.id, info.num_workers)


def _crew() -> int:
    """What the workers of one iterator have in common, and those of another have not: its seed, which torch draws."""
    info = get_worker_info()
    return 0 if info is None else info.seed - info.id


def _in_words(shape: tuple[int, ...]) -> str:
    words = ["batches of {}", "{} ranks", "worker {}", "of {} workers"]
    return ", ".join(word.format(number) for word, number in zip(words, shape, strict=False)) or "nothing of the kind"


def checked_int(name: str, value: SupportsIndex | None, minimum: int) -> int | None:
    """Return an argument that is None or an int of at least ``minimum``.

    Raises:
        ConfigError: It is neither.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be an int, not {value!r}", option=name)
    try:
        number = operator.index(value)
    except TypeError as exc:
        raise ConfigError(f"{name} must be an int, not {value!r}", option=name) from exc
    if number < minimum:
        raise ConfigError(f"{name} must be at least {minimum}, not {number}", option=name)
    return number
