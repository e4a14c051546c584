# SPDX-License-Identifier: Apache-2.0
"""Every kind of loader: a loop that goes on sees the same samples to the bit, or says why not."""

from __future__ import annotations

import gc
import json
import random
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from slipstream.torch_hooks import watching
from slipstream.torch_hooks.checkpoint import own
from slipstream.torch_hooks.checkpoint.encoding import Decoder, placed
from slipstream.torch_hooks.checkpoint.loops import Loops
from slipstream.torch_hooks.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytestmark = pytest.mark.unit

SAMPLES = 24
BATCH = 4
EPOCHS = 4
IN_THE_SECOND_EPOCH, AT_AN_EPOCHS_END, IN_THE_THIRD = 8, 12, 16


class Plain(Dataset[torch.Tensor]):
    """Always the same samples."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> torch.Tensor:
        """A sample."""
        return torch.tensor([float(number)])


class Validation(Plain):
    """Another one, known by its name."""


class Augmented(Plain):
    """With random changes, drawn from all three random states."""

    def __getitem__(self, number: int) -> torch.Tensor:
        """A sample."""
        noise = random.random() + np.random.rand()  # noqa: NPY002, S311 (the global states are the point)
        return torch.rand(1) + number + noise


class WithItsOwn(Plain):
    """With random changes from generators of its own, deep inside."""

    def __init__(self) -> None:
        self.transforms = {"noise": [np.random.default_rng(1), random.Random(2)]}  # noqa: S311 (its state is the point)
        self.torchs = torch.Generator().manual_seed(3)

    def __getitem__(self, number: int) -> torch.Tensor:
        """A sample."""
        noise: Any = self.transforms["noise"]
        drawn = float(noise[0].random() + noise[1].random())
        return torch.rand(1, generator=self.torchs) + number + drawn


class Stream(IterableDataset[torch.Tensor]):
    """Samples in one order, shared among the workers, with random changes."""

    def __init__(self, *, noise: bool) -> None:
        self.noise = noise

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, SAMPLES, step):
            yield torch.tensor([float(number)]) + (torch.rand(1) if self.noise else 0)


class ShuffledArray(Sampler[int]):
    """A sampler of the user's that shuffles an array in place."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(4)
        self.order = np.arange(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        self.random.shuffle(self.order)
        return iter(self.order.tolist())


class Shuffled(Sampler[int]):
    """A sampler of the user's: shuffles in place with its own generator, and counts."""

    def __init__(self) -> None:
        self.random = random.Random(4)  # noqa: S311 (its state is the point)
        self.order = list(range(SAMPLES))
        self.epoch = 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        self.random.shuffle(self.order)
        if self.epoch % 2:
            self.order.reverse()
        yield from self.order


class Buffered(Sampler[int]):
    """A sampler of the user's that draws from the process's random state as it goes."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        buffer: list[int] = []
        for number in range(SAMPLES):
            buffer.append(number)
            if len(buffer) == BATCH:
                yield buffer.pop(random.randrange(BATCH))  # noqa: S311 (its state is the point)
        yield from buffer


class Lists(Sampler["list[int]"]):
    """A batch sampler of the user's, with batches of several sizes."""

    def __init__(self) -> None:
        self.numpys = np.random.RandomState(5)

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        numbers = self.numpys.permutation(SAMPLES).tolist()
        for at in (0, 2, 8, 12, 16, 20):
            yield numbers[at : at + 4]


class Remembering:
    """A loader that tells and takes its own place."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(6)
        self.order: list[int] = []
        self.at = 0
        self.goes_on = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self.goes_on:
            self.order = torch.randperm(6, generator=self.generator).tolist()
            self.at = 0
        self.goes_on = False
        while self.at < len(self.order):
            self.at += 1
            yield torch.tensor([self.order[self.at - 1]])

    def state_dict(self) -> dict[str, Any]:
        """Its place."""
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.order, self.at, self.goes_on = state["order"], state["at"], True


class Drawing:
    """Batches drawn one by one."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(6):
            yield torch.randint(SAMPLES, (BATCH,))


def seeded_again(_worker: int) -> None:
    """As many programs do for numpy."""
    np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002 (the global state is the point)


@dataclass
class Program:
    """A training program: what it makes before its loop, and what its loop's body does."""

    make: Callable[[], Iterable[Any]]
    validation: Callable[[], Iterable[Any]] | None = None
    before_an_epoch: Callable[[Any, int], None] = lambda *_: None
    breaks_at: int | None = None
    seen: list[Any] = field(default_factory=list)

    def run(self, loops: Loops) -> list[Any]:
        """All that it has seen and drawn."""
        self.seen = []
        loader = self.make()
        validation = self.validation() if self.validation else None
        loops.follow()
        try:
            for epoch, batches in loops.epochs(loader, EPOCHS):
                self.before_an_epoch(batches, epoch)
                for batch in batches:
                    self.seen.append((epoch, _values(batch), torch.rand(1).item()))
                    if loops.batch == self.breaks_at:
                        break
                if validation is not None:
                    checked = [_values(batch) for batch in validation]
                    self.seen.append(("validated", checked, random.random()))  # noqa: S311 (it is the point)
        finally:
            loops.leave()
        return self.seen


class Stopped(Exception):  # noqa: N818 (it is no error)
    """Where the process would have been killed."""


@pytest.fixture(autouse=True)
def _watch() -> Iterator[None]:
    """Constructors take a note, as in a process with the hooks."""
    watch = Watch()
    yield
    watch.remove()


def begin_anew(number: int) -> None:
    """As a new process would: no loader is left, and all random states are seeded."""
    gc.collect()
    watching._made.clear()  # noqa: SLF001 (a new process has made none)
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 (the global state is the point)


def _values(batch: Any) -> Any:  # noqa: ANN401 (a tensor, or something else)
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def through_a_file(position: dict[str, Any], random_states: dict[str, Any]) -> list[dict[str, Any]]:
    """As another process would read it."""
    saved = json.loads(json.dumps(own.coded(position, random_states)))
    import base64  # noqa: PLC0415 (here alone)

    storages = [
        torch.tensor(list(base64.b85decode(one)), dtype=torch.uint8).untyped_storage()
        for one in saved["storages"]
    ]
    decoded = Decoder(lambda one: placed(one, storages[one["storage"]])).decode(saved["state"])
    return [decoded["position"], decoded["random"]]


def stopped_and_gone_on(program: Program, after: int) -> tuple[list[Any], list[Any], str]:
    """The whole of it undisturbed; in two parts; and why not, if it said so."""
    begin_anew(1)
    whole = list(program.run(Loops(lambda: None)))
    begin_anew(1)
    saved: list[list[dict[str, Any]]] = []
    reasons = []

    def at_rest() -> None:
        reasons.append(loops.why_not)
        if loops.minibatches == after and not saved:
            if not loops.why_not:
                saved.append(through_a_file(loops.position(), loops.random_states()))
            raise Stopped

    loops = Loops(at_rest)
    with pytest.raises(Stopped):
        program.run(loops)
    if not saved:
        return whole, [], reasons[-1]
    first = list(program.seen)
    begin_anew(99)
    problems: list[str] = []
    again = Loops(lambda: None, on_problem=problems.append)
    again.restore(saved[0][0], saved[0][1])
    rest = program.run(again)
    assert problems == []
    return whole, first + list(rest), ""


def loader(dataset: Dataset[Any], **how: Any) -> Callable[[], Iterable[Any]]:  # noqa: ANN401 (as a loader's)
    """A loader that is made anew in each process."""
    return lambda: DataLoader(dataset, BATCH, **how)


def with_sampler(sampler: Callable[[], Any], **how: Any) -> Callable[[], Iterable[Any]]:  # noqa: ANN401 (as a loader's)
    """The same with a sampler of its own."""
    return lambda: DataLoader(Augmented(), BATCH, sampler=sampler(), **how)


def fresh(dataset: Callable[[], Dataset[Any]], **how: Any) -> Callable[[], Iterable[Any]]:  # noqa: ANN401 (as a loader's)
    """The same with a dataset that has a memory."""
    return lambda: DataLoader(dataset(), BATCH, **how)


def with_generator(**how: Any) -> Callable[[], Iterable[Any]]:  # noqa: ANN401 (as a loader's)
    """The same with a generator of its own."""
    return lambda: DataLoader(
        Augmented(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(3), **how
    )


PERSISTENT: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
WORKERS: dict[str, Any] = {"num_workers": 2}
EXACT: dict[str, Program] = {
    "plain": Program(loader(Plain())),
    "shuffled": Program(loader(Augmented(), shuffle=True)),
    "shuffled, the last dropped": Program(loader(Augmented(), shuffle=True, drop_last=True)),
    "with a generator": Program(with_generator()),
    "with its own generators": Program(fresh(WithItsOwn, shuffle=True)),
    "stream": Program(fresh(lambda: Stream(noise=False))),
    "a sampler that shuffles in place": Program(with_sampler(Shuffled)),
    "weighted": Program(with_sampler(lambda: WeightedRandomSampler([1.0] * SAMPLES, SAMPLES))),
    "drawn with replacement": Program(
        with_sampler(lambda: RandomSampler(range(SAMPLES), replacement=True))
    ),
    "a batch sampler": Program(lambda: DataLoader(Augmented(), batch_sampler=Lists())),
    "batches of torch's sampler": Program(
        lambda: DataLoader(
            Augmented(),
            batch_sampler=BatchSampler(SequentialSampler(range(SAMPLES)), BATCH, drop_last=False),
        )
    ),
    "a place of its own": Program(Remembering),
    "a list": Program(lambda: list(range(6))),
    "its epochs broken off": Program(loader(Augmented(), shuffle=True), breaks_at=4),
    "distributed": Program(
        with_sampler(lambda: DistributedSampler(Plain(), num_replicas=1, rank=0)),
        before_an_epoch=lambda batches, epoch: batches.sampler.set_epoch(epoch),
    ),
    "workers": Program(loader(Augmented(), shuffle=True, **WORKERS)),
    "workers with a generator": Program(with_generator(**WORKERS)),
    "workers of a stream": Program(fresh(lambda: Stream(noise=True), **WORKERS)),
    "workers with a sampler that shuffles in place": Program(with_sampler(Shuffled, **WORKERS)),
    "workers, validated with workers": Program(
        loader(Augmented(), shuffle=True, **WORKERS), loader(Validation(), **WORKERS)
    ),
    "a sampler that shuffles an array": Program(with_sampler(ShuffledArray)),
    "persistent": Program(loader(Plain(), shuffle=True, **PERSISTENT)),
    "persistent, in order": Program(loader(Plain(), **PERSISTENT)),
    "persistent, augmented": Program(loader(Augmented(), shuffle=True, **PERSISTENT)),
    "persistent with a generator": Program(with_generator(**PERSISTENT)),
    "persistent with its own generators": Program(fresh(WithItsOwn, shuffle=True, **PERSISTENT)),
    "persistent with a sampler that shuffles in place": Program(
        with_sampler(Shuffled, **PERSISTENT)
    ),
    "persistent with a batch sampler": Program(
        lambda: DataLoader(Augmented(), batch_sampler=Lists(), **PERSISTENT)
    ),
    "persistent, distributed": Program(
        with_sampler(lambda: DistributedSampler(Plain(), num_replicas=1, rank=0), **PERSISTENT),
        before_an_epoch=lambda batches, epoch: batches.sampler.set_epoch(epoch),
    ),
    "persistent, seeded by the program": Program(
        loader(Augmented(), shuffle=True, worker_init_fn=seeded_again, **PERSISTENT)
    ),
    "persistent, far ahead": Program(
        loader(Augmented(), shuffle=True, prefetch_factor=5, **PERSISTENT)
    ),
    "persistent, a stream": Program(fresh(lambda: Stream(noise=True), **PERSISTENT)),
    "persistent, its epochs broken off": Program(
        loader(Augmented(), shuffle=True, **PERSISTENT), breaks_at=4
    ),
    "persistent, validated": Program(
        loader(Augmented(), shuffle=True, **PERSISTENT), loader(Validation(), **PERSISTENT)
    ),
    "validated by persistent workers": Program(
        loader(Augmented(), shuffle=True), loader(Augmented(), **PERSISTENT)
    ),
    "two alike": Program(
        loader(Augmented(), shuffle=True, **PERSISTENT), loader(Augmented(), **PERSISTENT)
    ),
}
REFUSED: dict[str, tuple[Program, str]] = {
    "a sampler that draws as it goes": (
        Program(with_sampler(Buffered)),
        "the sampler draws from the process's random state while it goes on",
    ),
    "with workers, too": (
        Program(with_sampler(Buffered, prefetch_factor=1, **WORKERS)),
        "the sampler draws from the process's random state while it goes on",
    ),
    "a stream that draws as it goes": (
        Program(fresh(lambda: Stream(noise=True))),
        "the dataset draws from the process's random state while it goes on",
    ),
    "a loader that draws as it goes": (
        Program(Drawing),
        "what gives the batches draws from the process's random state while it goes on",
    ),
    "persistent workers made inside the loop": (
        Program(loader(Plain()), before_an_epoch=lambda _, epoch: late(epoch)),
        "a DataLoader with persistent workers was made inside the loop",
    ),
}
_late: list[Any] = []


def late(epoch: int) -> None:
    """A loader that is made in the body of the second epoch, and kept."""
    if epoch == 1:
        _late[:] = [DataLoader(Validation(), BATCH, **PERSISTENT)]
        list(_late[0])


def is_slow(name: str) -> bool:
    """Those that start processes."""
    return "workers" in name or "persistent" in name or name == "two alike"


@pytest.mark.parametrize(
    ("name", "after"),
    [
        (name, after)
        for name in EXACT
        for after in (0, 3, IN_THE_SECOND_EPOCH, AT_AN_EPOCHS_END, IN_THE_THIRD)
        if after == IN_THE_SECOND_EPOCH
        or (after == IN_THE_THIRD) > ("workers" in name)
        or not is_slow(name)
    ],
)
def test_the_same_samples_to_the_bit(name: str, after: int) -> None:
    """Stopped before the first batch, in an epoch, at the end of one."""
    whole, parts, why_not = stopped_and_gone_on(EXACT[name], after)
    assert why_not == ""
    assert parts == whole


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_brought_back_is_refused_with_the_reason(name: str) -> None:
    """Never other samples without a word."""
    program, reason = REFUSED[name]
    _, parts, why_not = stopped_and_gone_on(program, IN_THE_SECOND_EPOCH)
    assert reason in why_not
    assert parts == []
    _late.clear()


def test_spawned_workers_report_too() -> None:
    """What stands for `worker_init_fn` can be pickled."""
    how = {"multiprocessing_context": "spawn", "num_workers": 1, "persistent_workers": True}
    program = Program(loader(Augmented(), shuffle=True, **how))
    whole, parts, why_not = stopped_and_gone_on(program, IN_THE_SECOND_EPOCH)
    assert why_not == ""
    assert parts == whole


def test_workers_begun_before_the_session_are_refused() -> None:
    """Nobody knows what they have drawn."""
    made = DataLoader(Plain(), BATCH, num_workers=1, persistent_workers=True)
    list(made)
    reasons = []
    loops = Loops(lambda: reasons.append(loops.why_not))
    loops.follow()
    for _, batches in loops.epochs(made, 1):
        list(batches)
    loops.leave()
    assert "begun before session" in reasons[-1]


def test_loaders_are_torchs_own_again_afterwards() -> None:
    """Nothing of ours is left in the class, nor in a loader."""
    before = DataLoader.__iter__
    loops = Loops(lambda: None)
    loops.follow()
    made = DataLoader(Plain(), BATCH, num_workers=1, persistent_workers=True)
    for _, batches in loops.epochs(made, 2):
        list(batches)
    assert made.worker_init_fn is None
    loops.leave()
    assert DataLoader.__iter__ is before


@pytest.mark.parametrize("sampler", [None, Shuffled()])
def test_a_loaders_end_is_its_workers_end(sampler: Any) -> None:  # noqa: ANN401 (torch's)
    """Nothing of ours keeps an iterator: the collector would wait for its workers."""
    loops = Loops(lambda: None)
    loops.follow()
    made: DataLoader[Any] = DataLoader(Plain(), BATCH, sampler=sampler, **PERSISTENT)
    gone = weakref.ref(made)
    for _, batches in loops.epochs(made, 2):
        list(batches)
    loops.leave()
    gc.disable()
    try:
        del made, batches
        assert gone() is None
    finally:
        gc.enable()
