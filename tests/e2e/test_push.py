"""`export --push`: what reaches the hub, and what prevents it. The hub is a server on loopback that speaks its API."""

import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from adloco_p2p.commands.push import push
from adloco_p2p.errors import SwarmError
from tests.e2e.processes import ENVIRONMENT, MACHINE, REPOSITORY, finish, run, write_config

TOKEN = "hf_of_a_test"
REPO = "owner/tiny"


class FakeHub(ThreadingHTTPServer):
    """One repository: creation, LFS uploads and commits, for requests with the token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.has_room = True
        self.created: list[dict[str, object]] = []
        self.blobs: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self._answer(200, {"url": f"{self.server.url}/{REPO}"})
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif self.path == f"/api/models/{REPO}/preupload/main":
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer(200, {"files": modes})
        elif self.path == f"/{REPO}.git/info/lfs/objects/batch":
            objects = [
                {**wanted, "actions": {"upload": {"href": f"{self.server.url}/blob/{wanted['oid']}"}}}
                for wanted in json.loads(body)["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
        elif self.path == f"/api/models/{REPO}/commit/main":
            self._commit([json.loads(line) for line in body.splitlines()])
        else:
            self._answer(404, {"error": "not found"})

    def do_GET(self) -> None:
        self._answer(404, {"error": "not found"})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        if self.server.has_room:
            self.server.blobs[self.path.rpartition("/")[2]] = content
        self._answer(200 if self.server.has_room else 413, {})

    def _commit(self, lines: list[dict[str, dict[str, str]]]) -> None:
        for line in lines[1:]:
            value = line["value"]
            found = self.server.blobs[value["oid"]] if line["key"] == "lfsFile" else base64.b64decode(value["content"])
            self.server.files[value["path"]] = found
        self._answer(200, {"commitUrl": f"{self.server.url}/{REPO}/commit/{'1' * 40}", "commitOid": "1" * 40})

    def _answer(self, status: int, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    settings = ("--set", "instances.count=1", "work.rounds=1")
    ended = run(["start", write_config(folder), *settings, "--workdir", folder / "work", *MACHINE], folder=folder)
    assert ended.code == 0, ended
    return folder / "work"


def begin_export(workdir: Path, output: Path, **environment: str) -> subprocess.Popen[str]:
    """In a process of its own, since the hub's library reads the environment when it is imported. Without the protocol of
    chunks (xet), which the hub on loopback does not speak."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | ENVIRONMENT
    surroundings |= {
        "PYTHONPATH": str(REPOSITORY),
        "HF_HOME": str(output.parent / "no-token"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "adloco_p2p", "export", "--workdir", workdir, "--output", output, "--push", REPO],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_every_file_of_the_export_is_uploaded(trained: Path, hub: FakeHub, tmp_path: Path) -> None:
    output = tmp_path / "model"
    ended = finish(begin_export(trained, output, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN))
    assert ended.code == 0, ended.errors
    assert f"uploaded: {hub.url}/{REPO}/commit/{'1' * 40}" in ended.output
    assert hub.files == {path.name: path.read_bytes() for path in output.iterdir()}
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= hub.files.keys()
    assert [(created["name"], created["organization"]) for created in hub.created] == [("tiny", "owner")]
    assert hub.created[0].get("private") or hub.created[0].get("visibility") == "private"


PREVENTED = {
    "no token": ({}, 2, "E224: --push owner/tiny: there is no token", False),
    "no token, but words": ({"HF_TOKEN": "hf_\xe9"}, 2, "E224: --push owner/tiny: the token of the hub", False),
    "offline": ({"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}, 3, "E330: --push owner/tiny: the hub cannot be reached", False),
    "another token": ({"HF_TOKEN": "hf_of_somebody_else"}, 2, "E224: --push owner/tiny: Client error '401", True),
}
"""Environment, exit code, words, and whether the export is written all the same."""


def test_what_prevents_an_upload_is_named(trained: Path, hub: FakeHub, tmp_path: Path) -> None:
    """Before anything is written where it can be known; otherwise with the place of what was written."""
    begun = {
        name: begin_export(trained, tmp_path / name / "model", HF_ENDPOINT=hub.url, **environment)
        for name, (environment, *_) in PREVENTED.items()
    }
    for name, ended in {name: finish(process) for name, process in begun.items()}.items():
        _, code, problem, is_written = PREVENTED[name]
        assert ended.code == code and problem in ended.errors and "Traceback" not in ended.errors, (name, ended)
        assert (tmp_path / name / "model").exists() == is_written, name
        assert ("the export lies in" in ended.errors) == is_written, name
    assert not hub.files


def test_a_file_that_the_hub_does_not_store_is_no_fault_of_the_program(trained: Path, hub: FakeHub, tmp_path: Path) -> None:
    """The hub's library then raises an error of its own, with the answer as its cause."""
    hub.has_room = False
    ended = finish(begin_export(trained, tmp_path / "model", HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN))
    assert ended.code == 3 and "E330: --push owner/tiny: HfHubHTTPError: Client error '413" in ended.errors, ended
    assert f"the export lies in {tmp_path / 'model'}" in ended.errors and not hub.files


def test_an_answer_of_another_server_is_no_fault_of_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A network that wants a login first, as in a hotel, answers with its page."""

    def create_repo(*_: object, **__: object) -> None:
        json.loads("<html>")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", create_repo)
    with pytest.raises(SwarmError, match="JSONDecodeError") as raised:
        push(tmp_path, REPO, message="")
    assert raised.value.code == "E330"


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("adloco_p2p.commands.push.ANSWER_SECONDS", 0.1)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(SwarmError, match="ReadTimeout") as raised:
            push(tmp_path, REPO, message="")
    assert raised.value.code == "E330"


def test_a_name_that_no_repository_can_have_is_refused(trained: Path, tmp_path: Path) -> None:
    words = ["export", "--workdir", trained, "--output", tmp_path / "model", "--push", "a/b/c"]
    ended = run(words, folder=tmp_path)
    assert ended.code == 2 and "E200: --push a/b/c" in ended.errors and not (tmp_path / "model").exists(), ended
