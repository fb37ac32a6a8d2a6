"""Wheels contain what they need, and work when they are installed into an empty environment."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("dist")
    sources = folder / "sources"
    ignored = shutil.ignore_patterns("build", "*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", sources / "src", ignore=ignored)
    shutil.copytree(ROOT / "runtime", sources / "runtime", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, sources)
    setup = sources / "runtime" / "setup.py"
    text = setup.read_text()
    assert text.count('"-O3"') == 1
    setup.write_text(text.replace('"-O3"', '"-O0"'))  # what is tested are the files; optimising takes most of the time
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder)]
    for source in (sources, sources / "runtime"):
        done = subprocess.run([*build, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return sorted(folder.glob("*.whl"))


@pytest.mark.slow
def test_wheels_have_the_files_of_the_packages(wheels):
    runtime, moon = (set(ZipFile(path).namelist()) for path in wheels)
    for package, names, source in (("moon", moon, ROOT / "src"), ("moon_runtime", runtime, ROOT / "runtime")):
        kept = subprocess.run(["git", "ls-files", package], cwd=source, capture_output=True, text=True).stdout.split()
        expected = kept or [str(path.relative_to(source)) for path in (source / package).rglob("*.py")]
        assert len(expected) > 5
        assert set(expected) <= names, set(expected) - names
        assert f"{package}/py.typed" in names
    assert any(name.startswith("moon_runtime/_core") for name in runtime)


@pytest.mark.slow
def test_installed_wheels_work(wheels, tmp_path):
    """Their dependencies are those of this environment: what is tested is that the files are complete."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = Path(
        subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    )
    for wheel in wheels:
        ZipFile(wheel).extractall(site)
    packed = ROOT / "runtime" / "tests" / "kept" / "format1.moon"
    script = (
        "import moon, moon_runtime, sys\n"
        f"assert moon.__file__.startswith({str(site)!r}) and moon_runtime.__file__.startswith({str(site)!r})\n"
        f"print(moon_runtime.load({str(packed)!r}).classes)\n"
        "from moon.cli.main import main\nmain(['--version'])\n"
    )
    # This environment's packages come last, so that an editable installation of moon is not found first.
    script = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n{script}"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "moon 0." in done.stdout
