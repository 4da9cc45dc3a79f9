"""Settings of one machine that are valid one by one, but cannot work together or would silently do nothing."""

import re
from collections.abc import Iterator

from adloco_p2p.config.peer_config import PeerConfig, cap_problem
from adloco_p2p.config.quiet_hours import parse_range


def peer_combinations(peer: PeerConfig) -> list[str]:
    """Return a sentence with a remedy for every impossible combination; empty where there is none."""
    return [*_devices(peer), *_addresses(peer), *_quiet_hours(peer), *_caps(peer)]


def _addresses(peer: PeerConfig) -> Iterator[str]:
    for name, addresses in (("host_maddrs", peer.host_maddrs), ("announce_maddrs", peer.announce_maddrs)):
        yield from (
            f"{name}: {address!r} is no multiaddress; accepted: such as /ip4/0.0.0.0/tcp/31337"
            for address in addresses
            if not re.fullmatch(r"(/[^/\s]+){2,}", address)
        )
    if peer.client_mode and peer.announce_maddrs:
        yield "announce_maddrs: with client_mode others cannot connect there; remove one of the two"
    if not peer.client_mode and not peer.host_maddrs:
        yield "host_maddrs: empty, so there is nowhere to listen; give an address, or set client_mode to true"
    if peer.use_auto_relay and not peer.use_relay:
        yield "use_auto_relay: needs use_relay, which is off"


def _devices(peer: PeerConfig) -> Iterator[str]:
    names = peer.devices
    yield from (
        f"device: {name} is unknown; accepted: auto, cpu, mps, cuda, cuda:0, cuda:1 and so on, or a list of them"
        for name in names
        if not re.fullmatch(r"auto|mps|(cpu|cuda)(:[0-9]+)?", name)
    )
    if not names:
        yield "device: an empty list; name a device, or set auto"
    if len(names) > 1 and "auto" in names:
        yield "device: auto is all devices already; set it alone, or name the devices"
    if peer.shards > 1:
        yield from _shards(peer)
    yield from (f"device: {name} is named twice; name it once" for name in dict.fromkeys(names) if names.count(name) > 1)


def _shards(peer: PeerConfig) -> Iterator[str]:
    """Find impossible combinations where a model is divided over devices."""
    shards, names = f"shards: {peer.shards}", peer.devices
    if peer.max_instances > 1:
        yield f"{shards}, but max_instances is {peer.max_instances}; a divided model is one instance: set it to 1"
    if peer.compile:
        yield f"{shards}, but compile is on; a divided model is not compiled: set it to false, or shards to 1"
    if "mps" in names:
        yield f"{shards}, but device names mps, of which a machine has one; set shards to 1"
    is_one_kind = all(name.startswith("cuda") for name in names) and len(names) == peer.shards
    if names not in (("auto",), ("cpu",)) and "mps" not in names and not is_one_kind:
        yield (
            f"{shards}, but device is {', '.join(names)}; accepted: auto, cpu, or {peer.shards} GPUs such as"
            f" [{', '.join(f'cuda:{index}' for index in range(peer.shards))}]"
        )


def _quiet_hours(peer: PeerConfig) -> Iterator[str]:
    for text in peer.quiet_hours:
        try:
            parse_range(text)
        except ValueError as error:
            yield f"quiet_hours: {error}"
    quiet = {"upload": peer.quiet_upload_bytes_per_second, "download": peer.quiet_download_bytes_per_second}
    for name, cap in quiet.items():
        if cap and not peer.quiet_hours:
            yield f"quiet_{name}_bytes_per_second: nothing without quiet_hours; set them, such as 22:00-07:00"


def _caps(peer: PeerConfig) -> list[str]:
    caps = {
        "upload_bytes_per_second": peer.upload_bytes_per_second,
        "download_bytes_per_second": peer.download_bytes_per_second,
        "quiet_upload_bytes_per_second": peer.quiet_upload_bytes_per_second,
        "quiet_download_bytes_per_second": peer.quiet_download_bytes_per_second,
    }
    return [f"{name}: {problem}" for name, cap in caps.items() if (problem := cap_problem(cap))]
