"""The browser of the tests: Chromium without windows of its own, which costs half of what the whole one does."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser; the test is skipped on a machine that has none."""
    if CHROMIUM is None:
        pytest.skip("there is neither chromium-headless-shell nor chromium on this machine")
    with sync_playwright() as playwright:
        arguments = ["--process-per-site", "--renderer-process-limit=1"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        with playwright.chromium.launch(executable_path=CHROMIUM, args=arguments) as found:
            yield found
