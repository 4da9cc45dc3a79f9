"""Eight real processes under churn: a kill -9, a freeze of half a minute, a return, two joiners and two leavers, while
instances are forked and merged and accumulation switches on. In the end there is one ledger and one model.

Devices are paced, so that rounds last some seconds on any machine and eight peers fit on few cores.
"""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml

from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, digests_by_round, write_swarm_config

ROUNDS = 36
ROUNDS_TOGETHER = 20
"""From the first plan with eight peers to the end, at least."""
STEPS, STEP_SECONDS = 8, 0.3
FROZEN_SECONDS = 30.0
WAIT_LIMIT_SECONDS = 240.0
RUN_SECONDS = 1200.0
"""From the last departure to the end of the run, on a machine that does other things too."""
PACED = ("paced", str(STEP_SECONDS))
MACHINE = ("--peer-set", "max_micro_batch=4", "max_instances=2", "checkpoint_period_rounds=3")
"""Nobody holds all three instances, so that merges have to fetch; a fifth of a batch of 64 takes several passes."""

Plan = dict[str, Any]


def write_eight_config(folder: Path) -> Path:
    """One instance becomes three before round 14, which are merged from round 20 on. The batch grows until a host that shares
    an instance with four others has to accumulate."""
    path = write_swarm_config(folder, rounds=ROUNDS, inner_steps=STEPS)
    document = yaml.safe_load(path.read_text())
    document["work"]["share"] = "equal"
    document["instances"] = {"count": 3, "fork_round": 14}
    document["batch"] = {"initial_batch": 8, "max_batch": 64, "eta": 0.05}
    document["merge"] = {"period_rounds": 4, "first_round": 20, "guard_tolerance": 10.0}
    path.write_text(yaml.safe_dump(document))
    return path


def join(peers: list[PeerProcess], name: str) -> PeerProcess:
    verb = ("join", "--initial-peers", *peers[0].addresses(), *MACHINE)
    peers.append(PeerProcess(peers[0].workdir.with_name(name), verb).start(fault=PACED))
    return peers[-1]


def trains(peer: PeerProcess) -> None:
    """In this life, and in company."""
    me = peer.wait_for("started", seconds=WAIT_LIMIT_SECONDS)["peer"]
    peer.wait_for("round", seconds=WAIT_LIMIT_SECONDS, hosts=lambda hosts: me in hosts and len(hosts) > 1)


def leave(peer: PeerProcess) -> None:
    peer.signal(signal.SIGINT)
    assert peer.end(seconds=WAIT_LIMIT_SECONDS) == 0


def ledger(peer: PeerProcess, folder: Path) -> list[Plan]:
    """Its plans, once `ledger verify` has found nothing."""
    verified = run(["ledger", "verify", "--workdir", peer.workdir], folder=folder)
    assert verified.code == 0, verified
    shown = run(["ledger", "--json", "--workdir", peer.workdir], folder=folder)
    assert shown.code == 0, shown
    return [json.loads(line) for line in shown.output.splitlines()]


@pytest.mark.heavy
@pytest.mark.timeout(2400)
def test_eight_peers_under_churn_end_with_one_ledger_and_one_model(peers: list[PeerProcess], tmp_path: Path) -> None:
    config = write_eight_config(tmp_path)
    peers.append(PeerProcess(tmp_path / "peer-0", ("start", config, *MACHINE)).start(fault=PACED))
    first, victim, frozen, leaver, late_leaver, *_ = [peers[0], *(join(peers, f"peer-{number}") for number in range(1, 8))]
    together = first.wait_for("plan", seconds=WAIT_LIMIT_SECONDS, roster=lambda roster: len(roster) == 8)
    assert together["round"] <= ROUNDS - ROUNDS_TOGETHER, "the others came too late"
    for peer in peers:
        trains(peer)

    frozen_at = time.time()
    with frozen.pause():
        victim.kill()
        joiners = [join(peers, "joiner-0"), join(peers, "joiner-1")]
        leave(leaver)
        first.wait_for("round", seconds=WAIT_LIMIT_SECONDS, time=lambda at: at >= frozen_at + FROZEN_SECONDS)
        first.wait_for("left", peer=victim.events[0]["peer"])
    victim.start(fault=PACED)
    thawed_at = time.time()
    for peer in (*joiners, victim):
        trains(peer)
    me = frozen.me
    frozen.wait_for("round", seconds=WAIT_LIMIT_SECONDS, time=lambda at: at >= thawed_at, hosts=lambda hosts: me in hosts)
    leave(late_leaver)
    finishers = [peer for peer in peers if peer not in (leaver, late_leaver)]
    assert [peer.end(seconds=RUN_SECONDS) for peer in finishers] == [0] * 8

    plans = one_ledger(finishers, [leaver, late_leaver], tmp_path)
    what_was_planned_happened(plans, peers)
    one_model(finishers, tmp_path)


def one_ledger(finishers: list[PeerProcess], leavers: list[PeerProcess], folder: Path) -> list[Plan]:
    """Those who ended the run have the same plans, those who left before have the first of them."""
    plans = ledger(finishers[0], folder)
    digests = [plan["digest"] for plan in plans]
    assert [plan["round"] for plan in plans] == list(range(ROUNDS + 1)) and plans[-1]["is_last"]
    for peer in finishers[1:]:
        assert [plan["digest"] for plan in ledger(peer, folder)] == digests, peer.workdir
    for peer in leavers:
        theirs = [plan["digest"] for plan in ledger(peer, folder)]
        trained = max(event["round"] for event in peer.events if event["event"] == "round")
        assert theirs == digests[: len(theirs)] and len(theirs) > trained, peer.workdir
    return plans


def lost(plans: list[Plan]) -> set[int]:
    """Instances that ended because no host had their state any more: where the leases of all its hosts run out, as on a machine
    that gives no processor time for seconds, the plan gives an instance to peers that never had it."""
    ends = [merge for plan in plans for merge in plan["merges"] if "its state is lost" in merge["reason"]]
    return {source for merge in ends for source in merge["sources"] if source != merge["target"]}


def what_was_planned_happened(plans: list[Plan], peers: list[PeerProcess]) -> None:
    """Forks, merges, and switches to accumulation are in the plans, and in what the hosts did."""
    differing = {key: found for key, found in digests_by_round(peers).items() if len(found) > 1}
    assert not differing
    done = {(e["round"], e["instance"]): e for peer in peers for e in peer.events if e["event"] == "round"}
    given = {(plan["round"], item["instance"]) for plan in plans[:-1] for item in plan["instances"]}
    assert set(done) <= given and {instance for _, instance in given - set(done)} <= lost(plans)
    merged = {(e["round"], tuple(e["sources"])) for peer in peers for e in peer.events if e["event"] == "merge"}
    planned = {(plan["round"], tuple(merge["sources"])) for plan in plans for merge in plan["merges"]}
    assert merged == planned and len(planned) >= 2
    assert max(len(plan["instances"]) for plan in plans) == 3 and len(plans[-1]["instances"]) == 1

    modes = [item["mode"] for plan in plans[:-1] for item in plan["instances"]]
    assert modes[0] != "accumulate" and "accumulate" in modes
    shares = {
        (plan["round"], item["instance"], host["peer"]): (item["mode"], host["accumulation_steps"])
        for plan in plans
        for item in plan["instances"]
        for host in item["hosts"]
    }
    accumulated = 0
    for peer in peers:
        me = peer.events[0]["peer"]
        for event in peer.events:
            if event["event"] == "round" and event["samples"]:
                mode, passes = shares[event["round"], event["instance"], me]
                assert event["mode"] == mode, (peer.workdir, event)
                if mode == "accumulate":  # otherwise the first plan, which knows no device yet, may be split by the device
                    assert event["accumulation_steps"] == passes, (peer.workdir, event)
                    accumulated += passes > 1
    assert accumulated


def one_model(finishers: list[PeerProcess], folder: Path) -> None:
    """All measured the same loss, and any two export the same bytes, which transformers loads."""
    assert len({peer.wait_for("finished")["heldout_loss"] for peer in finishers}) == 1
    weights = set()
    for peer in finishers[:2]:
        model = folder / f"model of {peer.workdir.name}"
        exported = run(["export", "--workdir", peer.workdir, "--output", model], folder=folder)
        assert exported.code == 0, exported
        weights.add((model / "model.safetensors").read_bytes())
        assert transformers.AutoModelForCausalLM.from_pretrained(model).num_parameters() > 0
    assert len(weights) == 1
