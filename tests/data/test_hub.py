"""A hub data set reads files of its own repository. The hub is a file system in memory under the hub's own prefix."""

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation

from adloco_p2p.config.run_config import DataConfig
from adloco_p2p.data.hub import repository_files
from adloco_p2p.data.source import load_split
from adloco_p2p.errors import ConfigError

REVISION = "5" * 40
ROOT = f"/datasets/owner/texts@{REVISION}"


class FakeHub(MemoryFileSystem):
    protocol = "hf"
    store: dict[str, Any] = {}  # noqa: RUF012 - shared by the instances, as that of fsspec
    pseudo_dirs = [""]  # noqa: RUF012

    def glob(self, path: str, maxdepth: int | None = None, *, expand_info: bool = True, **options: object) -> object:
        del expand_info
        return {name.lstrip("/"): info for name, info in super().glob(path, maxdepth, **options).items()}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("hf://").strip("/")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    import datasets  # noqa: F401 - registers its own first

    register_implementation("hf", FakeHub, clobber=True)
    monkeypatch.setattr(FakeHub, "store", {})
    FakeHub.clear_instance_cache()
    return FakeHub()


def data(**changes: object) -> DataConfig:
    return DataConfig(**({"source": "hub", "path": "owner/texts", "revision": REVISION} | changes))  # type: ignore[arg-type]


def card(*lines: str) -> bytes:
    return "\n".join(["---", "configs:", *lines, "---", "# Texts", ""]).encode()


def names(files: list[str]) -> list[str]:
    return [file.rpartition("@")[2].partition("/")[2] for file in files]


def test_files_are_those_that_the_card_names(hub: FakeHub) -> None:
    for name in ("en/a.json.gz", "en/b.json.gz", "de/a.json.gz", "en/check.json.gz"):
        hub.pipe(f"{ROOT}/{name}", b"")
    hub.pipe(
        f"{ROOT}/README.md",
        card(
            "- config_name: en",
            "  data_files:",
            "  - {split: train, path: 'en/?.json.gz'}",
            "  - {split: validation, path: [en/check.json.gz]}",
            "- config_name: de",
            "  data_files: de/*.json.gz",
        ),
    )
    for name, split, expected in (
        ("en", "train", ["en/a.json.gz", "en/b.json.gz"]),
        ("en", "validation", ["en/check.json.gz"]),
        ("de", "train", ["de/a.json.gz"]),
    ):
        kind, files = repository_files(data(name=name), split=split)
        assert (kind, names(files)) == ("json", expected)
        assert all(file.startswith(f"hf://datasets/owner/texts@{REVISION}/") for file in files)
    for wrong in ({"name": "fr"}, {"name": None}):
        with pytest.raises(ValueError, match="it has de, en"):
            repository_files(data(**wrong), split="train")
    with pytest.raises(ValueError, match="no split 'test'"):
        repository_files(data(name="en"), split="test")


def test_without_a_card_the_names_of_the_files_decide_the_split(hub: FakeHub) -> None:
    for name in ("data/train-0.parquet", "data/train-1.parquet", "data/test-0.parquet"):
        hub.pipe(f"{ROOT}/{name}", b"")
    kind, files = repository_files(data(), split="train")
    assert (kind, names(files)) == ("parquet", ["data/train-0.parquet", "data/train-1.parquet"])


@pytest.mark.parametrize(
    "pattern",
    [
        "{secret}/*.txt",
        "file://{secret}/*.txt",
        "../../../../../../../..{secret}/*.txt",
        "http://127.0.0.1:9/admin/config.txt",
        "https://example.org/a.txt",
        "hf://datasets/other/data/a.txt",
        "zip://*.txt::http://127.0.0.1:9/a.zip",
        "../../other/data@main/a.txt",
        "~/*.txt",
    ],
)
@pytest.mark.parametrize("place", ["one", "by split", "directory"])
def test_a_card_that_names_something_else_is_refused_before_anything_is_read(
    hub: FakeHub, tmp_path: Path, pattern: str, place: str
) -> None:
    (tmp_path / "diary.txt").write_text("dear diary")
    hub.pipe(f"{ROOT}/a.txt", b"text")
    pattern = pattern.format(secret=tmp_path)
    lines = {
        "one": [f"  data_files: '{pattern}'"],
        "by split": ["  data_files:", f"  - {{split: train, path: [a.txt, '{pattern}']}}"],
        "directory": [f"  data_dir: '{pattern}'"],
    }[place]
    hub.pipe(f"{ROOT}/README.md", card("- config_name: default", *lines))
    with pytest.raises(ConfigError, match="no file of its own repository") as refused:
        load_split(data(), split="train", cache_dir=tmp_path / "cache")
    assert refused.value.code == "E216"


def test_a_link_out_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    """A directory that the user allowed is one repository, too."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "diary.txt").write_text("dear diary")
    published = tmp_path / "published"
    published.mkdir()
    (published / "a.txt").symlink_to(tmp_path / "secret" / "diary.txt")
    with pytest.raises(ConfigError, match=r"diary|a\.txt"):
        repository_files(data(path=str(published)), split="train")


def test_a_data_set_of_another_form_is_refused(hub: FakeHub) -> None:
    hub.pipe(f"{ROOT}/train.tar", b"")
    hub.pipe(f"{ROOT}/README.md", card("- config_name: default", "  data_files: '*.tar'"))
    with pytest.raises(ConfigError, match="no files that can be read"):
        repository_files(data(), split="train")


def test_a_data_set_that_has_no_room_is_refused_before_it_is_downloaded(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.pipe(f"{ROOT}/train.jsonl", b'{"text": "a"}\n' * 1000)
    monkeypatch.setattr("adloco_p2p.config.download_size.shutil.disk_usage", lambda path: type("Usage", (), {"free": 9000})())
    with pytest.raises(ConfigError, match=r"data\.path: 'owner/texts' is .* to be downloaded"):
        load_split(data(), split="train", cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())
