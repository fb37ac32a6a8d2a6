"""The page about runs: what is on it, and that it works in a browser without loading anything from outside."""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from moon.data import BENCHMARKS
from moon.recipe import make_recipe
from moon.report.classes import classes_section
from moon.report.page import page, write_report
from moon.results.collect import collect
from moon.run.images import BenchmarkImages
from moon.run.train import train_run
from moon.score.score import score_run

BENCHMARK = BENCHMARKS["mnist"]
CHROMIUM = shutil.which("chromium")


def make(objective, seed=0, sparsity=0.9, **settings):
    return make_recipe(BENCHMARK, objective, net="lenet-norm", sparsity=sparsity, seed=seed, epochs=10, **settings)


@pytest.fixture(scope="module")
def several(tmp_path_factory, fabricate):
    """Two methods with three seeds each; MOON is better on unknown inputs. Tests must not change the folder."""
    folder = tmp_path_factory.mktemp("several")
    for seed in range(3):
        fabricate(folder, make("cross-entropy", seed), auroc=0.8 + 0.001 * seed, accuracy=0.9)
        fabricate(folder, make("moon", seed), auroc=0.9 + 0.002 * seed, accuracy=0.9 + 0.001 * seed)
    return folder


@pytest.fixture(scope="module")
def html(several):
    """The page about these runs."""
    return page(*collect([several]), detector="msp")


class Addresses(HTMLParser):
    """Collects every address that a page would load, its ids and its links."""

    def __init__(self):
        super().__init__()
        self.loaded, self.ids, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.ids += [named["id"]] if "id" in named else []
        for key in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            if key in named and not named[key].startswith(("data:", "#")):
                self.loaded.append(named[key])
        if tag == "a":
            self.links.append(named["href"])


@pytest.mark.slow
def test_the_page_has_all_sections_and_loads_nothing(html):
    text = html
    parser = Addresses()
    parser.feed(text)
    assert parser.loaded == []
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert all(link.removeprefix("#") in parser.ids for link in parser.links)
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == ["Methods", "Detectors", "Comparisons", "Scores", "Calibration", "Classes", "Training", "Masks",
                        "Examples", "Recipes"]  # fmt: skip
    assert "6 runs of 2 methods on mnist" in text
    assert "AUROC 90.2%" in text  # the best, in the sentence at the top
    assert text.count("<details>") == 6
    assert text.count("data:image/png;base64,") == 2 * 4 * 3
    assert "Images scored (count, SHA-256): mnist: known 50" in text


def test_comparisons_are_tested(html):
    table = html[html.index("<h2>Comparisons") : html.index("<h2>Scores")]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)[1:]]
    verdicts = {row[3]: row[-1] for row in rows}
    assert verdicts == {
        "accuracy %": "no evidence",
        "ECE": "no evidence",
        "msp near AUROC %": "better",
        "msp far AUROC %": "better",
    }
    assert rows[0][:3] == ["moon", "cross-entropy", "training"]


def test_classes_are_shown_by_name(tmp_path, fabricate):
    folder = fabricate(tmp_path, make("moon"))
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    (folder / "data.json").write_text(json.dumps({"preparation": {}, "known": {"classes": names}}))
    labels = np.arange(50) % 10
    np.savez(folder / "known.npz", labels=labels, prediction=np.where(labels == 3, 8, labels), confidence=np.ones(50))
    ((run,), _) = collect([folder])
    shown = classes_section({"moon": [run]})
    assert [cell.text for cell in shown["table"].rows[0]] == ["three", "0.0, 100.0% as eight"]
    assert {row[1].text for row in shown["table"].rows[1:]} == {"100.0"}
    assert (len(shown["table"].rows), shown["omitted"]) == (10, 0)
    html = page([run])
    assert "<h2>Classes" in html
    assert "100.0% as eight" in html


@pytest.mark.slow
def test_one_run_makes_no_claim(tmp_path, fabricate):
    folder = fabricate(tmp_path, make("moon"))
    text = page(*collect([folder]))
    assert "no claim" in text
    assert "Comparisons" not in text
    fabricate(tmp_path, make("cross-entropy"))
    assert "1 seed: no claim" in page(*collect([tmp_path]))


@pytest.mark.slow
def test_methods_that_differ_in_one_setting_are_compared_and_all_are_drawn(tmp_path, fabricate):
    for objective in ("cross-entropy", "moon"):
        for sparsity in (0.8, 0.9, 0.95, 0.99):
            for seed in range(2):
                fabricate(tmp_path, make(objective, seed, sparsity=sparsity))

    def compared(text):
        table = text[text.index("<h2>Comparisons") : text.index("<h2>Scores")]
        rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)[1:]]
        return [tuple(row[:3]) for row in rows if row[3] == "ECE"]

    text = page(*collect([tmp_path]))
    assert text.count("data:image/png;base64,") == 8 * 4 * 3
    pairs = compared(text)
    assert len(pairs) == len({frozenset(pair[:2]) for pair in pairs}) == 4 + 2 * 6
    assert ("moon 99%", "cross-entropy 99%", "training") in pairs
    assert all(a.split()[0] == b.split()[0] for a, b, settings in pairs if settings == "sparsity")
    text = page(*collect([tmp_path]), against="moon 95%")
    assert len(compared(text)) == 7
    assert {pair[1] for pair in compared(text)} == {"moon 95%"}
    assert ("cross-entropy 99%", "moon 95%", "sparsity, training") in compared(text)
    with pytest.raises(ValueError, match="there is no method 'moon 98%' to compare with"):
        page(*collect([tmp_path]), against="moon 98%")


def test_methods_that_differ_in_more_than_one_setting_are_not_compared(tmp_path, fabricate):
    fabricate(tmp_path, make("cross-entropy", sparsity=0.8))
    fabricate(tmp_path, make("moon", sparsity=0.9))
    assert "Nothing is compared: no two methods" in page(*collect([tmp_path]))


@pytest.mark.slow
def test_figures_are_also_written_as_pdf(several, tmp_path):
    write_report([several], tmp_path / "page.html", figures=tmp_path / "figures")
    found = {path.stem: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert sorted(found) == ["calibration", "histograms", "masks", "roc", "training"]
    assert all(data.startswith(b"%PDF") and b"CreationDate" not in data for data in found.values())


def test_no_run_is_counted_twice(several):
    some = next(several.iterdir())
    runs, left_out = collect([several, some])
    assert len(runs) == 6
    assert left_out == [f"{some}: already included"]


@pytest.mark.slow
def test_benchmarks_are_not_compared(several, tmp_path, fabricate):
    for seed in range(3):
        other = make_recipe(BENCHMARKS["digits"], "moon", seed=seed, sparsity=0.9, epochs=10)
        fabricate(tmp_path, other, auroc=0.5, accuracy=0.5, near=["letters"], far=["photos"])
    text = page(*collect([tmp_path, several]))
    assert "9 runs of 3 methods on digits and mnist" in text
    assert '<button type="button">letters</button>' in text  # columns for the sets of all benchmarks
    table = text[text.index("<h2>Comparisons") : text.index("<h2>Scores")]
    assert "digits" not in table
    assert 'class="best"' not in text[: text.index("<h2>Comparisons")]


@pytest.mark.slow
def test_names_are_escaped(tmp_path, fabricate):
    fabricate(tmp_path, make("moon"), near=["<script>alert(1)</script>"])
    text = page(*collect([tmp_path]), "a < b & c")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;</button>" in text
    assert "<title>a &lt; b &amp; c</title>" in text


def test_collect_reports_what_it_leaves_out(tmp_path, fabricate):
    with pytest.raises(ValueError, match="is not a folder"):
        collect([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="contains no run"):
        collect([tmp_path / "empty"])
    folder = fabricate(tmp_path / "runs", make("moon"))
    other = fabricate(tmp_path / "runs", make("mixup"))
    (folder / "scores.json").unlink()
    runs, left_out = collect([tmp_path / "runs"])
    assert [run.folder for run in runs] == [other]
    assert "not scored; run `moon score" in left_out[0]
    (other / "result.json").unlink()
    with pytest.raises(ValueError, match="none of the runs is finished and scored"):
        collect([tmp_path / "runs"])


@pytest.mark.parametrize("name", ["result.json", "recipe.json", "scores.json", "log.jsonl", "data.json"])
@pytest.mark.parametrize("content", ["[]", "{"], ids=["list", "cut"])
def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path, fabricate, name, content):
    damaged = fabricate(tmp_path, make("moon"))
    other = fabricate(tmp_path, make("mixup"))
    (damaged / name).write_text(content + "\n\n")
    runs, left_out = collect([tmp_path])
    assert [run.folder for run in runs] == [other]
    assert len(left_out) == 1
    assert str(damaged / name) in left_out[0]


@pytest.mark.slow
def test_a_trained_and_scored_run(data_root, tmp_path):
    images = BenchmarkImages.open(data_root, "mnist")
    train_run(make("cross-entropy", delta_t_steps=2), tmp_path / "run", images)
    result, scores = score_run(tmp_path / "run", images, ["msp", "ebo"])
    with np.load(tmp_path / "run" / "known.npz") as known:
        assert float((known["prediction"] == known["labels"]).mean()) == pytest.approx(result["known"]["accuracy"])
        assert np.allclose(known["confidence"], scores["msp"]["known"])
        assert known["first_component"].std() > 0
        correct = known["prediction"] == known["labels"]
    with np.load(tmp_path / "run" / "examples.npz") as found:
        best = np.argsort(scores["msp"]["dtd"], kind="stable")
        assert np.array_equal(found["right/dtd"], images.unknown["dtd"].images[best[:6]])
        assert np.array_equal(found["wrong/dtd"], images.unknown["dtd"].images[best[::-1][:6]])
        order = np.argsort(scores["msp"]["known"], kind="stable")[::-1]
        assert np.array_equal(found["right/known"], images.splits["test"].images[order[correct[order]][:6]])
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def browse(html, tmp_path, script, size="1200,900"):
    """The page's DOM after a script ran in a browser; also takes a screenshot."""
    if CHROMIUM is None:
        if os.environ.get("MOON_NEEDS_BROWSER"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    target = tmp_path / "page.html"
    target.write_text(html.replace("</body>", f"<script>{script}</script></body>"))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--hide-scrollbars", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--window-size={size}", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000",
        f"--screenshot={tmp_path / 'page.png'}", "--dump-dom", target.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True).stdout


@pytest.mark.slow
def test_tables_sort_in_a_browser_and_nothing_is_loaded(html, tmp_path):
    script = """
    const table = document.querySelector("#detectors table"), names = () => [...table.tBodies[0].rows]
      .map(row => row.cells[2].dataset.value);
    const heading = table.tHead.rows[0].cells[2].querySelector("button"), seen = [names().join()];
    heading.click(); seen.push(names().join()); heading.click(); seen.push(names().join());
    const wide = document.documentElement.scrollWidth > window.innerWidth;
    const images = [...document.images].every(image => image.complete && image.naturalWidth > 0);
    const loaded = performance.getEntriesByType("resource").map(entry => entry.name);
    document.body.dataset.seen = JSON.stringify({seen, wide, images, sort: table.tHead.rows[0].cells[2].ariaSort,
      loaded: loaded.filter(name => !name.startsWith("data:"))});
    """
    for size in ("1200,900", "390,844"):  # a desktop and a phone
        dom = browse(html, tmp_path, script, size)
        found = re.search(r'data-seen="([^"]*)"', dom)
        assert found, dom[-2000:]
        seen = json.loads(unescape(found[1]))
        values = [[float(v) for v in text.split(",")] for text in seen["seen"]]
        assert values[1] == sorted(values[0], reverse=True)
        assert values[2] == sorted(values[0])
        assert seen["sort"] == "ascending"
        assert seen["loaded"] == []
        assert seen["images"]
        assert not seen["wide"]  # the page is not wider than the window


@pytest.mark.slow
def test_the_browser_blocks_outside_addresses(html, tmp_path):
    html = html.replace("<h1>", '<img src="https://example.org/x.png"><h1>', 1)
    script = """
    document.addEventListener("securitypolicyviolation", e => { document.body.dataset.refused = e.blockedURI; });
    """
    html = html.replace("<body>", f"<body><script>{script}</script>", 1)
    assert "https://example.org/x.png" in browse(html, tmp_path, "").split("data-refused=")[1][:60]
