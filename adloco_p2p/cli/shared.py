"""Arguments that several verbs share, and the accepted forms of their texts."""

import argparse
from pathlib import Path

from adloco_p2p.core.model.scalars import LARGEST_COUNT


def run_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", nargs="?", type=path, metavar="CONFIG", help="YAML or TOML file, or a shipped name (default: default)"
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change a setting, such as work.rounds=8"
    )


def run_of_others(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--initial-peers",
        nargs="+",
        action="extend",
        default=[],
        metavar="ADDR",
        help="addresses of peers, or join links; not needed where DIR holds the run already",
    )
    parser.add_argument("--run", metavar="ID", help="which run, where several are known: its digest or the beginning of it")


def workdir(parser: argparse.ArgumentParser, content: str = "everything of this peer") -> None:
    parser.add_argument("--workdir", type=path, required=True, metavar="DIR", help=f"{content} lies here")


def machine(parser: argparse.ArgumentParser) -> None:
    settings_of_machine(parser)
    parser.add_argument(
        "--device", nargs="+", metavar="NAME", help="compute on these, such as cuda:0 cuda:1 (default: auto, all GPUs)"
    )
    parser.add_argument("--plain", action="store_true", help="one line per round instead of the live view")


def of_swarm(parser: argparse.ArgumentParser) -> None:
    """Add the settings that `swarm` gives to its peers."""
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gather", action="store_true", help=argparse.SUPPRESS)


def network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host-maddrs", nargs="+", metavar="MADDR", help="where to listen, such as /ip4/0.0.0.0/tcp/31337")
    parser.add_argument("--announce-maddrs", nargs="+", metavar="MADDR", help="where others reach this peer, if elsewhere")


def settings_of_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer-config", type=path, metavar="FILE", help="settings of this machine (see peers/)")
    parser.add_argument(
        "--peer-set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change a setting of this machine"
    )


def instance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instance", type=natural, metavar="ID", help="which instance (default: the one, or the first)")


def json_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def rate(text: str) -> int:
    """Parse a rate, such as `2M` -> 2,000,000."""
    from adloco_p2p.config.peer_config import LEAST_CAP_BYTES_PER_SECOND, cap_problem

    number, scale = (text[:-1], {"k": 1e3, "M": 1e6, "G": 1e9}[text[-1]]) if text[-1:] in ("k", "M", "G") else (text, 1.0)
    try:
        rate = float(number) * scale
    except ValueError:
        rate = -1.0
    if cap_problem(rate) or rate >= 1e15:
        least = f"{LEAST_CAP_BYTES_PER_SECOND // 1000}k"
        raise argparse.ArgumentTypeError(
            f"{text}: accepted are bytes per second from {least} on, such as 500k or 2M (16 Mbit/s), or 0 for no cap"
        )
    return int(rate)


def path(text: str) -> Path:
    """Parse a path. The empty text of a variable that is not set would be the present directory."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name: a path is accepted, such as . for the present directory")
    return Path(text)


def whole(text: str, *, least: int | None = None) -> int:
    """Parse a whole number, in the words of this program where it is none: argparse would name a function. A larger one than
    LARGEST_COUNT is not accepted: in a statement that this peer signs nobody could read it, this peer included."""
    accepted = "a whole number" if least is None else f"a whole number from {least} on"
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: {accepted} is accepted") from None
    if least is not None and value < least:
        raise argparse.ArgumentTypeError(f"{text}: {accepted} is accepted")
    if abs(value) > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"{text}: a number up to {LARGEST_COUNT} is accepted")
    return value


def natural(text: str) -> int:
    return whole(text, least=0)


def positive(text: str) -> int:
    return whole(text, least=1)


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: a number is accepted") from None


def factor(text: str) -> float:
    from adloco_p2p.core.model.course import MAX_FACTOR

    value = number(text)
    if not 0.0 < value <= MAX_FACTOR:
        raise argparse.ArgumentTypeError(f"{text}: a number above 0 and at most {MAX_FACTOR:g} is accepted")
    return value


def shards(text: str) -> int:
    from adloco_p2p.config.peer_config import MOST_SHARDS

    value = positive(text)
    if value > MOST_SHARDS:
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 1 to {MOST_SHARDS} is accepted")
    return value


def reason(text: str) -> str:
    from adloco_p2p.core.model.ledger_entry import MAX_REASON

    if len(text) > MAX_REASON:
        raise argparse.ArgumentTypeError(f"at most {MAX_REASON} characters")
    if not (text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!a}: all peers show it, and only printable ASCII on every terminal is accepted")
    return text
