"""A sample of the hostile files. `python tests/hostile/corpus.py` reads all of them."""

import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).with_name("corpus.py")


@pytest.mark.slow
def test_hostile_files_do_no_harm(run_group):
    done = run_group([sys.executable, str(CORPUS), "--sample", "24"], timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    count, _, problems = done.stdout.strip().splitlines()[-1].partition(" hostile files: ")
    assert int(count) >= 24
    assert problems == (
        "0 executed, 0 read outside, 0 crashes, 0 over 1 GB, 0 hangs over 10 s, 0 unforeseen errors, 0 wrong answers"
    )


@pytest.mark.slow
def test_changed_files_are_accepted_or_refused(run_group):
    """A small sample; `python tests/hostile/fuzz.py --count 100000` reads many."""
    fuzz = CORPUS.with_name("fuzz.py")
    done = run_group([sys.executable, str(fuzz), "--count", "1000"], timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1000 changed files of ")
