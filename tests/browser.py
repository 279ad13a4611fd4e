"""Debian's chromium, driven by playwright. Screenshots are kept in build/screenshots."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path(os.environ.get("LEASEHUB_TEST_CHROMIUM", "/usr/bin/chromium"))
SCREENSHOTS = Path(os.environ.get("LEASEHUB_TEST_SCREENSHOTS", "build/screenshots"))
SIZES: dict[str, dict[str, int]] = {
    "desktop": {"width": 1280, "height": 900},
    "phone": {"width": 390, "height": 844},
}


@pytest.fixture
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.fail(f"{CHROMIUM} is missing: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox: tests may run as root.
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield running
        running.close()


def open_page(browser: Any, server: str, size: str = "desktop", **options: Any) -> tuple[Any, list[str]]:
    """A page, and the list that every complaint of the browser goes to: scripts, styles, refused content."""
    context = browser.new_context(base_url=server, viewport=SIZES[size], **options)
    page = context.new_page()
    page.set_default_timeout(15_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
    return page, complaints


def keep(page: Any, name: str, size: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"{name}-{size}.png"), full_page=True)


def no_wider_than_the_screen(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))
