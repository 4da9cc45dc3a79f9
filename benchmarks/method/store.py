"""Records of runs as JSON lines, one per run; plain while they are made, gzip where they are kept."""

import argparse
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.method.rows import Row

Record = dict[str, Any]
RESULTS = Path(__file__).parents[2] / "docs" / "results"
"""The pages, and the kept records beside them."""


def key_of(row: Row, seed: int, *, samples: int, base: str) -> str:
    """Return the key of a run: a digest of all that its result depends on, except the code. The row's name does not count,
    nor what the row leaves as usual, so that a new kind of difference does not make old runs unknown. `samples`: those of a row
    of length 1."""
    usual = asdict(Row(name=row.name, settings=()))
    differences = {field: value for field, value in asdict(row).items() if value != usual[field]}
    plain = {**differences, "seed": seed, "samples": samples, "base": base}
    return digest_of(plain)


def digest_of(plain: object) -> str:
    """Return a short name of a value that JSON can write."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def read_records(path: Path) -> list[Record]:
    """Return all records of a file; none where there is no such file. Skips an incomplete last line."""
    if not path.exists():
        return []
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    complete = text.split("\n")[:-1]  # the rest after the last newline is empty, or incomplete
    return [json.loads(line) for line in complete]


def append_record(path: Path, record: Record) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")


def pack(records: Iterable[Record], path: Path) -> None:
    """Keep records in a compressed file; the same records give the same bytes with the same Python and zlib."""
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def records_by_key(kept: Path, others: Iterable[Path]) -> dict[str, Record]:
    """Return the kept records and those of further files; the last one of each key."""
    return {record["key"]: record for path in (kept, *others) for record in read_records(path)}


class Store:
    """Records by key. New ones go to the first of the files beside the kept ones."""

    def __init__(self, kept: Path, *files: Path) -> None:
        self._files = files
        self.records = records_by_key(kept, files)

    def keep(self, key: str, record: Record) -> None:
        self.records[key] = {"key": key, **record}
        append_record(self._files[0], self.records[key])


def train_missing(kept: Path, output: Path, jobs: Iterable[tuple[str, Callable[[], Record]]]) -> None:
    """Train what neither file has, by key and in this order. Each record is written as soon as it is there."""
    done = set(records_by_key(kept, [output]))
    for key, train in jobs:
        if key not in done:
            record = {"key": key, **train()}
            append_record(output, record)
            done.add(key)
            print({name: value for name, value in record.items() if not isinstance(value, list)}, flush=True)


Act = Callable[[argparse.Namespace], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The command line of a benchmark that keeps records. Its two verbs take further arguments."""

    parser: argparse.ArgumentParser
    run: argparse.ArgumentParser
    report: argparse.ArgumentParser

    def act(self) -> None:
        arguments = self.parser.parse_args()
        arguments.act(arguments)


def command_line(name: str, doc: str | None, *, seeds: Sequence[int] | None, train: Act, tabulate: Act) -> CommandLine:
    """Return a command line whose `run` trains what the records lack, and whose `report` makes the table. New records go to
    NAME.jsonl, beside the kept ones. `seeds`: the usual ones; None: no run has one."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs, own = parser.add_subparsers(required=True), Path(f"{name}.jsonl")
    run = verbs.add_parser("run", help="train what the records lack")
    if seeds is not None:
        run.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    run.add_argument("--output", type=Path, default=own)
    run.set_defaults(act=train)
    report = verbs.add_parser("report", help="the table")
    report.add_argument("--runs", type=Path, nargs="*", default=[own], help="records beside the kept ones")
    report.set_defaults(act=tabulate)
    return CommandLine(parser=parser, run=run, report=report)
