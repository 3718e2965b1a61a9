"""Every ```python block of docs/sdk.md and of the README runs as it stands. (```py blocks need what a test
machine lacks.)"""
import re
import subprocess
import sys

import pytest

import imagekit
from conftest import ROOT
from sdkkit import SDK

TEXT = (ROOT / "docs" / "sdk.md").read_text()
BLOCKS = [(m[1].strip(), m[2]) for m in
          re.finditer(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", TEXT, re.S | re.M)]
README = [("README", code) for code in
          re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)]


@pytest.fixture(scope="module")
def images(python_home, tmp_path_factory):
    archive = imagekit.alpine().archive("docker", tmp_path_factory.mktemp("alpine") / "a.tar", "alpine:3")
    python_home.ok("load", "-q", "-i", archive)
    return python_home


def test_blocks_are_found():
    assert README and len(BLOCKS) >= 11 and len(BLOCKS) == TEXT.count("```python\n")


@pytest.mark.parametrize("title, code", BLOCKS + README, ids=[title for title, _ in BLOCKS + README])
def test_block(images, title, code):
    p = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=120,
                       env={**images.env, "MSB_PATH": images.exe, "PYTHONPATH": str(SDK)})
    assert p.returncode == 0 and p.stderr == "", p.stdout + p.stderr
    assert p.stdout.strip()
    assert images.ok("ls", "-q") == ""


def test_links_lead_somewhere():
    anchors = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-")
               for h in re.findall(r"^#+ (.+)$", TEXT, re.M)}
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (ROOT / "docs" / target).exists(), target
