"""The README's pictures of the walk, taken by Chromium from the page itself: ``python benchmarks/walk_pictures.py``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from netreduce.viewer.page import render
from netreduce.viewer.walks import record_walks

PICTURES = {"walk-ring": ("ring", 6, 700), "walk-journey": ("journey", 8, 1000)}
"""File name: walk, step (from 1), height in pixels."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--force-prefers-reduced-motion"]


def main() -> None:
    """Write docs/figures/walk-*.png."""
    figures = Path(__file__).parents[1] / "docs" / "figures"
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        page_path = Path(directory) / "walk.html"
        page_path.write_text(render(record_walks()), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, (walk, step, height) in PICTURES.items():
            page = browser.new_page(viewport={"width": 1180, "height": height}, reduced_motion="reduce")
            page.goto(f"{page_path.as_uri()}#walk={walk}&step={step}")
            page.wait_for_timeout(300)
            page.screenshot(path=figures / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
