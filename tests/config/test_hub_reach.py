"""A machine without a network is noticed before the hub's libraries try again and again."""

import socket

import pytest

from adloco_p2p.config.hub_reach import is_hub_reachable


class Resolver:
    def __init__(self, *known: str) -> None:
        self.known, self.asked = known, []  # type: ignore[var-annotated]

    def __call__(self, host: str, port: object) -> list[object]:
        self.asked.append((host, port))
        if host not in self.known:
            raise socket.gaierror("Name or service not known")
        return []


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adloco_p2p.config.hub_reach.getproxies", dict)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.mark.parametrize(("known", "is_reachable"), [("huggingface.co", True), ("elsewhere.org", False)])
def test_the_name_of_the_hub_is_resolved(monkeypatch: pytest.MonkeyPatch, known: str, is_reachable: bool) -> None:
    resolver = Resolver(known)
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    assert is_hub_reachable() == is_reachable
    assert resolver.asked == [("huggingface.co", "https")]


def test_a_mirror_is_asked_for_by_its_own_name_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver("mirror.local")
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.local:8080/hub")
    assert is_hub_reachable()
    assert resolver.asked == [("mirror.local", 8080)]


def test_a_proxy_resolves_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Resolver())
    monkeypatch.setattr("adloco_p2p.config.hub_reach.getproxies", lambda: {"https": "http://proxy:3128"})
    assert is_hub_reachable()


def test_a_user_who_stays_offline_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver("huggingface.co")
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    monkeypatch.setenv("HF_HUB_OFFLINE", "true")
    assert not is_hub_reachable() and not resolver.asked
