"""Settings that are each fine and together are not: one row per sentence, and the nearest neighbour that is fine."""

from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.config.combinations import combinations
from adloco_p2p.config.load import load_peer, load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import OuterConfig, RunConfig
from adloco_p2p.errors import ConfigError

BARE = Path(__file__).with_name("bare.yaml")
"""A run of which the defaults are known, whatever the shipped one sets."""
SEESAW = ["batch.test=schedule", "batch.ramp=seesaw"]
ONE = ["instances.count=1"]
OWN = ["data.source=text", "data.mixture={a.txt: 1.0, b.txt: 2.0}", "instances.count=2"]
HUB = ["data.source=hub", "data.path=allenai/c4"]


def problems_of(*overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refusal:
        load_run(BARE, overrides)
    return refusal.value.problems


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.architecture={hidden_size: 8}"], "model.architecture: needs a `model_type`"),
        (["model.architecture.vocab_size=300"], "model.architecture.vocab_size: follows from the tokenizer; leave it out"),
        (["model.architecture.max_position_embeddings=9"], "max_position_embeddings: follows from data.sequence_length"),
        (
            ["model.architecture.hidden_size=0"],
            "model.architecture.hidden_size: 0, but every model needs a whole number from 1",
        ),
        (["model.architecture.num_hidden_layers=two"], "num_hidden_layers: 'two', but every model needs a whole number"),
        (
            ["model.pretrained=gpt2", "tokenizer.source=bytes"],
            "tokenizer.source: bytes, but the weights of model.pretrained gpt2 were trained on other tokens",
        ),
        (["model.revision=abc"], "model.revision: names a version of model.pretrained, which is not set"),
        (["tokenizer.revision=abc"], "tokenizer.revision: the `bytes` tokenizer has no versions"),
        (["instances.data=[a.txt]"], "instances.data: names data sets of data.mixture, which is empty"),
        (
            [*OWN, "instances.count=3", "instances.data=[a.txt, b.txt, c.txt]"],
            "instances.data: c.txt is no data set of data.mixture; accepted: a.txt, b.txt",
        ),
        ([*OWN, "instances.data=[a.txt, b.txt, a.txt]"], "instances.data: 3 data sets for 2 instances (instances.count)"),
        ([*OWN, "instances.data=[a.txt, a.txt]"], "instances.data: b.txt of data.mixture is no instance's"),
        (
            [*OWN, "instances.data=[a.txt, b.txt]", "data.heldout_path=h.txt"],
            "data.heldout_path: h.txt, but with instances.data each data set is evaluated by itself",
        ),
        ([*OWN, "instances.data=[a.txt, b.txt]", "evaluation.rows=1"], "evaluation.rows: 1 rows for 2 data sets"),
        (["data.path=x.txt"], "data.path: x.txt is not read with data.source python"),
        (["data.source=text"], "data.path: not set, but data.source is text; set it to the files"),
        (["data.source=parquet"], "data.path: not set, but data.source is parquet"),
        (["data.source=arrow"], "data.path: not set, but data.source is arrow"),
        (["data.source=json"], "data.path: not set, but data.source is json"),
        (["data.source=hub"], "data.path: not set, but data.source is hub; set it to the id of a hub dataset"),
        (["data.heldout_split=validation"], "data.heldout_split: only hub datasets have it, and data.source is python"),
        (["data.name=en"], "data.name: only hub datasets have it"),
        (["data.revision=abc"], "data.revision: only hub datasets have it"),
        (
            [*HUB, "data.streaming=true", "evaluation.seed=7"],
            "evaluation.seed: 7; data.streaming gives the first",
        ),
        ([*HUB, "data.heldout_split=train"], "data.heldout_split: train is also trained on (data.split)"),
        (
            ["outer.kind=average", "outer.learning_rate=0.7"],
            "outer.learning_rate: 0.7 would be ignored: outer.kind average takes",
        ),
        (["inner.warmup_steps=8", "inner.warmup_samples=64"], "inner.warmup_steps: 8, and inner.warmup_samples 64: choose one"),
        (["outer.kind=average", "outer.momentum=0.9"], "outer.momentum: 0.9 would be ignored: outer.kind is average"),
        (["outer.kind=sgd", "outer.momentum=0.9"], "outer.momentum: 0.9 would be ignored: outer.kind is sgd"),
        (
            ["averaging.assess_every=2", "data.streaming=true"],
            "averaging.assess_every: 2, but with data.streaming no host knows which rows",
        ),
        (
            [*ONE, "averaging.assess_every=2", "averaging.fragments=4", "batch.test=constant"],
            "averaging.assess_every: 2, but with averaging.fragments 4 a contribution is of several rounds",
        ),
        (
            ["averaging.assess_every=2", "averaging.preset=sparse", "averaging.division=named"],
            "averaging.assess_every: 2, but with averaging.division named no host knows the mean of the others",
        ),
        (
            [*ONE, "averaging.assess_every=2", "model.program=mine"],
            "averaging.assess_every: 2, but a program does the inner steps",
        ),
        (
            ["averaging.fragments=64", "instances.count=1", "batch.test=constant"],
            "averaging.fragments: 64 do not all have their turn in 40 rounds",
        ),
        (
            [*ONE, "averaging.fragments=4", "batch.test=constant", "work.rounds=null", "work.samples=100000"],
            "averaging.fragments: 4, but the run ends by work.samples",
        ),
        (
            ["averaging.fragments=4", "batch.test=constant"],
            "averaging.fragments: 4, but with instances.count 3 forks and merges would lose",
        ),
        (
            [*ONE, "averaging.fragments=4", "batch.test=constant", "outer.overlap=eager"],
            "averaging.fragments: 4, and outer.overlap eager, which is for whole vectors; set outer.overlap to streaming",
        ),
        (
            [*ONE, "batch.test=constant", "outer.overlap=streaming"],
            "outer.overlap: streaming, but averaging.fragments is 1, and only fragments are streamed; set averaging.fragments",
        ),
        (
            [*ONE, "batch.test=constant", "outer.overlap=streaming", "averaging.fragments=4", "work.inner_steps=5"],
            "outer.delay_steps: 5, but a round has 5 inner steps (work.inner_steps); fewer than that are accepted",
        ),
        (
            [*ONE, "outer.overlap=forecast", "outer.mixing=0.25"],
            "outer.mixing: 0.25 would be ignored: outer.overlap is forecast",
        ),
        (
            ["averaging.fragments=4", "instances.count=1"],
            "batch.statistic: with averaging.fragments 4 a pseudo-gradient is that",
        ),
        (["batch.initial_batch=64", "batch.max_batch=32"], "batch.initial_batch: 64 is more than batch.max_batch, 32"),
        (["batch.window_rounds=33"], "batch.window_rounds: 33, but a plan carries at most 32 rounds"),
        (["batch.statistic=micro_batch", "batch.level=outer"], "batch.level: outer, but batch.statistic micro_batch measures"),
        (
            ["batch.denominator=naive", "batch.level=outer", "batch.eta=1"],
            "the batch can never grow unless eta is below 1, and it is 1.0",
        ),
        (
            ["batch.denominator=naive", "batch.statistic=micro_batch", "batch.eta=1.3"],
            "batch.eta: with batch.denominator naive",
        ),
        (
            ["averaging.preset=sign", "batch.eta=2.5"],
            "batch.eta: with batch.floor_fraction 0.25 the batch can never grow unless eta is below 2, and it is 2.5; lower",
        ),
        (["batch.level=outer", "batch.eta=2"], "batch.eta: with batch.floor_fraction 0.25 the batch can never grow"),
        (["work.inner_steps=16", "batch.eta=8"], "the batch can never grow unless eta is below 8, and it is 8.0"),
        (["instances.count=65"], "instances.count: 65, but a plan holds at most 64"),
        (["instances.fork_round=8", "work.rounds=8"], "instances.fork_round: 8 never comes, because the run has 8 rounds"),
        (["instances.start=different", "model.pretrained=a/b"], "instances.start: different means random weights"),
        (["merge.policy=worst_group", "merge.group_size=4"], "merge.group_size: 4 instances cannot be folded into one"),
        (["merge.first_round=41"], "merge.first_round: 41 never comes, because the run has 40 rounds"),
        (["work.samples=9999"], "work.samples: 9999, but work.rounds is set too, to 40, and a run has one end; leave one"),
        (["work.rounds=null"], "work.samples, work.rounds: both null, so the run would never end; set one of them"),
        (
            ["work.rounds=null", "work.samples=127", "instances.count=1"],
            "work.samples: 127 is less than the first round takes, 128; raise it, or lower work.inner_steps",
        ),
        (["batch.ramp_samples=100"], "batch.ramp_samples: 100 would be ignored: batch.test is norm"),
        (
            ["batch.test=schedule", "batch.initial_batch=64", "batch.max_batch=64"],
            "batch.max_batch: 64 is batch.initial_batch, so batch.ramp linear would lead nowhere",
        ),
        (
            ["batch.test=schedule", "work.rounds=null", "work.samples=4000", "batch.ramp_samples=4001"],
            "batch.ramp_samples: 4001 is more than work.samples, 4000",
        ),
        ([*SEESAW, "batch.ramp_samples=100"], "batch.ramp_samples: 100, but batch.ramp seesaw follows the decay"),
        ([*SEESAW, "inner.schedule=constant"], "inner.schedule: constant, but batch.ramp seesaw follows the decay"),
        ([*SEESAW, "inner.batch_scaling=none"], "inner.batch_scaling: none, but batch.ramp seesaw follows the decay"),
        (
            ["work.rounds=null", "work.samples=384", "instances.fork_round=3"],
            "instances.fork_round: 3 never comes, because the run has at most 3 rounds (work.samples)",
        ),
    ],
)
def test_an_impossible_combination_is_explained(overrides: list[str], told: str) -> None:
    (problem,) = problems_of("work.rounds=40", "instances.count=3", "batch.eta=1.3", *overrides)
    assert told in problem


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.pretrained=a/b", "model.revision=abc", "model.architecture={}"],
        ["tokenizer.source=gpt2", "tokenizer.revision=abc"],
        ["data.source=text", "data.path=x/*.txt"],
        [*HUB, "data.heldout_split=validation", "data.name=en", "data.revision=abc"],
        ["outer.kind=average"],
        ["outer.kind=average", "outer.learning_rate=1", "outer.momentum=0"],
        ["outer.kind=sgd", "outer.learning_rate=0.5"],
        ["batch.initial_batch=64", "batch.max_batch=64"],
        ["batch.window_rounds=32"],
        SEESAW,
        ["batch.test=schedule", "batch.ramp_samples=5000"],
        ["batch.test=schedule", "batch.ramp=doubling", "inner.schedule=constant", "inner.batch_scaling=none"],
        ["batch.statistic=micro_batch"],
        ["batch.denominator=naive", "batch.eta=0.99"],
        ["averaging.preset=sign", "batch.eta=1.99"],
        ["averaging.preset=sign", "batch.eta=2.5", "batch.floor_fraction=0"],
        ["batch.eta=2.5"],
        ["batch.denominator=naive", "batch.eta=1.3", "batch.level=inner"],
        ["batch.denominator=naive", "batch.eta=1.3", "batch.test=inner_product"],
        ["instances.fork_round=7", "work.rounds=8"],
        ["work.rounds=null", "work.samples=128", "instances.count=1"],
        ["work.rounds=null", "work.samples=385", "instances.fork_round=3"],
        ["instances.fork_round=8", "work.rounds=8", "instances.count=1"],
        ["instances.fork_round=8", "work.rounds=8", "instances.start=same"],
        ["instances.start=different"],
        ["merge.policy=worst_group", "merge.group_size=3"],
        ["merge.policy=worst_group", "merge.group_size=3", "instances.count=1"],
        ["merge.first_round=40"],
        ["merge.first_round=41", "merge.policy=none"],
    ],
)
def test_the_possible_neighbours_are_accepted(overrides: list[str]) -> None:
    run = load_run(BARE, ["work.rounds=40", "instances.count=3", *overrides]).value
    assert combinations(run) == []


def test_all_impossible_combinations_are_listed_at_once() -> None:
    assert len(problems_of("data.source=text", "batch.max_batch=1", "outer.kind=sgd", "outer.momentum=0.5")) == 3


def test_a_configuration_made_in_code_is_checked_by_the_same_function() -> None:
    assert combinations(RunConfig()) == []
    assert len(combinations(RunConfig(outer=OuterConfig(kind="average")))) == 2


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["device=gpu"], "device: gpu is unknown; accepted: auto, cpu, mps, cuda, cuda:0"),
        (["device=cuda:x"], "device: cuda:x is unknown"),
        (["device=[cuda:0, gpu]"], "device: gpu is unknown"),
        (["device=[auto, cpu]"], "device: auto is all devices already; set it alone"),
        (["device=[cuda:1, cuda:1]"], "device: cuda:1 is named twice"),
        (["device=[]"], "device: an empty list; name a device"),
        (["host_maddrs=['127.0.0.1:80']"], "host_maddrs: '127.0.0.1:80' is no multiaddress; accepted: such as /ip4/"),
        (["announce_maddrs=[/ip4]"], "announce_maddrs: '/ip4' is no multiaddress"),
        (
            ["client_mode=true", "announce_maddrs=[/ip4/1.2.3.4/tcp/9]"],
            "announce_maddrs: with client_mode others cannot connect",
        ),
        (["host_maddrs=[]"], "host_maddrs: empty, so there is nowhere to listen"),
        (["use_relay=false", "use_auto_relay=true"], "use_auto_relay: needs use_relay, which is off"),
    ],
)
def test_an_impossible_machine_is_explained(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_peer(None, overrides)
    (problem,) = refusal.value.problems
    assert told in problem


@pytest.mark.parametrize(
    "overrides",
    [
        ["device=cuda:1"],
        ["client_mode=true", "host_maddrs=[]"],
        ["use_auto_relay=true"],
        ["announce_maddrs=[/dns4/peer.example/tcp/31337/p2p/Qm]"],
    ],
)
def test_possible_machines_are_accepted(overrides: list[str]) -> None:
    assert isinstance(load_peer(None, overrides).value, PeerConfig)


def test_all_hosts_are_in_all_averages_where_those_are_hidden_or_of_fragments() -> None:
    run = load_run(None, ["instances.count=1"]).value
    assert run.rules.work == run.work and run.work.link_tolerance == 0.1
    hidden = replace(run, outer=replace(run.outer, overlap="forecast"))
    fragments = replace(run, averaging=replace(run.averaging, fragments=2))
    assert hidden.rules.work.link_tolerance is fragments.rules.work.link_tolerance is None
