"""The page in a real browser: steps move, the numbers are those of the document, nothing is missing offline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netreduce.viewer.page import render
from netreduce.viewer.walks import record_walks

pytestmark = pytest.mark.live
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have Chromium: apt-get install chromium")
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("walk") / "walk.html"
    path.write_text(render(record_walks()), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Any, exported: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(exported.as_uri())
    yield page
    assert problems == []
    context.close()


def test_an_exported_file_opens_from_disk_and_steps_forth_and_back(page: Any) -> None:
    assert page.inner_text("#count") == "1 / 11"
    page.click("#next")
    assert page.inner_text("#title") == "Queue pairs"
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#title") == "Before"
    assert page.is_disabled("#back")


def test_the_final_chunks_of_the_ring_read_1111(page: Any) -> None:
    page.keyboard.press("End")
    assert page.locator(".chunk").all_inner_texts() == ["1111"] * 16
    assert page.locator(".chunk.done").count() == 16


def test_the_sum_shown_is_the_sum_of_the_payloads_shown(page: Any) -> None:
    page.select_option("#walk", "1")
    while "sum and splice" not in page.inner_text("#title"):
        page.keyboard.press("ArrowRight")
    row = page.locator("table[aria-label^=Aggregator] tbody tr").first.locator("td").all_inner_texts()
    assert sum(map(int, row[3:6])) == int(row[6])
    assert page.locator(".frame.sum").first.inner_text().endswith(row[6])


def test_a_frame_shows_its_header_fields_when_chosen(page: Any, exported: Path) -> None:
    page.goto(f"{exported.as_uri()}#walk=journey&step=2")
    page.reload()
    assert "SEND_FIRST" in page.inner_text("#inspector")
    assert "INA header" in page.inner_text("#inspector")


def test_a_link_leads_to_its_step_and_the_address_follows(page: Any, exported: Path) -> None:
    page.goto(f"{exported.as_uri()}#walk=replay&step=3")
    page.reload()
    assert page.inner_text("#count").startswith("3 / ")
    page.click("#next")
    assert page.url.endswith("#walk=replay&step=4")


def test_playing_moves_on_and_pauses(page: Any) -> None:
    page.click("#play")
    page.wait_for_function("!document.getElementById('count').textContent.startsWith('1 /')")
    page.click("#play")
    assert page.get_attribute("#play", "aria-pressed") == "false"


@pytest.mark.parametrize("width", [360, 820, 1440])
def test_nothing_sticks_out_at_any_width(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.keyboard.press("End")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_themes(page: Any, theme: str) -> None:
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    ratio = page.evaluate(
        """() => {
          const level = (name) => {
            const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
            const parts = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255);
            const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const card = level("--card");
          return Math.min(...["--ink", "--soft", "--data", "--sum", "--ack", "--nak", "--cts"].map((name) => {
            const [a, b] = [level(name), card].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
          }));
        }"""
    )
    assert ratio >= 4.5  # WCAG 2.1, level AA
