"""The tables of `benchmarks.wan.grid` from its records: utilisation beside the calculation and the published figures, and
bytes."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from adloco_p2p.config.run_config import AVERAGING_PRESETS
from benchmarks import presets
from benchmarks.method.store import RESULTS, Record, read_records
from benchmarks.utilisation import Plan, bytes_per_value, delayed, in_turn
from benchmarks.wan.grid_cell import DELAY_MS, PARAMETERS, PEERS, STEP_SECONDS, STEP_TOKENS, Cell

EFFICIENCY = 0.8
"""Goodput over a link's rate, the default of `benchmarks.utilisation`."""
PUBLISHED = {8: (0.0055, 0.0053), 32: (0.0241, 0.0210), 128: (0.1155, 0.0839)}
"""Figures of `diloco-measured` at 50 Mbit/s, float32, by H: as published, and of whole rounds, one average for every H steps,
as the median of their three records of each cell."""
PUBLISHED_MBIT = 50.0
OVERLAP_ROW = "| H {}, overlap forecast, m 0.5 |"
KINDS = ("averaging", "state", "gossip", "dht")


def calculated(cell: Cell) -> Plan:
    """Return the plan of `benchmarks.utilisation` for the cell, with its own part of the link's rate."""
    codec = str(AVERAGING_PRESETS[cell.preset]["averaging.codec"])
    return Plan(
        num_parameters=PARAMETERS,
        num_hosts=PEERS,
        num_instances=1,
        inner_steps=cell.inner_steps,
        step_seconds=STEP_SECONDS,
        bytes_per_value=bytes_per_value(codec, PEERS),
        bits_per_second=cell.mbit * 1e6,
        efficiency=EFFICIENCY,
        latency_seconds=2 * DELAY_MS / 1e3,
    )


def calculated_utilisation(cell: Cell) -> float:
    return (in_turn if cell.overlap == "none" else delayed)(calculated(cell))


def utilisation(record: Record) -> float:
    """Return the measured utilisation of all peers together."""
    seconds = sum(peer["steps"] for peer in record["peers"]) * STEP_SECONDS
    return float(seconds / sum(peer["wall_seconds"] for peer in record["peers"]))


def phases(record: Record) -> dict[str, float]:
    """Return the mean seconds of a round in each phase, over the peers."""
    names = {name: None for peer in record["peers"] for name in peer["phases"]}
    return {name: fmean(peer["phases"].get(name, 0.0) for peer in record["peers"]) for name in names}


def bytes_per_token(record: Record) -> dict[str, float]:
    """Return the bytes by kind that one peer sends for each token that it trains, at full size. `retries`: what is sent beside
    the committed averages, re-checks included. `packets`: what the links carried beyond the node's count."""
    scale = record["cell"]["scale"]
    tokens = sum(peer["steps"] for peer in record["peers"]) * STEP_TOKENS
    sent = {kind: sum(peer["sent"][kind] for peer in record["peers"]) for kind in KINDS}
    committed = sum(peer["committed"] for peer in record["peers"])
    wire = sum(peer["wire"] for peer in record["peers"])
    found = {
        "averaging": committed * scale,
        "retries": (sent["averaging"] - committed) * scale,
        "state": sent["state"] * scale,
        "gossip": sent["gossip"],
        "dht": sent["dht"],
        "packets": (wire - sum(sent.values())) * scale,
    }
    return {kind: size / tokens for kind, size in found.items()}


# --- losses, by the records of others ---


def price_of_preset(preset: str) -> str:
    """Return the loss above float32's, in nats, with the nearest number of hosts that was measured."""
    records = read_records(presets.KEPT)
    for hosts in (PEERS, 8):
        if price := presets.price_of(records, replace(presets.Cell(way=preset), hosts=hosts)):
            return f"{price} ({hosts} hosts)"
    return "no figure"


def price_of_overlap(cell: Cell) -> str:
    """Return the price by the table of docs/results/time.md."""
    if cell.overlap == "none":
        return "0"
    page = (RESULTS / "time.md").read_text()
    row = next((line for line in page.splitlines() if line.startswith(OVERLAP_ROW.format(cell.inner_steps))), None)
    return row.split("|")[4].strip() if row else "no figure"


# --- tables ---


def grouped(records: Sequence[Record]) -> dict[Cell, list[Record]]:
    cells: dict[Cell, list[Record]] = {}
    for record in records:
        cells.setdefault(Cell(**record["cell"]), []).append(record)
    order = list(AVERAGING_PRESETS)
    by = sorted(
        cells, key=lambda cell: (cell.mbit, order.index(cell.preset), -cell.scale, cell.inner_steps, cell.overlap != "none")
    )
    return {cell: cells[cell] for cell in by}


def utilisation_table(records: Sequence[Record]) -> list[str]:
    """Return the table with the published cells first."""
    lines = [
        "| link | preset | values, links | H | overlap | computing | calculated | averaging, outer step "
        "| loss of the codec | loss of the overlap | load |",
        "|" + "---|" * 11,
    ]
    for steps, (published, whole) in PUBLISHED.items():
        cell = Cell(preset="dense", overlap="none", inner_steps=steps, mbit=PUBLISHED_MBIT, scale=1)
        both = f"{whole:.2%} (published {published:.2%})"
        cells = [f"diloco-measured, {cell.mbit:g} Mbit/s", "float32", "whole", str(steps), "none", both]
        lines.append("| " + " | ".join([*cells, f"{calculated_utilisation(cell):.2%}", "", "0", "0", ""]) + " |")
    for cell, runs in grouped(records).items():
        spent = [phases(run) for run in runs]
        cells = [
            *_names(cell),
            ", ".join(f"{utilisation(run):.1%}" for run in runs),
            f"{calculated_utilisation(cell):.1%}",
            "; ".join(f"{found['averaging']:.1f}, {found['applying']:.1f} s" for found in spent),
            price_of_preset(cell.preset),
            price_of_overlap(cell),
            ", ".join(f"{run['load']:g}" for run in runs),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _names(cell: Cell) -> list[str]:
    values = "whole" if cell.scale == 1 else f"1/{cell.scale}"
    return [f"{cell.mbit:g} Mbit/s", cell.preset, values, str(cell.inner_steps), cell.overlap]


def bytes_table(records: Sequence[Record]) -> list[str]:
    kinds = ("averaging", "retries", "gossip", "dht", "state", "packets")
    lines = [
        "| link | preset | values, links | H | overlap | all | " + " | ".join(kinds) + " |",
        "|" + "---|" * (6 + len(kinds)),
    ]
    for cell, runs in grouped(records).items():
        found = [bytes_per_token(run) for run in runs]
        mean = {kind: fmean(each[kind] for each in found) for kind in kinds}
        cells = [*_names(cell), f"{sum(mean.values()):.1f}", *(f"{mean[kind]:.2f}" for kind in kinds)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def shown(record: Record) -> list[str]:
    """Return one record, for the terminal."""
    cell = Cell(**record["cell"])
    lines = [
        f"{cell.name}: {utilisation(record):.2%} computing, calculated {calculated_utilisation(cell):.2%}; {record['rounds']}"
        f" rounds, load {record['load']}, processors busy {record['busy']:.0%}, {record['late']:.1%} of packets late"
    ]
    for peer in record["peers"]:
        told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in peer["phases"].items())
        counts = ", ".join(
            f"{peer[name]} {name.replace('_', ' ')}" for name in ("missed", "void", "partial", "failed_attempts")
        )
        sent = ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in peer["sent"].items())
        lines.append(f"  {peer['wall_seconds'] / record['rounds']:.2f} s a round: {told}; {counts}")
        lines.append(f"  MB sent: {sent}; committed {peer['committed'] / 1e6:.2f}, packets {peer['wire'] / 1e6:.2f}")
    return lines
