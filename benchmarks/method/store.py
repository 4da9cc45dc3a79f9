"""Records of runs as JSON lines, one per run; plain while they are made, gzip where they are kept."""

import gzip
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.method.rows import Row

Record = dict[str, Any]


def key_of(row: Row, seed: int, *, samples: int, base: str) -> str:
    """Names a run by everything that its result depends on, beside the code. The row's name is not among it, nor what the row
    leaves as usual, so that a new kind of difference does not make old runs unknown. `samples`: of a row of length 1."""
    usual = asdict(Row(name=row.name, settings=()))
    differences = {field: value for field, value in asdict(row).items() if value != usual[field]}
    plain = {**differences, "seed": seed, "samples": samples, "base": base}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def read_records(path: Path) -> list[Record]:
    """All records of a file; none where there is no such file. A last line that was torn off is passed over."""
    if not path.exists():
        return []
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    complete = text.split("\n")[:-1]  # what follows the last newline is empty, or was torn off
    return [json.loads(line) for line in complete]


def append_record(path: Path, record: Record) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")


def pack(records: Iterable[Record], path: Path) -> None:
    """Keep records in a compressed file; the same records always give the same bytes."""
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
