"""The peers behind NATs may take part in the run that the benchmark writes."""

from pathlib import Path

from adloco_p2p.config.load import load_peer, load_run
from adloco_p2p.config.local_files import check_run_of_others
from benchmarks.nodes import write_config
from benchmarks.wan.nat import TRAINS


def test_a_joiner_takes_the_run_with_the_text_of_this_machine(tmp_path: Path) -> None:
    config = write_config(tmp_path, "nat", rounds=1, inner_steps=1, width=32, layers=1, equal_shares=True)
    machine = load_peer(None, TRAINS[TRAINS.index("--peer-set") + 1 :]).value
    check_run_of_others(load_run(config, []).value, machine)
