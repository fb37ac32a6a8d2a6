"""How images become batches, and how the server watches their scores."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn")

import moon_runtime
from moon_runtime.answers import Answers
from moon_runtime.serve import batching
from moon_runtime.serve.batching import Batcher, _Job
from moon_runtime.serve.bodies import Upload
from moon_runtime.serve.metrics import Metrics
from moon_runtime.serve.refusals import Refused
from moon_runtime.serve.settings import Settings
from moon_runtime.serve.watching import Watch
from serving import cases

FILE = Path(__file__).parent / "kept" / "format1.moon"
KNOWN = cases(FILE, 40)
UPLOADS = [Upload(None, case.data) for case in KNOWN]


class Gate:
    """The classifier, which computes only while the gate is open."""

    def __init__(self) -> None:
        self._classifier, self.sizes = moon_runtime.load(FILE), []
        self.is_open, self.is_entered = threading.Event(), threading.Event()
        self.prepare = self._classifier.prepare

    def __call__(self, images: np.ndarray) -> Answers:
        self.is_entered.set()
        assert self.is_open.wait(30)
        self.sizes.append(len(images))
        return self._classifier(images)


def with_batcher(test: Callable[[Batcher, Gate], Any], **settings: Any) -> None:
    """Run a coroutine function with a batcher and the gate before its network."""
    gate = Gate()
    batcher = Batcher(gate, Settings(**settings), Metrics(), Watch(np.arange(5.0)))  # type: ignore[arg-type]
    try:
        asyncio.run(test(batcher, gate))
    finally:
        gate.is_open.set()
        batcher.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_images_that_wait_are_computed_together_and_get_their_own_answers() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        asked = [asyncio.create_task(batcher.answer([upload])) for upload in UPLOADS]
        await until(lambda: gate.is_entered.is_set() and batcher._decoding == 0)
        assert batcher.waiting == 40
        gate.is_open.set()
        answers = [(await task)[0] for task in asked]
        assert [json.loads(json.dumps(a.as_json())) for a in answers] == [case.answer for case in KNOWN]  # type: ignore[union-attr]
        assert sum(gate.sizes) == 40
        assert max(gate.sizes) == 8  # as many as allowed
        assert (batcher.waiting, batcher._metrics.batches.sum) == (0, 40)

    with_batcher(test, max_batch=8)


def test_a_full_queue_refuses() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        first = asyncio.create_task(batcher.answer(UPLOADS[:3]))
        await until(gate.is_entered.is_set)
        with pytest.raises(Refused, match="3 images wait already") as refused:
            await batcher.answer(UPLOADS[:3])
        assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "1"})
        second = asyncio.create_task(batcher.answer(UPLOADS[:2]))  # there is room for two
        gate.is_open.set()
        assert (len(await first), len(await second)) == (3, 2)
        assert len(await batcher.answer(UPLOADS[:5])) == 5

    with_batcher(test, max_queue=5, max_images=5)


def test_one_client_leaves_a_thread_and_half_of_the_queue_to_others() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        gate.is_open.set()
        slow, prepare, begun = threading.Event(), gate.prepare, threading.Semaphore(0)

        def prepare_slowly(file: Any, *arguments: Any) -> np.ndarray:
            if file.getvalue() == b"slow":
                begun.release()
                assert slow.wait(30)
            return prepare(file, *arguments)

        gate.prepare = prepare_slowly  # type: ignore[assignment,method-assign]
        first = asyncio.create_task(batcher.answer([Upload(None, b"slow")] * 5, "a"))
        await until(lambda: begun.acquire(blocking=False))
        with pytest.raises(Refused, match="5 images wait already"):
            await batcher.answer(UPLOADS[:1], "a")
        assert len(await batcher.answer(UPLOADS[:5], "b")) == 5
        slow.set()
        assert await first == ["is not an image in a supported format"] * 5
        assert len(await batcher.answer(UPLOADS[:5], "a")) == 5
        assert not batcher._waiting_of
        assert not batcher._answered

    with_batcher(test, max_queue=10, max_images=5)


def test_images_behind_those_of_their_own_client_have_more_time() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        batcher._answered["a"] = monotonic() + 60  # its images are answered
        with pytest.raises(Refused, match=r"no answer within 0\.[1-9]|no answer within [1-9]"):
            await batcher.answer(UPLOADS[:1], "a")

    with_batcher(test, timeout=0.05)


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        with pytest.raises(Refused, match=r"no answer within .* seconds") as refused:
            await batcher.answer(UPLOADS[:3])
        assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "1"})
        assert batcher.waiting  # what is being computed still counts
        gate.is_open.set()
        await until(lambda: batcher.waiting == 0)

    with_batcher(test, timeout=0.05)


def test_images_that_were_given_up_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[_Job] = []

    def job(*arguments: Any) -> _Job:
        jobs.append(_Job(*arguments))
        return jobs[-1]

    monkeypatch.setattr(batching, "_Job", job)

    async def test(batcher: Batcher, gate: Gate) -> None:
        gate.prepare = lambda *_: gate.is_open.wait(30)  # type: ignore[assignment,method-assign]
        with pytest.raises(Refused, match="no answer"):
            await batcher.answer(UPLOADS)
        assert len(jobs) == batcher.waiting == 40  # most of them wait for a thread
        assert [job.upload for job in jobs] == [None] * 40

    with_batcher(test, timeout=0.05)


def test_a_failure_is_for_those_who_were_part_of_it() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        gate.is_open.set()
        classifier, gate._classifier = gate._classifier, lambda images: 1 / 0  # type: ignore[assignment]
        with pytest.raises(Refused, match="could not be computed"):
            await batcher.answer(UPLOADS[:2])
        gate._classifier = classifier
        assert len(await batcher.answer(UPLOADS[:2])) == 2
        assert batcher.waiting == 0

    with_batcher(test)


def test_the_watch_forgets_after_a_round_without_an_alarm() -> None:
    rng = np.random.default_rng(0)
    watch = Watch(rng.normal(size=500), 0.01, round_size=300)
    watch.update(rng.normal(size=250))
    assert not watch.alarm
    watch.update(np.concatenate([rng.normal(size=50), rng.normal(-2, 1, 300), [np.nan, np.inf]]))
    assert watch.alarm
    watch.update(rng.normal(size=299))
    assert watch.alarm  # of the round before
    watch.update(rng.normal(size=1))
    assert not watch.alarm
    assert watch.seen == 900
    nothing = Watch(np.array([np.nan]))
    nothing.update(np.zeros(1000))
    assert not nothing.alarm
