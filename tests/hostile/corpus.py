"""Write hostile files in every format that moon reads, read them, and count what goes wrong.

    python tests/hostile/corpus.py                 all files; the exit code is 1 if anything goes wrong
    python tests/hostile/corpus.py --sample 24     some of them, spread over the formats
    python tests/hostile/corpus.py --write FOLDER  only write the files, to try other programs on them

Each file is read in a process of its own, with 2 GiB of address space and 10 seconds of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import archive_cases
import array_cases
import image_cases
import moon_cases
import text_cases
from cases import Case

SOURCE = str(Path(__file__).parents[2] / "src")
GIVEN = os.environ.get("PYTHONPATH", "")  # for a moon-runtime that is not installed
PATHS = os.pathsep.join([SOURCE, *(os.path.abspath(path) for path in GIVEN.split(os.pathsep) if path)])
SECONDS = 60  # of waiting, for example for a named pipe; reading.py limits processor time to 10 seconds
MEMORY_KIB = 10**6  # of resident memory: 1 GB
MODULES = (image_cases, array_cases, archive_cases, text_cases, moon_cases)  # each with `cases() -> list[Case]`
PROBLEMS = ("executed", "read outside", "crashes", "over 1 GB", "hangs over 10 s", "unforeseen errors", "wrong answers")


def all_cases() -> list[Case]:
    """Every case; names are unique."""
    cases = [case for module in MODULES for case in module.cases()]
    assert len({case.name for case in cases}) == len(cases), "two cases have the same name"
    return cases


def write(case: Case, place: Path) -> tuple[Path, str]:
    """Write a case; return its folder and the path to read in it."""
    folder, outside = place / "root", place / "outside"
    folder.mkdir(parents=True)
    outside.mkdir()
    image_cases.picture().save(outside / "secret.png")
    (outside / "secret").write_bytes(b"secret")
    return folder, case.write(folder)


def problems_of(case: Case, place: Path) -> list[tuple[str, str]]:
    """Read a case in another process; return (kind, details) of each problem."""
    folder, path = write(case, place)
    script = Path(__file__).with_name("reading.py")
    environment = {key: value for key, value in os.environ.items() if key != "MOON_MAX_BYTES"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": PATHS} | case.environment
    with (place / "answer").open("w+b") as answer:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), case.reader, str(folder), path],
            stdout=answer, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder, env=environment,
        )  # fmt: skip
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            process.kill()

        timer = threading.Timer(SECONDS, kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        answer.seek(0)
        text = answer.read().decode(errors="replace").strip()
    if killed.is_set() or process.returncode == -signal.SIGXCPU:
        return [("hangs over 10 s", "")]
    if process.returncode:
        what = signal.Signals(-process.returncode).name if process.returncode < 0 else text[-500:]
        return [("crashes", what)]
    found = json.loads(text.splitlines()[-1])
    problems = [("executed", event) for event in found["started"]]
    problems += [("executed", str(canary)) for canary in folder.rglob("executed*")]
    problems += [("read outside", opened) for opened in found["outside"]]
    if usage.ru_maxrss > MEMORY_KIB:
        problems.append(("over 1 GB", f"{usage.ru_maxrss:,} KiB"))
    if "unforeseen" in found:
        problems.append(("unforeseen errors", found["unforeseen"]))
    elif not _is_right(case, found):
        expected = f"refused with '{case.refused}'" if case.refused is not None else f"accepted with {case.value}"
        problems.append(("wrong answers", f"expected: {expected}; found: {found}"))
    return problems


def _is_right(case: Case, found: dict[str, str]) -> bool:
    if "refused" in found:
        return case.either or (case.refused is not None and case.refused in found["refused"])
    return (case.either or case.refused is None) and case.value in (None, found["value"])


def main() -> int:
    """Run the corpus; return 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="read about N of the files")
    parser.add_argument("--only", metavar="TEXT", help="read the files with this text in their names")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="only write the files")
    arguments = parser.parse_args()
    cases = [case for case in all_cases() if (arguments.only or "") in case.name]
    if find_spec("moon_runtime") is None:
        print("packed networks are only read by moon itself, because moon-runtime is not installed")
        cases = [case for case in cases if case.reader != "packed network"]
    if arguments.sample:
        cases = cases[:: max(1, len(cases) // arguments.sample)]
    if arguments.write:
        for number, case in enumerate(cases):
            print(*write(case, arguments.write / f"{number:03d}"), case.name, sep="\t")
        return 0
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="moon-hostile-") as folder, ThreadPoolExecutor(2) as pool:
        places = [Path(folder) / f"{number:03d}" for number in range(len(cases))]
        for case, problems in zip(cases, pool.map(problems_of, cases, places), strict=True):
            for kind, details in problems:
                counts[kind] += 1
                print(f"{case.name}: {kind}: {details}")
    print(f"{len(cases)} hostile files: {', '.join(f'{counts[kind]} {kind}' for kind in PROBLEMS)}")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main())
