"""Whole swarms of real processes on loopback: join, leave, kill, freeze, return; who finds whom; what is refused.

Times that a user would feel are printed, and judged by `benchmarks/join_time.py` on a quiet machine; here all only has to end.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from tests.e2e.processes import ENVIRONMENT, run
from tests.e2e.swarm_processes import (
    LOOPBACK,
    PeerProcess,
    digests_by_round,
    founded,
    processes_of,
    wait,
    write_swarm_config,
)

ENDLESS = 10_000
"""Rounds of a run that the test stops."""
NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWCDenScM6yZLBTaYgSpVYLKJyBoX7jr2RiyKjXhCVyQfh"
REDUCING = "adloco_p2p.swarm.allreduce.reducer_side:ReducerSide._on_contribution"

NewPeer = Callable[..., PeerProcess]


@pytest.fixture
def new(peers: list[PeerProcess], tmp_path: Path) -> NewPeer:
    """Starts peers by name and verb."""

    def start(name: str, *verb: object, fault: tuple[str, ...] = ()) -> PeerProcess:
        peers.append(PeerProcess(tmp_path / name, verb).start(fault=fault))
        return peers[-1]

    return start


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


def test_one_joins_one_is_killed_one_leaves_and_the_run_ends_with_one_model(
    new: NewPeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run has as many rounds as all of this takes; its author ends it."""
    config = write_swarm_config(tmp_path, rounds=ENDLESS, inner_steps=30)
    first = new("first", "start", config, *founded(tmp_path, "first", "leaver", "victim"))
    leaver = join(new, "leaver", first)
    victim = join(new, "victim", first, fault=("signal_at", REDUCING, "4", "before", "SIGKILL"))
    assert victim.end() == -signal.SIGKILL  # in the middle of an average, a part of which it reduces
    last_word = victim.events[-1]["time"]
    late = join(new, "late", first)
    wait(lambda: not processes_of(victim.workdir), "its daemon to die")
    own = late.wait_for("round", samples=lambda samples: samples > 0)
    with capsys.disabled():
        joined = late.wait_for("warning", key="fetch 0", active=False)["time"] - late.started_at
        show("\njoining, (warm) process start to the state being here", joined)
        show("joining, to the end of the first own round", own["time"] - late.started_at)
    after_kill = noticed(first, victim.events[0]["peer"], last_word)
    asked_at = time.time()
    leaver.signal(signal.SIGINT)
    assert leaver.end() == 0
    after_leave = noticed(first, leaver.me, asked_at)
    with capsys.disabled():
        show("a leave is noticed after", after_leave)
        show("a kill is noticed after", after_kill)
    begun = first.wait_for("round", loss=lambda loss: loss is not None)["loss"]
    first.wait_for("round", loss=lambda loss: loss is not None and loss < begun - 1.5)
    assert run(["command", "stop", "--workdir", first.workdir], folder=tmp_path).code == 0
    assert [first.end(), late.end()] == [0, 0]

    one_digest_everywhere(first, leaver, victim, late)
    assert rounds_of(first) == sorted(set(rounds_of(first))), "each once"
    losses = [peer.wait_for("finished")["heldout_loss"] for peer in (first, late)]
    assert losses[0] == losses[1] < begun - 1.0
    assert run(["export", "--workdir", late.workdir, "--output", tmp_path / "model"], folder=tmp_path).code == 0
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() > 0


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


@pytest.mark.heavy
def test_streamed_fragments_of_three_peers_one_of_which_is_killed(new: NewPeer, tmp_path: Path) -> None:
    """Thirds of the vector over slow links, each beside the inner steps of the next round; the killed one goes on from its
    checkpoint, and every outer step is the same on all."""
    slow = ("--peer-set", "upload_bytes_per_second=60000")
    chosen = ("averaging.fragments=3", "outer.overlap=streaming", "outer.delay_steps=4", "batch.test=constant")
    settings = [part for one in chosen for part in ("--set", one)]
    config = write_swarm_config(tmp_path, rounds=ENDLESS, inner_steps=20)
    first = new("first", "start", config, *settings, *slow, *founded(tmp_path, "first", "second", "third"))
    second, third = join(new, "second", first, *slow), join(new, "third", first, *slow)
    for peer in (first, second, third):
        peer.wait_for("round", is_ahead=True)
    third.kill()
    noticed_at = time.time()
    trained_after(first, noticed_at)
    third.start()
    trained_after(third, third.started_at)
    ahead = third.wait_for("round", time=lambda at: at >= third.started_at, is_ahead=True)["round"]
    first.wait_for("round", round=ahead + 1)
    stop(first, second, third)
    one_digest_everywhere(first, second, third)


def test_one_is_killed_and_restarted_the_author_is_killed_for_a_while_and_one_stands_still(
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

    killed_at = time.time()
    first.kill()
    noticed(second, first.events[0]["peer"], killed_at)
    trained_after(third, time.time())
    first.start()
    trained_after(first, first.started_at)
    trained_after(second, first.started_at)

    frozen_at = time.time()
    with third.pause():
        noticed(first, third.me, frozen_at)
        past = rounds_of(first)[-1]
        first.wait_for("round", round=lambda number: number >= past + 2)  # it holds nobody up
    thawed_at = time.time()
    trained_after(third, thawed_at)
    with capsys.disabled():
        show("from the thaw to a round with the others", time.time() - thawed_at)
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


@pytest.mark.heavy
def test_peers_meet_through_a_plain_node_of_hivemind(new: NewPeer, tmp_path: Path) -> None:
    with _HivemindDHT(tmp_path) as addresses:
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


@pytest.mark.heavy
def test_of_two_runs_at_one_bootstrap_the_user_chooses_and_what_is_not_there_is_named(new: NewPeer, tmp_path: Path) -> None:
    lost = new("lost", "join", "--initial-peers", NOBODY)  # it tries for half a minute
    bootstrap = new("bootstrap", "bootstrap")
    config = write_swarm_config(tmp_path / "a", rounds=ENDLESS, name="anna")
    first = new("first", "start", config, "--initial-peers", *bootstrap.addresses())
    other_config = write_swarm_config(tmp_path / "b", rounds=ENDLESS, name="berta")
    other = new("other", "start", other_config, "--initial-peers", *bootstrap.addresses())

    def examined() -> dict[str, dict[str, str]] | None:
        ended = run(["doctor", "--json", "--initial-peers", *bootstrap.addresses()], folder=tmp_path)
        if ended.code != 0:
            return None  # the time that it gives itself is too short for this machine now
        results = {result["check"]: result for result in json.loads(ended.output)["results"]}
        are_good = all(results[check]["outcome"] == "ok" for check in ("protocol", "clock", "dial back", "speed"))
        return results if are_good and results["runs"]["found"] == "2 announced" else None

    results = wait(examined, "the doctor to find both runs, and nothing wrong", first, other)
    assert results["initial peers"]["found"] == "1 of 1 answer"
    assert "reached by a peer on this machine at /ip4/" in results["dial back"]["found"]

    undecided, wrong = join(new, "undecided", bootstrap), join(new, "wrong", bootstrap, "--run", "f" * 64)
    assert undecided.end() == 2
    listed = re.findall(r"--run (\w+) +(\w+), ", undecided.words)
    assert sorted(name for _, name in listed) == ["anna", "berta"]
    chosen = join(new, "chosen", bootstrap, "--run", next(run for run, name in listed if name == "berta"))
    linked = new("linked", "join", "--initial-peers", first.link())
    assert chosen.wait_for("started")["name"] == "berta"
    assert linked.wait_for("started")["name"] == "anna"
    trained_after(chosen, 0.0)
    trained_after(linked, 0.0)
    _what_is_refused_is_named(first, config, tmp_path)
    assert wrong.end() in (2, 3)
    assert "f" * 16 in wrong.words
    assert lost.end() == 3
    assert "/ip4/127.0.0.1/tcp/1" in lost.words
    stop(first, other, chosen, linked, bootstrap)


def _what_is_refused_is_named(first: PeerProcess, config: Path, folder: Path) -> None:
    """Files of this machine that its user did not allow, and a directory in use."""
    arguments = ["join", "--initial-peers", first.link(), "--workdir", folder / "unasked", "--host-maddrs", LOOPBACK]
    unasked = run(arguments, folder=folder)
    assert unasked.code == 2
    assert re.search(r"E214: .*data\.path: /", unasked.errors)
    twice = run(["start", config, "--workdir", first.workdir, "--plain"], folder=folder)
    assert twice.code == 4
    assert str(first.workdir) in twice.errors
