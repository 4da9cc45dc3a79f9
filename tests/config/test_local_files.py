"""Whose files a run may name."""

from pathlib import Path

import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.config.local_files import check_local_files, local_files
from adloco_p2p.config.peer import PeerConfig
from adloco_p2p.config.run import RunConfig
from adloco_p2p.errors import ConfigError

TOKENIZER = "tokenizer.source=owner/tokenizer"


def run_of(*settings: str) -> RunConfig:
    return load_run(None, list(settings)).value


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["data.source=hub", "data.path=allenai/c4", "data.name=en", TOKENIZER],
        ["model.pretrained=owner/model", "tokenizer.source=gpt2", "model.architecture={}"],
    ],
)
def test_what_comes_from_a_hub_or_with_python_names_no_file(settings: list[str]) -> None:
    assert local_files(run_of(*settings)) == []


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        (["data.source=text", "data.path=/home/**/*"], "data.path: /home/**/*"),
        (["data.source=json", "data.path=rows/part.json"], "data.path: rows/part.json"),  # looks like a hub id
        (["data.source=hub", "data.path=text"], "data.path: text"),  # a format, read from the working directory
        (["data.source=hub", "data.path=../rows"], "data.path: ../rows"),
        (["data.source=hub", "data.path=owner/rows"], "data.path: owner/rows"),  # is a directory here
        (["tokenizer.source=~/words"], "tokenizer.source: ~/words"),
        (["model.pretrained=/models/mine", "tokenizer.source=owner/words"], "model.pretrained: /models/mine"),
    ],
)
def test_a_run_of_others_is_refused_that_names_files_here(
    settings: list[str], asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "rows").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    run = run_of(*settings)
    assert local_files(run) == [asked]
    with pytest.raises(ConfigError, match="allow_local_files=true") as refused:
        check_local_files(run, PeerConfig())
    assert refused.value.code == "E214" and asked in str(refused.value)
    check_local_files(run, PeerConfig(allow_local_files=True))
