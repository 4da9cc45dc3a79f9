"""Checks whether a node has everything that it needs on this machine and, where peers are named, on the way to them."""

import argparse
import asyncio
from collections.abc import Sequence

from adloco_p2p.commands.console import make_way, say_json
from adloco_p2p.commands.train import peer_config_of
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.views.check_report import CheckResult, exit_code


def doctor(arguments: argparse.Namespace) -> int:
    """Print the results; the exit code is that of the first failure. Warnings do not fail, because this is also a health
    check."""
    config = peer_config_of(arguments)
    from adloco_p2p.runtime.doctor.machine_checks import check_machine
    from adloco_p2p.views.check_report import document, show

    results = list(check_machine(config, arguments.workdir))
    results += asyncio.run(_network(config, arguments.initial_peers))
    code = exit_code(results)
    if arguments.json:
        say_json(document(results, exit_code=code))
    else:
        make_way()
        show(results)
    return code


async def _network(config: PeerConfig, initial_peers: Sequence[str]) -> list[CheckResult]:
    from adloco_p2p.runtime.doctor.network_checks import check_network

    if not initial_peers:
        return [CheckResult(check="network", outcome="skipped", found="not checked; needs --initial-peers ADDR")]
    return [result async for result in check_network(config, initial_peers)]
