"""Is everything there that a node needs? Looks at this machine and, where peers are named, at the way to them."""

import argparse
import asyncio
import json
from collections.abc import Sequence

from adloco_p2p.commands.saying import say
from adloco_p2p.commands.train import peer_config_of
from adloco_p2p.config.peer import PeerConfig
from adloco_p2p.core.finding import Finding, exit_code


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; the exit code is that of the first failure. Warnings do not fail: it is a health check, too."""
    config = peer_config_of(arguments)
    from adloco_p2p.runtime.machine_checks import check_machine
    from adloco_p2p.views.doctor import document, show

    findings = list(check_machine(config, arguments.workdir))
    findings += asyncio.run(_network(config, arguments.initial_peers))
    code = exit_code(findings)
    if arguments.json:
        say(json.dumps(document(findings, exit_code=code)))
    else:
        show(findings)
    return code


async def _network(config: PeerConfig, initial_peers: Sequence[str]) -> list[Finding]:
    from adloco_p2p.runtime.network_checks import check_network

    if not initial_peers:
        return [Finding(check="network", verdict="skipped", found="not looked at; name --initial-peers ADDR")]
    return [finding async for finding in check_network(config, initial_peers)]
