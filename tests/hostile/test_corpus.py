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
@pytest.mark.parametrize(
    ("read", "problem"),
    [
        ("os.kill(os.getpid(), 11)", "1 crashes"),
        ("while True: pass", "1 hangs over 10 s"),
        ("os.system('true')", "1 executed"),
        ("open('/etc/passwd').close()", "1 read outside"),
        ("bytearray(b'x') * 1_200_000_000", "1 over 1 GB"),
        ("raise KeyError('x')", "1 unforeseen errors"),
        ("return 'other'", "1 wrong answers"),
    ],
)
def test_the_corpus_notices_harm(run_group, tmp_path, read, problem):
    """A reader that does harm is reported, so that the zeros above mean something."""
    for path in CORPUS.parent.glob("*.py"):
        text = path.read_text(encoding="utf-8").replace("__file__).parents[2]", f"{str(CORPUS.parents[2])!r})")
        if path.name == "reading.py":
            text = text.replace('    if reader == "image":\n', f"    {read}\n" + '    if reader == "image":\n', 1)
            if "hangs" in problem:
                assert text.count("\nSECONDS = 10 ") == 1
                text = text.replace("\nSECONDS = 10 ", "\nSECONDS = 4 ")  # of processor time
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    done = run_group([sys.executable, str(tmp_path / "corpus.py"), "--only", "image: ordinary PNG"], timeout=60)
    assert done.returncode == 1
    assert problem in done.stdout.splitlines()[-1], done.stdout


@pytest.mark.slow
def test_changed_files_are_accepted_or_refused(run_group):
    """A small sample; `python tests/hostile/fuzz.py --count 100000` reads many."""
    fuzz = CORPUS.with_name("fuzz.py")
    done = run_group([sys.executable, str(fuzz), "--count", "1000"], timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1000 changed files of ")


HARM = {
    "os.kill(os.getpid(), signal.SIGSEGV)": "crashes: SIGSEGV",
    "raise KeyError(1)": "unforeseen errors: KeyError: 1",
    "os.system('true')": "executed: os.system",
    "open('/etc/passwd').close()": "read outside: /etc/passwd",
    "bytearray(b'x') * 1_200_000_000": "over 1 GB",
}
# Imports once what the fuzzer needs, and forks a process for each harm.
NOTICE = """
import os, signal, sys
folder, *harms = sys.argv[1:]
sys.path.insert(0, folder)
import fuzz, moon.run.log

for number, harm in enumerate(harms):
    if (pid := os.fork()) == 0:
        file = os.open(f"{number}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        exec(f"def read(seed, root):\\n    if seed.name == 'log: ordinary log.jsonl': {harm}\\nfuzz.read = read")
        sys.exit(fuzz.main(["--count", "4", "--only", "log"]))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.slow
def test_the_fuzzer_notices_harm(run_group, tmp_path):
    done = run_group([sys.executable, "-c", NOTICE, str(CORPUS.parent), *HARM], cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["1"] * len(HARM)
    for number, problem in enumerate(HARM.values()):
        output = (tmp_path / f"{number}.txt").read_text()
        assert f"0 (log: ordinary log.jsonl): {problem}" in output
        assert "4 changed files of" in output
