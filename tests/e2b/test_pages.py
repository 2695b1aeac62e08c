"""Python that the documentation shows is run here with E2B's client, and prints what the pages say."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

# Seconds that one program may take, on a machine that is busy with other tests.
PATIENCE = 110
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
BLOCKS = [(page.relative_to(ROOT), text) for page in PAGES for text in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)]


def run(*command):
    """What a program prints, in the environment that the server told its users to set."""
    done = subprocess.run([sys.executable, *command], env=os.environ, text=True, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_blocks_to_run():
    pages = {str(page) for page, _ in BLOCKS}
    assert {"README.md", "docs/coming-from-e2b.md"} <= pages


@pytest.mark.parametrize("page, text", BLOCKS, ids=[str(page) for page, _ in BLOCKS])
def test_a_block_of_a_page_prints_hello(server, page, text):
    assert run("-c", text).strip() == "hello"


def test_the_example_prints_what_its_page_shows(server):
    example = ROOT / "examples/e2b"
    shown = re.search(r"^```text\n(.*?)^```$", (example / "README.md").read_text(), re.M | re.S).group(1)
    assert run(str(example / "example.py")) == shown
