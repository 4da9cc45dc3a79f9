"""The guard between real processes: an average that leads up the loss, within the cosine that its rule allows, is undone."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.planning.guard import STRICT_ROUNDS
from tests.e2e.processes import run
from tests.e2e.swarm_processes import Event, PeerProcess, digests_by_round, start_three, wait, write_swarm_config

WAIT_LIMIT_SECONDS = 600.0
"""For each step of the story, on a machine that does other things too."""


def write_guarded_config(folder: Path) -> Path:
    config = write_swarm_config(folder, rounds=10_000)
    document = yaml.safe_load(config.read_text())
    document |= {"guard": {"enabled": True}, "averaging": {"aggregation": "robust"}}
    config.write_text(yaml.safe_dump(document))
    return config


def instances_by_round(peer: PeerProcess, folder: Path) -> dict[int, dict[str, Any]]:
    """Its ledger: the one instance in the plan of each round."""
    shown = run(["ledger", "--json", "--workdir", peer.workdir], folder=folder)
    assert shown.code == 0, shown
    return {plan["round"]: plan["instances"][0] for plan in map(json.loads, shown.output.splitlines())}


def ended(peers: list[PeerProcess], number: int) -> list[Event]:
    """What they tell of the end of that round."""
    return [event for peer in peers for event in peer.events if event["event"] == "round" and event["round"] == number]


def losses(peers: list[PeerProcess], number: int) -> list[float]:
    """Of the inner steps of those that trained in that round."""
    return [event["loss"] for event in ended(peers, number) if event["loss"] is not None]


def alarm_of(peers: list[PeerProcess]) -> int | None:
    """The round before which the guard first takes the instance back, by any of them: one that is behind tells of no alarm."""
    told = [event["message"] for peer in peers for event in peer.events if event["event"] == "warning" and event["active"]]
    found = [re.match(r"round (\d+): \d of \d hosts measured", message) for message in told]
    return min((int(alarm[1]) for alarm in found if alarm), default=None)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_member_that_leads_up_the_loss_is_undone(peers: list[PeerProcess], tmp_path: Path) -> None:
    """The liar is admitted, strikes in each of its rounds, and is in the averages of the run's rule. The hosts see it, go back
    to the state before its first harm, and train on from there by the stricter rule."""
    start_three(peers, write_guarded_config(tmp_path))
    honest = [*peers]
    for peer in honest:
        peer.wait_for("round", seconds=WAIT_LIMIT_SECONDS, hosts=lambda hosts: len(hosts) == 3)
    join = ("join", "--initial-peers", *honest[0].addresses())
    peers.append(PeerProcess(tmp_path / "liar", join).start(fault=("misbehave", "ascent")))
    back = wait(lambda: alarm_of(honest), "an alarm", *peers, seconds=WAIT_LIMIT_SECONDS)
    for peer in honest:
        peer.wait_for("round", seconds=WAIT_LIMIT_SECONDS, round=lambda number: number >= back + STRICT_ROUNDS)
    for peer in peers:
        peer.signal(signal.SIGINT)
    assert [peer.end(seconds=WAIT_LIMIT_SECONDS) for peer in peers] == [0] * 4
    me = peers[-1].me

    plans = instances_by_round(honest[0], tmp_path)
    assert plans[back]["rewind"] == plans[back - 1]["state_digest"], "the state before the round that did harm"
    assert plans[back]["strict_before"] == back + STRICT_ROUNDS
    assert any(me in event["hosts"] for event in ended(honest, back - REPORT_LAG)), "the run's rule kept the liar"
    # the round behind the harm was trained upon it, the one behind the alarm upon the kept state
    upon_harm, upon_kept = losses(honest, back - 1), losses(honest, back)
    assert min(upon_harm) > max(upon_kept), (upon_harm, upon_kept)
    assert not {key: found for key, found in digests_by_round(honest).items() if len(found) > 1}
