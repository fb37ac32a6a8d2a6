"""The tools of tests/torture: each finishes without findings on a few runs, and finds an error that is put there.

They fork, which a process with the threads of earlier tests must not, so they are tried in a new process. It imports
what they need and forks a process for each of them.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

KILL = """
import os, random, signal
from pathlib import Path
from tests.torture import common, kill
from tests.torture.workers import Report

kill.NEW = ["train, new process"]
assert kill.main(["--count", "3", "--jobs", "2", "--summary", "kill.json"]) == 0
assert common.json.loads(Path("kill.json").read_text())["counts"]["kills"] >= 3

def forgetful(argv, folder):  # what it writes depends on whether it was killed before
    def run():
        begun = (folder / "tiny").exists()
        (folder / "tiny").mkdir(exist_ok=True)
        (folder / "tiny" / "log.jsonl").write_text('{"epoch": 0}\\n' if begun else '{"epoch": 1}\\n')
        if not begun:
            signal.pause()  # until it is killed
        os._exit(0)
    return common.fork(argv, folder, run)

class AtFirstChange(random.Random):
    random, randint = lambda self: 0.9, lambda self, low, high: 1

command = kill.Command("forgetful", ["train"], forgetful, expected={"tiny/log.jsonl": [{"epoch": 1}]})
report = Report("kill")
kill.trial(command, Path.cwd(), Path.cwd() / "trial", AtFirstChange(0), report)
assert report.findings == ["different: moon forgetful, all killed at change 1: tiny/log.jsonl"], report.findings
"""

CRASH = """
from pathlib import Path
import moon.files, moon.run.train
from tests.torture import common, crash
from tests.torture.workers import Report

assert crash.main(["--count", "3", "--keep", "work"]) == 0

report = Report("crash")
expected = common.contents(Path("work", "train done"))
crash.trial(common.TRAIN, None, expected, "fsync tiny/log.jsonl #3", "power", Path.cwd() / "trial", report)
assert report.counts["identical"] == 1, report.findings  # synced lines survive

moon.run.train.write_record = lambda path, value: path.write_text(moon.files.json.dumps(value))  # not atomic
report = Report("crash")
crash.trial(common.TRAIN, None, expected, "write tiny/result.json #1", "torn", Path.cwd() / "trial", report)
assert [text.partition(":")[0] for text in report.findings] == ["lost"], report.findings
"""

DAMAGE = """
import random
from pathlib import Path
import moon.run.folder
from tests.torture import common, damage
from tests.torture.workers import Report

folder = Path.cwd()
common.os.environ["MOON_DATA"] = str(common.make_data(folder / "data"))
common.import_everything()
report = Report("damage")
found = damage.states(folder, report)
damage.states = lambda folder, report: found
assert damage.main(["--count", "2", "--keep", "."]) == 0
packing = found[1]
again = packing, "tiny/model.safetensors", "swapped", folder / "trial", random.Random(0), report
damage.trial(*again)
assert report.counts["refused"] == 1 and not report.findings, report

moon.run.folder.check_model = lambda *_: None
damage.trial(*again)
assert [text.partition(":")[0] for text in report.findings] == ["silent"], report.findings
"""

SERVE = """
import random, shutil
from pathlib import Path
from tests.torture import common, phases, serve
from tests.torture.workers import Report

folder = Path.cwd()
common.os.environ["MOON_DATA"] = str(common.make_data(folder / "data"))
common.import_everything()
phases.install()
(folder / "pack done").mkdir()
shutil.copy(Path(ROOT, "runtime", "tests", "kept", "format1.moon"), folder / "pack done" / serve.FILE)
server = serve.undisturbed(serve.Server("serve", is_forked=True), folder)

def tried(moment):
    serve.MOMENTS, report = [moment], Report("kill")
    serve.trial(server, folder, folder / "trial", serve.free_port(), random.Random(2), report)
    return report

for moment in serve.MOMENTS:
    report = tried(moment)
    assert report.counts["identical"] == 1 and not report.findings, report
    assert report.counts["kills"] or moment == "draining", report  # a server may end before it is killed

start = serve.Server.start
def untidy(self, place, port):
    (place / "temporary" / "left").touch()
    return start(self, place, port)
serve.Server.start = untidy
assert "temporary/left (new) changed" in tried("start").findings[0]
serve.Server.start = start

server.expected["1"] = 200, {"answers": []}
assert "a new one answers differently to request 1" in tried("start").findings[0]

clients = serve.Clients.__new__(serve.Clients)  # without connections
clients.server, clients.wrong = server, []
clients._check((200, {"answers": [], "drift_alarm": True}), 1, is_stopping=False)
clients._check((503, {"error": "stopping"}), 1, is_stopping=True)
assert clients.wrong == []
clients._check((503, {"error": "stopping"}), 1, is_stopping=False)
clients._check((200, {"answers": [1]}), 1, is_stopping=True)
assert len(clients.wrong) == 2

serve.FILE = "missing.moon"
assert tried("start").findings[0].startswith("lost: ")
"""


START = """
import json, os, sys
ROOT, scripts = json.load(sys.stdin)
sys.path.insert(0, ROOT)
from tests.torture import common

common.import_everything()
codes = {}
for name, script in scripts.items():
    if (pid := os.fork()) == 0:
        os.mkdir(name)
        os.chdir(name)
        file = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        exec(script, {"ROOT": ROOT})
        sys.exit()
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(codes))
"""


@pytest.mark.slow
def test_tools_pass_what_is_right_and_find_what_is_wrong(run_group, tmp_path):
    scripts = {"kill": KILL, "crash": CRASH, "damage": DAMAGE, "serve": SERVE}
    if missing := [
        name for name in ("moon_runtime", "starlette", "uvicorn", "python_multipart") if not find_spec(name)
    ]:
        del scripts["serve"]
    text = json.dumps([str(ROOT), scripts])
    done = run_group([sys.executable, "-c", START], cwd=tmp_path, text=text, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    outputs = {name: (tmp_path / name / "output.txt").read_text() for name in scripts}
    assert codes == dict.fromkeys(scripts, 0), [text for name, text in outputs.items() if codes[name] != 0]
    if missing:
        pytest.skip(f"all tools but serve, which needs {', '.join(missing)}")


def test_a_timeout_ends_forked_processes(run_group):
    reading, writing = os.pipe()
    script = f"import os, time; os.fork() or (time.sleep(30), os.write({writing}, b'still there')); os.wait()"
    with open(reading, "rb") as file:
        with pytest.raises(subprocess.TimeoutExpired):
            run_group([sys.executable, "-c", script], timeout=2, pass_fds=[writing])
        os.close(writing)
        assert file.read() == b""  # at its end when nobody is left who could write
