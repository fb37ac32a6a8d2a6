import subprocess
import sys

import moon

NAMES = """
open_head look read Evidence Moon moon_loss AutoWeight CrossEntropy Dense Static SET RigL DropSchedule uniform erk
WeightVote Msp Odin Energy Knn Klm MaxLogit Unknown auroc fpr_at_tpr aupr accuracy ece nll brier resnet18 resnet50 lenet
""".split()  # noqa: SIM905


def test_the_public_names():
    assert set(NAMES) <= set(moon.__all__)
    assert all(hasattr(moon, name) for name in moon.__all__)


def test_importing_moon_is_light():
    code = (
        "import time, torch; start = time.perf_counter(); import moon, sys; took = time.perf_counter() - start\n"
        "heavy = {'scipy', 'PIL', 'rich', 'matplotlib', 'sklearn', 'mlxtend', 'skimage'} & set(sys.modules)\n"
        "assert not heavy, heavy\nprint(took)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
    assert all(run.returncode == 0 for run in runs), runs[0].stderr
    assert min(float(run.stdout) for run in runs) < 0.3
