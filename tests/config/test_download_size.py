"""What a run would download from the hub is measured first: by a local endpoint that answers as the hub's does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adloco_p2p.config.download_size import check_download
from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.errors import ConfigError

REVISION = "5" * 40
GIB = 1 << 30


class Hub(BaseHTTPRequestHandler):
    """Metadata of one model; files are not to be had."""

    asked: list[str]
    sizes: dict[str, int]

    def do_GET(self) -> None:  # the library's name
        self.asked.append(self.path)
        is_metadata = self.path.startswith("/api/models/owner/model")
        files = [{"rfilename": name, "size": size, "blobId": "0" * 40} for name, size in self.sizes.items()]
        body = json.dumps({"id": "owner/model", "modelId": "owner/model", "sha": REVISION, "siblings": files}).encode()
        self.send_response(200 if is_metadata else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if is_metadata else 0))
        self.end_headers()
        self.wfile.write(body if is_metadata else b"")

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def log_message(self, *arguments: object) -> None:
        del arguments


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Hub,), {"asked": [], "sizes": {}}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    for name in ("HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield server.RequestHandlerClass  # type: ignore[misc]
    server.shutdown()
    server.server_close()


def test_weights_that_have_no_room_are_refused_before_any_of_them_is_asked_for(hub: type[Hub]) -> None:
    from adloco_p2p.training.pretrained import load_pretrained, weights_digest

    hub.sizes = {"model-00001-of-00002.safetensors": 1 << 55, "model-00002-of-00002.safetensors": 1, "pytorch_model.bin": 7}
    model = ModelConfig(pretrained="owner/model", revision=REVISION)
    for load in (load_pretrained, weights_digest):
        with pytest.raises(ConfigError, match=r"model\.pretrained: 'owner/model' is 36,028,797\.02 GB") as caught:
            load(model)
        assert caught.value.code == "E217"
    assert hub.asked and not any("/resolve/" in path for path in hub.asked)


def test_weights_larger_than_the_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"this machine has 0\.54 GB of memory"):
        check_download("model.pretrained", "owner/model", 1 << 29, tmp_path, code="E217", memory_bytes=1 << 29)


def test_a_download_may_take_nine_tenths_of_the_free_disk_and_what_lies_there_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("adloco_p2p.config.download_size.shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    check_download("data.path", "owner/texts", 900, tmp_path / "not there yet", code="E207")
    assert "data.path=owner/texts" in caplog.text, "it is shown"
    with pytest.raises(ConfigError, match=r"data\.path: 'owner/texts'"):
        check_download("data.path", "owner/texts", 901, tmp_path, code="E207")
    (tmp_path / "part").write_bytes(bytes(2))
    check_download("data.path", "owner/texts", 901, tmp_path, code="E207")
    caplog.clear()
    check_download("data.path", "owner/texts", 0, tmp_path, code="E207")
    assert not caplog.text
