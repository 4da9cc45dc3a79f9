"""Every command of the pages works. How a block is tested says a comment before it: see `pages.py`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from adloco_p2p.error_codes import ERROR_CODES
from tests.docs.pages import INLINE, REPOSITORY, Block, blocks_of, check_command, sandbox

PAGES = sorted(
    path
    for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "peers").glob("*.md")]
    if blocks_of(path)
)
SOMEBODY_ELSES_RUN = Block(
    directive=r"keep until (?s)join link: (?P<LINK>\S+).*^round \d+/",
    script="adloco-peer start configs/default.yaml --workdir author --plain --host-maddrs /ip4/0.0.0.0/tcp/0\n",
)


def run_page(page: Path, folder: Path, warm_server: str, *, is_heavy: bool) -> None:
    blocks = blocks_of(page)
    with sandbox(folder, warm_server) as box:
        if any("LINK" in block.script for block in blocks) and not any("<LINK>" in block.directive for block in blocks):
            box.run(SOMEBODY_ELSES_RUN)
        for block in blocks:
            if is_heavy or block.directive != "heavy":
                box.run(block)


def test_pages_are_found() -> None:
    names = {page.name for page in PAGES}
    assert {"README.md", "volunteer.md", "author.md", "researcher.md", "engineer.md"} <= names


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_of_a_page(page: Path, tmp_path: Path, warm_server: str) -> None:
    run_page(page, tmp_path, warm_server, is_heavy=False)


HEAVY = [page for page in PAGES if any(block.directive == "heavy" for block in blocks_of(page))]


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", HEAVY, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_of_a_page_and_the_long_ones(page: Path, tmp_path: Path, warm_server: str) -> None:
    run_page(page, tmp_path, warm_server, is_heavy=True)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_the_first_command_of_the_readme(tmp_path: Path) -> None:
    """In a bare copy of the checkout, with an environment of its own."""
    checkout = tmp_path / "checkout"
    shutil.copytree(REPOSITORY, checkout, ignore=shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info"))
    script = blocks_of(REPOSITORY / "README.md")[0].script
    ended = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=checkout, check=False, timeout=3000)
    assert ended.returncode == 0
    assert (checkout / "runs" / "first" / "model" / "model.safetensors").exists()


def test_commands_within_sentences_are_understood() -> None:
    texts = [path.read_text() for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]]
    texts += [entry.remedy for entry in ERROR_CODES.values()]
    commands = [command for text in texts for command in INLINE.findall(text)]
    assert commands
    for command in commands:
        check_command(" ".join(command.split()))
