"""Load on a server, with every answer checked:

    python runtime/tests/load.py digits.moon --connections 64 --seconds 300        # mixed: 5% are broken, slow, ...
    python runtime/tests/load.py digits.moon --onnx digits.onnx --seconds 20       # beside ONNX Runtime, interleaved

Prints one JSON object. The test suite sends a few hundred requests in this way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import statistics
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from serving import Case, Server, cases, form, get, post, request_once, serve, serving

BODY_TIMEOUT, MAX_BODY_MB = 2, 1


class Load:
    """Connections that send requests and check the answers.

    Args:
        port: Of the server.
        known: Images with their answers.
        faults: The share of requests that are broken, slow, oversized or aborted.
        exact: Whether an answer must be equal; False: only its class and verdict.
    """

    def __init__(self, port: int, known: list[Case], faults: float = 0.0, exact: bool = True) -> None:
        self.port, self.known, self.faults, self.exact = port, known, faults, exact
        self.requests = [post(case.data) for case in known]
        self.seconds: list[float] = []
        self.counts: Counter[str] = Counter()
        self.codes: Counter[int] = Counter()
        self.examples: list[str] = []
        self._first = list(FAULTS) if faults else []  # one of each kind comes first

    def run(self, connections: int, seconds: float = math.inf, requests: float = math.inf) -> dict[str, Any]:
        """Send requests for some time, or so many of them; what happened."""
        began = time.perf_counter()
        asyncio.run(self._run(connections, seconds, requests))
        took, times = time.perf_counter() - began, sorted(self.seconds) or [float("nan")]
        return {
            "connections": connections, "seconds": round(took, 1), "requests": sum(self.counts.values()),
            "answers_per_second": round(len(self.seconds) / took, 1),
            "p50_ms": round(1000 * statistics.median(times), 2),
            "p99_ms": round(1000 * times[int(0.99 * (len(times) - 1))], 2), "kinds": dict(sorted(self.counts.items())),
            "codes": {str(code): count for code, count in sorted(self.codes.items())},
            "wrong": self.counts["wrong"], "lost": self.counts["lost"], "examples": self.examples[:5],
            "other_5xx": sum(count for code, count in self.codes.items() if code >= 500 and code != 503),
        }  # fmt: skip

    async def _run(self, connections: int, seconds: float, requests: float) -> None:
        self._until, self._left = time.perf_counter() + seconds, requests
        await asyncio.gather(*(self._client(random.Random(i)) for i in range(connections)))

    async def _client(self, chooser: random.Random) -> None:
        connection = None
        while time.perf_counter() < self._until and self._left > 0:
            self._left -= 1
            if connection is None:
                connection = await asyncio.open_connection("127.0.0.1", self.port)
            if self._first or chooser.random() < self.faults:
                kind = self._first.pop() if self._first else chooser.choice(FAULTS)
                self.counts[kind.__name__.strip("_")] += 1
                keep = False
                try:
                    keep = await asyncio.wait_for(kind(self, chooser, *connection), 30)
                except (OSError, EOFError, TimeoutError) as error:
                    self._note("lost", f"{kind.__name__}: {error!r}")
            else:
                keep = await self._ask(chooser, *connection)
            if not keep:
                await _close(connection[1])
                connection = None
        if connection:
            await _close(connection[1])

    def _note(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.examples.append(text)

    async def _ask(self, chooser: random.Random, reader: Any, writer: Any) -> bool:
        """One image as its own request."""
        index = chooser.randrange(len(self.known))
        began = time.perf_counter()
        try:
            writer.write(self.requests[index])
            code, headers, body = await asyncio.wait_for(_read(reader), 30)
        except (OSError, EOFError, TimeoutError) as error:
            self._note("lost", repr(error))
            return False
        self.seconds.append(time.perf_counter() - began)
        self.counts["ask"] += 1
        return self._judge(code, headers, body, [self.known[index].answer], [None])

    def _judge(self, code: int, headers: dict[str, str], body: bytes, answers: list[Any], names: list[Any]) -> bool:
        """Count what came; whether the connection may be used again."""
        self.codes[code] += 1
        if code in (429, 503):
            if "retry-after" not in headers:
                self._note("wrong", "no Retry-After")
        elif code != 200:
            self._note("wrong", f"{code} {body[:100]!r}")
        else:
            found = json.loads(body)["answers"]
            expected = [{"file": name} | answer for name, answer in zip(names, answers, strict=True)]
            if not self.exact:
                expected, found = ([(a["class"], a["is_known"]) for a in part] for part in (expected, found))
            if found != expected:
                self._note("wrong", f"{found} instead of {expected}")
        return headers.get("connection") != "close"

    def _expect(self, code: int, headers: dict[str, str], right: int) -> bool:
        self.codes[code] += 1
        if code not in (right, 429, 503):
            self._note("wrong", f"{code} instead of {right}")
        return headers.get("connection") != "close"

    # Faults. Each returns whether the connection may be used again.

    async def broken(self, chooser: random.Random, reader: Any, writer: Any) -> bool:
        """Something that is not an image, or is cut off."""
        data = chooser.choice(
            [b"no image", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, self.known[0].data[: len(self.known[0].data) // 2]]
        )
        writer.write(post(data))
        code, headers, _ = await _read(reader)
        return self._expect(code, headers, 422)

    async def oversized(self, chooser: random.Random, reader: Any, writer: Any) -> bool:
        """A body above the limit."""
        writer.write(post(b"x" * (MAX_BODY_MB * 1_100_000)))
        code, headers, _ = await _read(reader)
        return self._expect(code, headers, 413)

    async def slow(self, chooser: random.Random, reader: Any, writer: Any) -> bool:
        """A body in pieces, within the limit of time."""
        index = chooser.randrange(len(self.known))
        request = self.requests[index]
        for part in (request[:50], request[50:200], request[200:]):
            writer.write(part)
            await asyncio.sleep(0.1)
        code, headers, body = await _read(reader)
        if code == 408:  # on a busy machine it may have been too slow
            return self._expect(code, headers, 408)
        return self._judge(code, headers, body, [self.known[index].answer], [None])

    async def stalled(self, chooser: random.Random, reader: Any, writer: Any) -> bool:
        """A body that never ends."""
        writer.write(post(b"abc", length=1000))
        code, headers, _ = await _read(reader)
        self._expect(code, headers, 408)
        return False

    async def aborted(self, chooser: random.Random, reader: Any, writer: Any) -> bool:
        """A connection that is closed in the middle of a body, or before the answer."""
        request = chooser.choice(self.requests)
        writer.write(request[: chooser.choice([20, len(request) - 10, len(request)])])
        await writer.drain()
        writer.transport.abort()
        return False

    async def several(self, chooser: random.Random, reader: Any, writer: Any) -> bool:
        """Several images, one of them broken."""
        chosen = [chooser.choice(self.known) for _ in range(chooser.randint(2, 6))]
        at = chooser.randrange(len(chosen))
        images = [(f"{i}.png", b"bad" if i == at else case.data) for i, case in enumerate(chosen)]
        answers = [
            {"error": "is not an image in a supported format"} if i == at else case.answer
            for i, case in enumerate(chosen)
        ]
        writer.write(form(images))
        return self._judge(*await _read(reader), answers, [name for name, _ in images])

    async def bad_form(self, chooser: random.Random, reader: Any, writer: Any) -> bool:
        """A form without its end."""
        writer.write(post(b"--b\r\n\r\nabc", "multipart/form-data; boundary=b"))
        code, headers, _ = await _read(reader)
        return self._expect(code, headers, 400)


FAULTS = [Load.broken, Load.oversized, Load.slow, Load.stalled, Load.aborted, Load.several, Load.bad_form]


async def _close(writer: Any) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _read(reader: Any) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head[1:])}
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


def mixed(
    model: str, connections: int, options: list[str], seconds: float = math.inf, requests: float = math.inf,
    share: float = 0.05,
) -> dict[str, Any]:  # fmt: skip
    """Mixed load for some time, or so many requests; then a signal to end amid more load, and a start after a kill."""
    known = cases(model, 200)
    limits = ["--body-timeout", BODY_TIMEOUT, "--max-body-mb", MAX_BODY_MB, *options]
    with serve(model, *limits) as server:
        warm = Load(server.port, known, share).run(connections, 0.2 * seconds, 0.2 * requests)
        before = server.memory
        report = Load(server.port, known, share).run(connections, seconds, requests)
        report |= {"wrong": report["wrong"] + warm["wrong"], "lost": report["lost"] + warm["lost"]}
        after = server.memory
        report |= {"memory_mb": [before, after], "memory_growth_percent": round(100 * (after / before - 1), 1)}
        report["drain"] = drain(server, known, connections)
    with serve(model, *limits) as server:
        Load(server.port, known).run(connections, requests=100)
        server.process.kill()
        server.process.wait()
        with serve(model, *limits, "--port", server.port) as again:
            report["ready_after_kill_seconds"] = round(again.start_seconds, 2)
    return report


def drain(server: Server, known: list[Case], connections: int) -> dict[str, Any]:
    """SIGTERM while each connection waits for an answer."""

    async def waiting() -> tuple[list[Any], float]:
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(connections)]
        for i, (_, writer) in enumerate(opened):
            writer.write(post(known[i % len(known)].data))
        flight = int(await asyncio.to_thread(request_metric, server.port, "moon_requests_in_flight"))
        began = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        reading = (asyncio.wait_for(_read(reader), 60) for reader, _ in opened)
        answers = await asyncio.gather(*reading, return_exceptions=True)
        await asyncio.to_thread(server.process.wait, 60)
        for _, writer in opened:
            await _close(writer)
        return [*answers, flight], time.perf_counter() - began

    (*answers, flight), seconds = asyncio.run(waiting())
    right = sum(not isinstance(a, BaseException) and (a[0] == 503 or json.loads(a[2]).get("answers") == [
        {"file": None} | known[i % len(known)].answer]) for i, a in enumerate(answers))  # fmt: skip
    return {"seconds": round(seconds, 2), "exit_code": server.process.returncode, "in_flight": flight,
            "asked": connections, "answered": right}  # fmt: skip


def request_metric(port: int, name: str) -> float:
    """The value of a metric without labels."""
    text = request_once(port, get("/metrics"))[2].decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def compare(model: str, onnx: str, seconds: float, options: list[str], rounds: int) -> list[dict[str, Any]]:
    """Our server beside a plain one with ONNX Runtime, in turns, with the same images."""
    known = cases(model, 200, is_prepared=True)
    records = []
    plain = Path(__file__).with_name("onnx_server.py")
    with serve(model, *options) as own, serving(plain, onnx) as other:
        for connections in (1, 8, 64):
            for turn in range(rounds):
                for name, server in (("moon", own), ("onnxruntime", other)):
                    load = Load(server.port, known, exact=name == "moon")
                    load.run(connections, 1)  # warm up
                    load.seconds.clear()
                    before = server.cpu_seconds
                    report = load.run(connections, seconds / rounds)
                    used = 1000 * (server.cpu_seconds - before) / max(1, len(load.seconds))
                    records.append({"server": name, "turn": turn, "cpu_ms_per_answer": round(used, 2),
                                    "memory_mb": server.memory} | report)  # fmt: skip
    return records


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Load on a server, with every answer checked.")
    parser.add_argument("model")
    parser.add_argument("--onnx", help="the same network for ONNX Runtime: compare instead")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=2, help="turns of each server")
    arguments, options = parser.parse_known_args()
    if arguments.onnx:
        result: Any = compare(arguments.model, arguments.onnx, arguments.seconds, options, arguments.rounds)
    else:
        result = mixed(arguments.model, arguments.connections, options, arguments.seconds)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
