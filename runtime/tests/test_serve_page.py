"""The page of a server in a real browser: chosen, dropped and pasted images, the camera, a token, and drift."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("uvicorn")

from browser import CHROMIUM, Browser
from serving import Server, cases, image_bytes, post, request_once, serve

FILE = Path(__file__).parent / "kept" / "format1.moon"
KNOWN = cases(FILE, 30)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("MOON_NEEDS_BROWSER"), reason="chromium is not installed"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(FILE, "--max-body-mb", 0.2) as found:
        yield found


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    names = ["<b>one.png", "two.png", "three.png"]
    for name, case in zip(names, KNOWN, strict=False):
        (tmp_path / name).write_bytes(case.data)
    (tmp_path / "broken.png").write_bytes(b"no image")
    return [tmp_path / name for name in [*names, "broken.png"]]


def errors(browser: Browser) -> list[object]:
    """What the browser complains about: scripts that fail, and resources that it refuses to load."""
    found = [event["params"] for event in browser.events if event["method"] == "Runtime.exceptionThrown"]
    logged = [event["params"]["entry"] for event in browser.events if event["method"] == "Log.entryAdded"]
    return found + [entry for entry in logged if entry["source"] in ("security", "javascript", "violation")]


def loaded(browser: Browser) -> set[str]:
    return {
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
        and not event["params"]["request"]["url"].startswith(("data:", "blob:"))
    }


ANSWERED = "document.querySelectorAll('#results li').length === {} && !document.querySelector('.waiting')"
CARDS = """[...document.querySelectorAll('#results li')].map(card => ({
  name: card.querySelector('figcaption').textContent, verdict: card.querySelector('.verdict').textContent,
  kind: card.className, probability: card.querySelector('.probability').textContent,
  bars: card.querySelectorAll('rect').length, marks: card.querySelectorAll('.mark').length,
  image: card.querySelector('img')?.naturalWidth ?? 0}))"""


@pytest.mark.parametrize(("size", "is_dark"), [((1100, 800), False), ((360, 740), True)])
def test_chosen_images_are_answered(
    server: Server, files: list[Path], tmp_path: Path, size: tuple[int, int], is_dark: bool
) -> None:
    with Browser(tmp_path, size, is_dark) as browser:
        browser.open(server.url)
        browser.wait("document.getElementById('about').textContent.startsWith('This network knows 3 classes')")
        browser.choose("#files", *files)
        browser.wait(ANSWERED.format(4))
        browser.wait("[...document.images].every(image => image.complete)")
        assert [card["name"] for card in browser.run(CARDS)] == [path.name for path in files]
        cards = {card["name"]: card for card in browser.run(CARDS)}
        for path, case in zip(files[:3], KNOWN, strict=False):
            card = cards[path.name]  # also one that looks like HTML
            assert card["verdict"] == case.answer["verdict"]
            assert card["kind"] == ("known" if case.answer["is_known"] else "unknown")
            assert card["probability"] == f"{100 * case.answer['probability']:.1f}%"
            assert (card["bars"], card["marks"]) == (40, 1)
            assert card["image"] > 0
        assert cards["broken.png"]["kind"] == "failed"
        assert cards["broken.png"]["verdict"] == "is not an image in a supported format"
        assert browser.run("document.getElementById('status').getAttribute('aria-live')") == "polite"
        assert browser.run("document.getElementById('status').textContent")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert (background != "rgb(255, 255, 255)") == is_dark
        small = browser.run("""[...document.querySelectorAll('button, .button')].filter(
            e => e.checkVisibility() && e.getBoundingClientRect().height < 40).length""")
        assert small == 0  # for fingers
        assert {url.removeprefix(server.url) for url in loaded(browser)} == {
            "/", "/page.css", "/page.js", "/model", "/predict",
        }  # fmt: skip
        assert errors(browser) == []
        browser.run("document.getElementById('clear').click()")
        assert browser.run("document.querySelectorAll('#results li').length") == 0


def test_the_page_promises_what_its_file_says(server: Server, tmp_path: Path) -> None:
    about = "document.getElementById('about')"
    with Browser(tmp_path) as browser:
        browser.open(server.url)
        browser.wait(f"{about}.textContent.startsWith('This network knows')")
        assert browser.run(f"{about}.textContent").endswith("does not say how many other images it rejects.")
        for is_reliable in (True, False):
            found = {"verdict": "rejects 8% of 8 kinds of other images", "is_reliable": is_reliable}
            browser.run(f"model.rejection = {json.dumps(found)}; describe()")
            assert browser.run(f"{about}.textContent").endswith(" It rejects 8% of 8 kinds of other images.")
            assert browser.run(f"{about}.className === 'quiet bad'") is not is_reliable


def test_images_can_be_dropped_pasted_and_taken(server: Server, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(server.url)
        transfer = f"""(() => {{ const data = new DataTransfer();
            for (const name of ['x.png', 'y.png', 'z.png'])
              data.items.add(new File([new Uint8Array({list(KNOWN[0].data)})], name, {{type: 'image/png'}}));
            return data; }})()"""
        browser.run(f"window.dispatchEvent(new DragEvent('drop', {{dataTransfer: {transfer}, cancelable: true}}))")
        browser.run(f"window.dispatchEvent(new ClipboardEvent('paste', {{clipboardData: {transfer}}}))")
        browser.wait(ANSWERED.format(6))
        assert {card["verdict"] for card in browser.run(CARDS)} == {KNOWN[0].answer["verdict"]}
        assert [card["name"] for card in browser.run(CARDS)] == ["x.png", "y.png", "z.png"] * 2  # as they were dropped
        # With the keyboard: the file field, then the camera, whose dialog has the focus.
        for _ in range(2):
            browser.press("Tab", 9)
        assert browser.run("document.activeElement.id") == "camera"
        browser.press("Enter", 13)
        browser.wait("document.getElementById('viewer').open && document.getElementById('video').videoWidth > 0")
        browser.run("document.getElementById('shoot').click()")
        browser.wait(ANSWERED.format(7))
        assert browser.run(CARDS)[0]["name"] == "camera 1.png"
        assert browser.run(CARDS)[0]["kind"] in ("known", "unknown")
        browser.wait("document.getElementById('video').srcObject === null")  # the camera is off
        assert errors(browser) == []


def test_too_large_images_are_not_sent(server: Server, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    (tmp_path / "large.png").write_bytes(image_bytes(noise))
    with Browser(tmp_path) as browser:
        browser.open(server.url)
        browser.choose("#files", tmp_path / "large.png")
        browser.wait(ANSWERED.format(1))
        assert browser.run(CARDS)[0]["verdict"] == "larger than 200,000 bytes"


def test_a_token_is_asked_for_and_an_alarm_is_shown(tmp_path: Path, files: list[Path]) -> None:
    with serve(FILE, "--token", "s3cret") as server, Browser(tmp_path) as browser:
        browser.open(server.url)
        browser.wait("!document.getElementById('token-form').hidden")
        enter = "document.getElementById('token').value = '{}'; document.getElementById('token-form').requestSubmit()"
        browser.run(enter.format("wrong"))
        browser.wait("document.getElementById('token-error').textContent === 'This token is not the right one.'")
        browser.run(enter.format("s3cret"))
        browser.wait("document.getElementById('token-form').hidden")
        assert browser.run("document.getElementById('drift').hidden")
        lowest = min(KNOWN, key=lambda case: case.answer["score"])
        request = post(lowest.data, "image/png", "authorization: Bearer s3cret")
        while b'"drift_alarm":false' in request_once(server.port, request)[2]:
            pass
        browser.choose("#files", files[1])
        browser.wait(ANSWERED.format(1))
        assert not browser.run("document.getElementById('drift').hidden")
        assert browser.run("document.getElementById('drift').getAttribute('role')") == "alert"
