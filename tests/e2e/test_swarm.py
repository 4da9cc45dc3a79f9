"""Whole swarms of real processes on loopback: join, leave, kill, freeze, return; who finds whom; what is refused.

Times that a user would feel are printed, and judged by `benchmarks/join_time.py` on a quiet machine; here all only has to end.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import transformers

from tests.e2e.processes import ENVIRONMENT, run
from tests.e2e.swarm_processes import LOOPBACK, PeerProcess, digests_by_round, processes_of, wait, write_swarm_config

FROZEN_SECONDS = 15.0
ENDLESS = 10_000
"""Rounds of a run that the test stops."""
REDUCING = "adloco_p2p.swarm.allreduce.butterfly:Butterfly._on_contribution"

NewPeer = Callable[..., PeerProcess]


@pytest.fixture
def new(tmp_path: Path) -> Iterator[NewPeer]:
    """Starts peers by name and verb. None of their processes outlives the test."""
    peers: list[PeerProcess] = []

    def start(name: str, *verb: object, fault: tuple[str, ...] = ()) -> PeerProcess:
        peers.append(PeerProcess(tmp_path / name, verb).start(fault=fault))
        return peers[-1]

    yield start
    for peer in peers:
        peer.kill()
    wait(lambda: not processes_of(tmp_path), f"nothing to be left of {processes_of(tmp_path)}")


def join(new: NewPeer, name: str, through: PeerProcess, *more: object, fault: tuple[str, ...] = ()) -> PeerProcess:
    return new(name, "join", "--initial-peers", *through.addresses(), *more, fault=fault)


def stop(*peers: PeerProcess) -> None:
    """Everybody ends when asked to, and says that all is well."""
    for peer in peers:
        peer.signal(signal.SIGINT)
    assert [peer.end() for peer in peers] == [0] * len(peers)


def noticed(witness: PeerProcess, peer: str, since: float) -> float:
    """Seconds until the witness knew that the peer is gone."""
    return float(witness.wait_for("left", peer=peer, time=lambda at: at >= since)["time"]) - since


def show(what: str, seconds: float) -> None:
    print(f"{what}: {seconds:.1f} s")


def one_digest_everywhere(*peers: PeerProcess) -> None:
    differing = {key: found for key, found in digests_by_round([*peers]).items() if len(found) > 1}
    assert not differing


def rounds_of(peer: PeerProcess) -> list[int]:
    return [event["round"] for event in peer.events if event["event"] == "round"]


def trained_after(peer: PeerProcess, since: float) -> None:
    """The peer contributes to an average, with others, in a round that ends after `since`."""
    me = peer.me
    peer.wait_for("round", time=lambda at: at >= since, hosts=lambda hosts: me in hosts and len(hosts) > 1)


def test_one_joins_one_is_killed_one_leaves_and_the_run_ends_as_if_nothing_had_been(
    new: NewPeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_swarm_config(tmp_path, rounds=14, inner_steps=60)
    first = new("first", "start", config)
    leaver = join(new, "leaver", first)
    victim = join(new, "victim", first, fault=("signal_at", REDUCING, "6", "before", "SIGKILL"))
    first.wait_for("round", round=1)
    late = join(new, "late", first)
    assert victim.end() == -signal.SIGKILL  # in the middle of an average, a part of which it reduces
    killed_at = time.time()
    wait(lambda: not processes_of(victim.workdir), "its daemon to die")
    own = late.wait_for("round", samples=lambda samples: samples > 0)
    with capsys.disabled():
        joined = late.wait_for("warning", key="fetch 0", active=False)["time"] - late.started_at
        show("\njoining, (warm) process start to the state being here", joined)
        show("joining, to the end of the first own round", own["time"] - late.started_at)
    first.wait_for("round", time=lambda at: at >= killed_at, hosts=lambda hosts: len(hosts) >= 2)
    leaver.signal(signal.SIGINT)
    assert leaver.end() == 0
    left_at = leaver.events[-1]["time"]
    after_leave, after_kill = noticed(first, leaver.me, left_at), noticed(first, victim.events[0]["peer"], killed_at)
    with capsys.disabled():
        show("a leave is noticed after", after_leave)
        show("a kill is noticed after", after_kill)
    assert [first.end(), late.end()] == [0, 0]

    one_digest_everywhere(first, leaver, victim, late)
    assert rounds_of(first) == list(range(14))
    assert len(rounds_of(late)) >= 3
    assert run(["export", "--workdir", late.workdir, "--output", tmp_path / "model"], folder=tmp_path).code == 0
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() > 0
    quiet = new("quiet", "start", config, "--offline")
    assert quiet.end() == 0
    losses = [peer.wait_for("finished")["heldout_loss"] for peer in (first, late, quiet)]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=0.01)


@pytest.mark.heavy
def test_delayed_outer_updates_end_with_the_same_bytes(new: NewPeer, tmp_path: Path) -> None:
    """Over a slow link rounds begin while the one before them is averaged; every outer step is the same on both peers."""
    slow = ("--peer-set", "upload_bytes_per_second=60000")
    first = new("first", "start", write_swarm_config(tmp_path, rounds=ENDLESS, inner_steps=20, overlap="delayed"), *slow)
    second = join(new, "second", first, *slow)
    began_early = [peer.wait_for("round", is_ahead=True)["round"] for peer in (first, second)]
    first.wait_for("round", round=max(began_early) + 1)
    stop(first, second)
    one_digest_everywhere(first, second)
    shared = {*rounds_of(first)} & {*rounds_of(second)}
    assert shared >= {*began_early}


def test_killed_and_restarted_at_once_and_killed_for_a_while(
    new: NewPeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = new("first", "start", write_swarm_config(tmp_path, rounds=ENDLESS))
    second, third = join(new, "second", first), join(new, "third", first)
    for peer in (second, third):
        trained_after(peer, 0.0)
    second.kill()
    second.start()
    trained_after(second, second.started_at)
    with capsys.disabled():
        show("\nfrom the restart to a round with the others", second.events[-1]["time"] - second.started_at)
    first.kill()  # the author, too
    killed_at = time.time()
    noticed(second, first.events[0]["peer"], killed_at)
    trained_after(third, time.time())
    first.start()
    trained_after(first, first.started_at)
    trained_after(second, first.started_at)
    stop(first, second, third)
    one_digest_everywhere(first, second, third)


def test_a_frozen_peer_holds_nobody_up_and_comes_back(new: NewPeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = new("first", "start", write_swarm_config(tmp_path, rounds=ENDLESS))
    second, third = join(new, "second", first), join(new, "third", first)
    for peer in (second, third):
        trained_after(peer, 0.0)
    frozen_at = time.time()
    with third.pause():
        noticed(first, third.me, frozen_at)
        first.wait_for("round", time=lambda at: at >= frozen_at + FROZEN_SECONDS)
    thawed_at = time.time()
    trained_after(third, thawed_at)
    with capsys.disabled():
        show("\nfrom the thaw to a round with the others", time.time() - thawed_at)
    at = [event["time"] for event in first.events_of_this_life if event["event"] == "round"]
    longest = max(later - earlier for earlier, later in itertools.pairwise(at))
    with capsys.disabled():
        show("longest time without a round while it was frozen", longest)
    stop(first, second, third)
    one_digest_everywhere(first, second, third)


@pytest.mark.heavy
def test_known_peers_are_found_again_when_the_first_peer_is_gone(new: NewPeer, tmp_path: Path) -> None:
    first = new("first", "start", write_swarm_config(tmp_path, rounds=ENDLESS))
    second, third = join(new, "second", first), join(new, "third", first)
    for peer in (second, third):
        trained_after(peer, 0.0)
    known = third.workdir / "peers.json"
    wait(lambda: second.me in known.read_text(), f"{second.me} in {known}")
    stop(third)
    addresses = first.addresses()
    first.kill()
    third.start()
    assert third.verb[2:] == tuple(addresses)  # all that it is told leads nowhere
    trained_after(third, third.started_at)
    stop(second, third)


@pytest.mark.parametrize("kind", ["adloco", "hivemind"])
def test_peers_meet_through_a_bootstrap_that_trains_nothing(kind: str, new: NewPeer, tmp_path: Path) -> None:
    if kind == "adloco":
        addresses = new("bootstrap", "bootstrap").addresses()
        _meet(new, tmp_path, addresses)
        return
    with _HivemindDHT(tmp_path) as addresses:
        _meet(new, tmp_path, addresses)


def _meet(new: NewPeer, tmp_path: Path, addresses: list[str]) -> None:
    first = new("first", "start", write_swarm_config(tmp_path, rounds=ENDLESS), "--initial-peers", *addresses)
    first.wait_for("round")
    second = new("second", "join", "--initial-peers", *addresses)
    trained_after(second, 0.0)
    stop(first, second)


class _HivemindDHT:
    """A plain `hivemind-dht` process; gives its addresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> list[str]:
        output = self._folder / "hivemind-dht.txt"
        command = [sys.executable, "-c", "from hivemind.hivemind_cli.run_dht import main; main()"]
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "--host_maddrs", LOOPBACK, "--identity_path", str(self._folder / "dht.key")],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
            )
        found = wait(lambda: re.findall(r"(/ip4/127\S+/p2p/\w+)", output.read_text()), "hivemind-dht to listen")
        return list(dict.fromkeys(found))

    def __exit__(self, *exception: object) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        finally:
            self._process.kill()


def test_of_two_runs_in_one_dht_the_user_chooses_and_a_link_needs_no_choice(new: NewPeer, tmp_path: Path) -> None:
    first = new("first", "start", write_swarm_config(tmp_path / "a", rounds=ENDLESS, name="anna"))
    other_config = write_swarm_config(tmp_path / "b", rounds=ENDLESS, name="berta")
    other = new("other", "start", other_config, "--initial-peers", *first.addresses())
    for peer in (first, other):
        peer.wait_for("round")
    undecided = join(new, "undecided", first)
    assert undecided.end() == 2
    listed = re.findall(r"--run (\w+) +(\w+), ", undecided.words)
    assert sorted(name for _, name in listed) == ["anna", "berta"]
    wrong = join(new, "wrong", first, "--run", "f" * 64)
    chosen = join(new, "chosen", first, "--run", next(run for run, name in listed if name == "berta"))
    linked = new("linked", "join", "--initial-peers", first.link())
    assert chosen.wait_for("started")["name"] == "berta"
    assert linked.wait_for("started")["name"] == "anna"
    trained_after(chosen, 0.0)
    trained_after(linked, 0.0)
    assert wrong.end() in (2, 3)
    assert "f" * 16 in wrong.words
    stop(first, other, chosen, linked)


def test_what_cannot_be_reached_and_what_is_in_use_is_named(new: NewPeer, tmp_path: Path) -> None:
    nobody = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWCDenScM6yZLBTaYgSpVYLKJyBoX7jr2RiyKjXhCVyQfh"
    lost = new("lost", "join", "--initial-peers", nobody)
    first = new("first", "start", write_swarm_config(tmp_path, rounds=ENDLESS))
    first.wait_for("round")
    arguments = ["join", "--initial-peers", first.link(), "--workdir", tmp_path / "unasked", "--host-maddrs", LOOPBACK]
    unasked = run(arguments, folder=tmp_path)
    assert unasked.code == 2
    assert re.search(r"E214: .*data\.path: /", unasked.errors)
    twice = run(["start", tmp_path / "tiny.yaml", "--workdir", first.workdir, "--plain"], folder=tmp_path)
    assert twice.code == 4
    assert str(first.workdir) in twice.errors
    assert lost.end() == 3
    assert "/ip4/127.0.0.1/tcp/1" in lost.words
    stop(first)
