"""Images of all connections, computed together.

The event loop hands the bytes of an image to one of a few threads; clients take turns. The thread decodes the image,
puts its pixels into a queue and, if no other thread is computing, computes what the queue holds until it is empty; the
others decode meanwhile. So an image that is alone passes through one thread only, and others are computed while they
would wait anyway. Network, decoders and event loop run at the same time: ctypes and Pillow release Python's lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from time import monotonic
from typing import Any

import numpy as np

from moon_runtime.answers import Answer
from moon_runtime.classifier import Classifier
from moon_runtime.images import ImageError
from moon_runtime.serve.bodies import Upload
from moon_runtime.serve.metrics import Metrics
from moon_runtime.serve.refusals import busy, unavailable
from moon_runtime.serve.settings import Settings
from moon_runtime.serve.watching import Watch

_log = logging.getLogger("moon_runtime.serve")
THREADS = 3  # one computes, two decode; each may need 14 bytes for every pixel that is allowed
PATIENCE = 3  # how many times --timeout a request waits while its client's other images are being answered


class _Job:
    """An image on its way; `result` is an answer, the reason why it cannot be read, or None if something failed."""

    __slots__ = ("client", "future", "pixels", "since", "upload")

    def __init__(self, upload: Upload, future: asyncio.Future[Answer | str | None], client: str) -> None:
        self.upload: Upload | None = upload
        self.client = client
        self.future = future
        self.pixels: np.ndarray | None = None
        self.since = 0.0


class _Turns:
    """Images that wait for a thread: clients take turns, and of none are so many decoded that no thread is left."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[_Job, asyncio.AbstractEventLoop]]] = {}
        self._decoding: Counter[str] = Counter()
        self._changed, self._has_ended = threading.Condition(), False

    def put(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        with self._changed:
            self._waiting.setdefault(job.client, deque()).append((job, loop))
            self._changed.notify()

    def take(self) -> tuple[_Job, asyncio.AbstractEventLoop] | None:
        """Wait for the next image; None after the end. `finish` must follow."""
        with self._changed:
            while not self._has_ended:
                for client, tasks in self._waiting.items():
                    if self._decoding[client] < THREADS - 1:
                        del self._waiting[client]
                        task = tasks.popleft()
                        if tasks:
                            self._waiting[client] = tasks  # at the end
                        self._decoding[client] += 1
                        return task
                self._changed.wait()
        return None

    def finish(self, job: _Job) -> None:
        """An image has been decoded."""
        with self._changed:
            self._decoding[job.client] -= 1
            if not self._decoding[job.client]:
                del self._decoding[job.client]
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


class Batcher:
    """Answers about images that arrive one by one.

    Args:
        classifier: The network.
        settings: The limits.
        metrics: Counts images and batches.
        watch: Compares the scores with those of the calibration.

    Attributes:
        waiting: Images that were accepted and are not answered yet.
    """

    def __init__(self, classifier: Classifier, settings: Settings, metrics: Metrics, watch: Watch) -> None:
        self._classifier, self._settings = classifier, settings
        self._metrics, self._watch = metrics, watch
        self.waiting = 0
        self._waiting_of: Counter[str] = Counter()
        self._answered: dict[str, float] = {}  # when an image of a client that waits was last answered
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._decoding, self._is_computing = 0, False
        self._turns = _Turns()
        for number in range(THREADS):  # daemons: Python does not wait for them when the program ends
            threading.Thread(target=self._take_tasks, name=f"images-{number}", daemon=True).start()

    def stop(self) -> None:
        """End the threads as soon as each has done its image; images that still wait are not computed."""
        self._turns.end()

    async def answer(self, uploads: Sequence[Upload], client: str = "") -> list[Answer | str]:
        """Answer about images, in their order.

        Args:
            uploads: The images.
            client: Who sent them. Clients take turns, and the images of one fill at most half of the queue.

        Returns:
            For each an answer, or the reason why it cannot be read.

        Raises:
            Refused: If too many images wait already, it takes too long, or something failed.
        """
        settings = self._settings
        share = max(settings.max_images, settings.max_queue // 2)
        if self.waiting + len(uploads) > settings.max_queue or self._waiting_of[client] + len(uploads) > share:
            raise busy(f"{self._waiting_of[client] or self.waiting} images wait already; try again")
        loop = asyncio.get_running_loop()
        jobs = [_Job(upload, loop.create_future(), client) for upload in uploads]
        self.waiting += len(jobs)
        self._waiting_of[client] += len(jobs)
        with self._changed:
            self._decoding += len(jobs)
        for job in jobs:
            self._turns.put(job, loop)
        try:
            results = await self._wait(jobs, client)
        finally:
            for job in jobs:
                job.future.cancel()  # nobody waits for the others any more
                job.upload = None  # the caller's budget does not count these bytes from now on
        if any(result is None for result in results):
            raise unavailable("the images could not be computed; try again")
        return [result for result in results if result is not None]

    async def _wait(self, jobs: Sequence[_Job], client: str) -> list[Answer | str | None]:
        """All results. Images that wait behind others of their own client have more time while those are answered."""
        timeout, began = self._settings.timeout, monotonic()
        while True:
            last = min(max(began, self._answered.get(client, 0)), began + (PATIENCE - 1) * timeout)
            left = last + timeout - monotonic()
            if left <= 0:
                raise unavailable(f"no answer within {monotonic() - began:.3g} seconds; try again")
            if not (await asyncio.wait([job.future for job in jobs], timeout=left))[1]:
                return [job.future.result() for job in jobs]

    def _take_tasks(self) -> None:
        """In each of the threads, until `stop`."""
        while task := self._turns.take():
            try:
                self._work(*task)
            except Exception:
                _log.exception("an image was lost")

    def _work(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        """Decode an image, then compute what waits unless another thread does."""
        error = self._decode(job)
        self._turns.finish(job)
        if job.pixels is None:
            self._send(loop, [job], [error], 0)
        with self._changed:
            self._decoding -= 1
            if job.pixels is not None:
                self._queue.append(job)
            if self._is_computing or not self._queue:
                self._changed.notify()  # the thread that computes may wait for this image
                return
            self._is_computing = True
        while jobs := self._next_batch():
            self._send(loop, jobs, self._compute(jobs), len(jobs))

    def _decode(self, job: _Job) -> str | None:
        """From bytes to pixels of the network's size; returns what is wrong with the image."""
        upload, job.upload = job.upload, None  # the bytes are not needed any longer
        try:
            if upload is not None and not job.future.cancelled():
                job.pixels = self._classifier.prepare(BytesIO(upload.data), "the image", self._settings.max_pixels)
                job.since = monotonic()
        except ImageError as reason:
            return str(reason).removeprefix("the image: ")
        except Exception:
            _log.exception("an image could not be decoded")
        return None

    def _next_batch(self) -> list[_Job]:
        """The images to compute; those that are being decoded are waited for, but not long. Empty: none are left."""
        settings = self._settings
        with self._changed:
            while self._queue and self._decoding and len(self._queue) < settings.max_batch:
                left = self._queue[0].since + settings.batch_wait_ms / 1000 - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._is_computing = bool(self._queue)
            return [self._queue.popleft() for _ in range(min(len(self._queue), settings.max_batch))]

    def _compute(self, jobs: Sequence[_Job]) -> Sequence[Answer | None]:
        try:
            answers = self._classifier(np.stack([job.pixels for job in jobs if job.pixels is not None]))
            self._watch.update(answers.score)
            return list(answers)
        except Exception:
            _log.exception("a batch of %d images failed", len(jobs))
            return [None] * len(jobs)

    def _send(self, loop: asyncio.AbstractEventLoop, *results: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            loop.call_soon_threadsafe(self._deliver, *results)

    def _deliver(self, jobs: Sequence[_Job], results: Sequence[Answer | str | None], batch: int) -> None:
        """In the event loop: results to those who wait for them."""
        self.waiting -= len(jobs)
        if batch:
            self._metrics.batches.add(batch)
        for job, result in zip(jobs, results, strict=True):
            self._waiting_of[job.client] -= 1
            if self._waiting_of[job.client]:
                self._answered[job.client] = monotonic()
            else:
                del self._waiting_of[job.client]
                self._answered.pop(job.client, None)
            if not job.future.done():
                job.future.set_result(result)
            if result is not None:
                verdict = "error" if isinstance(result, str) else "known" if result.is_known else "unknown"
                self._metrics.images[verdict] += 1
