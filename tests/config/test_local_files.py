"""Whose files a run may name, and which versions."""

from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.config.local_files import (
    check_local_files,
    check_run_of_others,
    local_files,
    needs_shared_model,
    needs_shared_text,
    unpinned,
    with_shared_inputs,
)
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.data.source import local_files as files_of
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


COMMIT = "0123456789" * 4
HUB = ["data.source=hub", "data.path=owner/texts", "model.pretrained=owner/model", "model.architecture={}", TOKENIZER]


@pytest.mark.parametrize("revision", [None, "main", "v1.0", COMMIT[:-1], COMMIT.replace("0", "A"), "refs/convert/parquet"])
@pytest.mark.parametrize("setting", ["data.revision", "model.revision", "tokenizer.revision"])
def test_a_run_of_others_names_the_commit_of_all_that_it_downloads(setting: str, revision: str | None) -> None:
    settings = dict.fromkeys(("data.revision", "model.revision", "tokenizer.revision"), COMMIT)
    check_run_of_others(run_of(*HUB, *(f"{name}='{value}'" for name, value in settings.items())), PeerConfig())
    if revision is None:
        del settings[setting]
    else:
        settings[setting] = revision
    run = run_of(*HUB, *(f"{name}='{value}'" for name, value in settings.items()))
    assert unpinned(run) == [f"{setting}: {revision or 'not set'}"]
    with pytest.raises(ConfigError, match="40 digits") as refused:
        check_run_of_others(run, PeerConfig())
    assert refused.value.code == "E215"


def test_a_directory_that_the_user_allowed_has_no_commit(tmp_path: Path) -> None:
    run = run_of("data.source=hub", f"data.path={tmp_path}", f"tokenizer.source={tmp_path}")
    check_run_of_others(run, PeerConfig(allow_local_files=True))


def test_what_an_author_could_not_start_nobody_joins() -> None:
    """A manifest is written by hand as easily as by this program."""
    run = run_of()
    for bad, told in (
        (replace(run, instances=replace(run.instances, count=10**6)), "instances.count"),
        (replace(run, evaluation=replace(run.evaluation, rows=10**9)), "evaluation.rows"),
        (replace(run, model=replace(run.model, architecture={"model_type": "llama", "hidden_size": 10**12})), "hidden_size"),
        (replace(run, model=replace(run.model, architecture={"model_type": "qwen2", "num_hidden_layers": 10**9})), "layers"),
    ):
        with pytest.raises(ConfigError, match=told) as refused:
            check_run_of_others(bad, PeerConfig())
        assert refused.value.code == "E201"


def test_a_shared_model_is_never_read_from_the_path_that_a_run_names(tmp_path: Path) -> None:
    secret = tmp_path / "private"
    secret.mkdir()
    base = RunConfig()
    model, tokenizer = replace(base.model, pretrained=str(secret), share=True), replace(base.tokenizer, source=str(secret))
    shared = replace(base, model=model, tokenizer=tokenizer)
    closed, trusting = PeerConfig(), PeerConfig(allow_local_files=True)
    check_local_files(shared, closed)
    assert needs_shared_model(shared, closed) and not needs_shared_model(shared, trusting)
    work = tmp_path / "work"
    (work / "base").mkdir(parents=True)
    read = with_shared_inputs(shared, work)
    assert read.model.pretrained == read.tokenizer.source == str(work / "base")
    assert with_shared_inputs(replace(shared, model=replace(model, share=False)), work).model.pretrained == str(secret)
    for other in (
        replace(shared, model=replace(model, share=False)),
        replace(shared, tokenizer=replace(tokenizer, source=str(tmp_path))),
        replace(shared, data=replace(shared.data, source="text", path=str(secret / "diary.txt"))),
    ):
        with pytest.raises(ConfigError, match="asks for files of this machine"):
            check_local_files(other, closed)


def test_a_shared_text_is_read_from_the_working_directory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ["data.mixture={prose/*.txt: 1.0, code.txt: 2.0}", "data.heldout_path=held.txt"]
    run = run_of("data.source=text", "data.share=true", *paths)
    closed, trusting = PeerConfig(), PeerConfig(allow_local_files=True)
    check_local_files(run, closed)
    assert needs_shared_text(run, closed) and needs_shared_text(run, trusting), "there are no such files"
    (tmp_path / "prose").mkdir()
    for name in ("prose/a.txt", "code.txt", "held.txt"):
        (tmp_path / name).write_text("private")
    assert needs_shared_text(run, closed) and not needs_shared_text(run, trusting)
    work = tmp_path / "work [1]"
    assert with_shared_inputs(run, work) == run, "nothing came from others"
    (work / "text").mkdir(parents=True)
    for name in ("0000-00000.txt", "0001-00000.txt", "0001-00001.txt", "0002-00000.txt"):
        (work / "text" / name).write_text(name)
    read = with_shared_inputs(run, work)
    assert [[Path(name).name for name in names] for names in files_of(read.data)] == [
        ["0000-00000.txt"],
        ["0001-00000.txt", "0001-00001.txt"],
        ["0002-00000.txt"],
    ]
    assert [*read.data.data_sets.values()] == [2.0, 1.0], "code.txt comes before prose"
    with pytest.raises(ConfigError, match="asks for files of this machine"):
        check_local_files(replace(run, tokenizer=replace(run.tokenizer, source=str(tmp_path))), closed)


def test_instances_keep_their_own_texts_where_these_came_from_others(tmp_path: Path) -> None:
    own = ["data.mixture={prose.txt: 1.0, code.txt: 2.0}", "instances.data=[prose.txt, code.txt]"]
    run = run_of("data.source=text", "data.share=true", *own, "instances.count=2", "instances.start=same")
    (tmp_path / "text").mkdir()
    read = with_shared_inputs(run, tmp_path)
    assert [Path(name).name for name in read.instances.data] == ["0001-*", "0000-*"]
    assert [*read.readers.values()] == [*run.readers.values()] == [1, 0]


def test_only_files_of_text_and_json_are_shared() -> None:
    with pytest.raises(ConfigError, match=r"data.share: true, but peers share only files of text or json"):
        run_of("data.share=true")
