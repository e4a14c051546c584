# SPDX-License-Identifier: Apache-2.0
"""Every writer of a control block, killed by the kernel between any two of its stores.

A child of this process does what a writer does and kills itself (-9) before its n-th store, for
each n until it comes through. Whatever it leaves must read as one of the states that it meant to
leave, and must not stand in the way of who writes next.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

from slipstream.coordinator import asking, blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.session import Session
from slipstream.wire.control_block import Directive, Identity, Phase, Progress, Request, Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.property

FOREVER_NS = 1 << 62
MOST_STORES = 500


def identity(task: int = 0) -> Identity:
    """A process of this user."""
    return Identity(
        *(7, "0", task, os.getuid(), Role.OWNER, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )


class Fuse:
    """Kills this process before its n-th store."""

    def __init__(self, stores: int) -> None:
        self.left = stores

    def burn(self) -> None:
        """One store more."""
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


class Words:
    """The words of a page, whose every store burns the fuse."""

    def __init__(self, words: memoryview, fuse: Fuse) -> None:
        self._words = words
        self._fuse = fuse

    def __getitem__(self, place: int | slice) -> object:
        return self._words[place]

    def __setitem__(self, place: int, value: int) -> None:
        self._fuse.burn()
        self._words[place] = value

    def release(self) -> None:
        """As the real ones."""
        self._words.release()


def in_child(work: Callable[[Fuse], None], stores: int) -> bool:
    """Do the work in a child that is killed before so many stores; whether it came through."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            work(Fuse(stores))
            code = 0
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.waitstatus_to_exitcode(status) == 0, "the writer raised"
    return True


def killed_everywhere(
    work: Callable[[Fuse], None], check: Callable[[], None], *, at_least: int
) -> None:
    """The work killed before its first store, its second, …, each time followed by the check."""
    for stores in range(MOST_STORES):
        through = in_child(work, stores)
        check()
        if through:
            assert stores >= at_least, f"only {stores} stores: the fuse is in the wrong place"
            return
    pytest.fail(f"not through after {MOST_STORES} stores")


def burning_words(fuse: Fuse, path: str) -> hook_blocks.Block:
    """Claim a page whose stores burn the fuse, those of the claim included."""
    write = hook_blocks.Block.write

    def first_write(self: hook_blocks.Block, **fields: int) -> None:
        if isinstance(self._words, memoryview):
            self._words = Words(self._words, fuse)  # type: ignore[assignment]  # a duck
        write(self, **fields)

    hook_blocks.Block.write = first_write  # type: ignore[method-assign]  # only in a child
    claimed = hook_blocks.claim(path)
    assert claimed
    return claimed


def test_a_page_whose_process_is_killed_anywhere(tmp_path: Path) -> None:
    """What is written together is read together, and the next process has the page."""
    page = blocks.create(tmp_path, identity(), lease_until_ns=FOREVER_NS)

    def write(fuse: Fuse) -> None:
        block = burning_words(fuse, str(page.path))
        block.write(started_ns=10, attached_ns=10, imported_ns=10)
        for number in range(1, 4):
            block.boundary(number, number * 10, number * 100)

    def check() -> None:
        page.progress = Progress()
        page.refresh()
        told = page.progress
        assert len({told.started_ns, told.attached_ns, told.imported_ns}) == 1
        assert told.last_boundary_ns == told.minibatches * 10
        assert told.minibatch_ns == told.minibatches * 100
        following = hook_blocks.claim(str(page.path))
        assert following, "the kernel gave the claim back"
        following.boundary(77, 770, 7700)
        page.refresh()
        assert (page.progress.minibatches, page.progress.minibatch_ns) == (77, 7700)
        following.close()

    killed_everywhere(write, check, at_least=3 + 5 + 15)


def test_a_training_killed_anywhere(tmp_path: Path) -> None:
    """From its launch to its end, with a directive and a save between: it reads as one."""
    seen: set[Phase] = set()
    page = blocks.create(tmp_path, identity(), lease_until_ns=FOREVER_NS)
    page.direct(Directive(epoch=3, armed_for_minibatch=1))

    def train(fuse: Fuse) -> None:
        block = burning_words(fuse, str(page.path))
        block.write(**dict.fromkeys(("minibatches", "last_boundary_ns", "first_boundary_ns"), 0))
        session = Session(block, Notes(""))
        session.begin()
        session.boundary()
        session.saved(5, by_trainer=True)
        session.boundary()
        session.end()

    def check() -> None:
        page.progress = Progress()
        page.refresh()
        told = page.progress
        seen.add(told.phase)
        assert (told.minibatches == 0) == (told.last_boundary_ns == 0)
        assert told.first_boundary_ns <= told.last_boundary_ns
        assert told.directive_epoch in (0, 3)
        assert told.saving_ns in (0, 5)

    killed_everywhere(train, check, at_least=30)
    assert {Phase.LOADING, Phase.TRAINING, Phase.ENDED} <= seen


def test_a_coordinator_killed_anywhere_while_it_asks(tmp_path: Path) -> None:
    """A process reads one of its directives, whole, or what it knew; the next one is heard."""
    page = blocks.create(tmp_path, identity(), lease_until_ns=FOREVER_NS)
    mine = hook_blocks.claim(str(page.path))
    assert mine
    asked = [
        Directive(),
        Directive(1, 10, 100, Request.PAUSE, 1000),
        Directive(2, 20, 200, Request.PARK, 2000),
        Directive(90, 1, 2, 3, 4),
    ]

    def direct(fuse: Fuse) -> None:
        _burn_at_store(fuse)
        (found,) = blocks.found(tmp_path)
        found.direct(asked[1])
        found.renew_lease(FOREVER_NS - 1)
        found.direct(asked[2])

    def check() -> None:
        news = mine.news()
        assert news is None or news in asked
        assert mine.lease_until_ns in (FOREVER_NS, FOREVER_NS - 1)
        (following,) = blocks.found(tmp_path)
        assert following.directive in asked
        following.direct(asked[3])
        following.forget()
        assert mine.news() == asked[3]

    killed_everywhere(direct, check, at_least=7)
    mine.close()


def test_a_coordinator_killed_anywhere_while_it_makes_a_page(tmp_path: Path) -> None:
    """There is a whole page or none; the next coordinator can make it, and nothing is left."""
    path = tmp_path / "7" / f"0.0.{os.getpid()}"
    whose = identity()

    def create(fuse: Fuse) -> None:
        _burn_at_store(fuse)
        blocks.create(tmp_path, whose, lease_until_ns=FOREVER_NS).forget()
        fuse.burn()

    def check() -> None:
        found = list(blocks.found(tmp_path))
        assert [one.path for one in found] == ([path] if path.exists() else [])
        for one in found:
            one.forget()
        blocks.clear_drafts(tmp_path)
        assert [*tmp_path.glob("*/*")] == [one.path for one in found]
        again = blocks.create(tmp_path, whose, lease_until_ns=FOREVER_NS)
        claimed = hook_blocks.claim(str(again.path))
        assert claimed
        claimed.close()
        again.remove()
        (tmp_path / "7").rmdir()

    killed_everywhere(create, check, at_least=3)


def test_a_coordinator_killed_between_the_pages_of_a_job(tmp_path: Path) -> None:
    """Some ranks were asked and some were not: the next one's asking brings all together."""
    for task in range(3):
        blocks.create(tmp_path, identity(task), lease_until_ns=FOREVER_NS).forget()
    ranks = [hook_blocks.claim(str(one.path)) for one in blocks.found(tmp_path)]
    pause = Directive(1, request=Request.PAUSE)

    def ask(fuse: Fuse) -> None:
        _burn_at_store(fuse)
        asking.ask(list(blocks.found(tmp_path)), pause)

    def check() -> None:
        pages = list(blocks.found(tmp_path))
        assert {page.directive.request for page in pages} <= {Request.PAUSE, Request.NONE}
        found = asking.ask(pages, Directive(2, request=Request.PAUSE))
        assert [rank.news() for rank in ranks if rank] == [found] * 3
        asking.ask(pages, Directive(3))
        for page in pages:
            page.forget()

    killed_everywhere(ask, check, at_least=9)
    for rank in ranks:
        assert rank
        rank.close()


def _burn_at_store(fuse: Fuse) -> None:
    """In a child: each store of the coordinator's burns the fuse."""
    for name in ("pwrite", "rename", "mkdir"):
        setattr(os, name, _burning(getattr(os, name), fuse))


def _burning(store: Callable[..., object], fuse: Fuse) -> Callable[..., object]:
    def burning(*words: object, **named: object) -> object:
        fuse.burn()
        return store(*words, **named)

    return burning
