"""Documents that can be recognised in any row, files of every kind that hold them, and runs that read them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from adloco_p2p.config.run_config import DataConfig, RunConfig
from adloco_p2p.data.tokenizer import ByteTokenizer

NUM_DOCUMENTS = 120


def document(number: int) -> str:
    """Text that says which document it is in every few bytes, so that any row of 32 bytes betrays its documents."""
    return " ".join([f"[{number:04d}]"] * (3 + number % 5))


DOCUMENTS = [document(number) for number in range(NUM_DOCUMENTS)]


def numbers(rows: list[list[int]]) -> set[int]:
    """Which documents the rows show."""
    return {int(number) for number in re.findall(r"\[(\d{4})\]", " ".join(map(ByteTokenizer().decode, rows)))}


def write_text(path: Path, texts: list[str]) -> None:
    path.write_text("\n\n".join(texts), encoding="utf-8")


def write_json(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text, "number": 7}) + "\n" for text in texts), encoding="utf-8")


def write_parquet(path: Path, texts: list[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=7)


def write_arrow(path: Path, texts: list[str]) -> None:
    import pyarrow

    table = pyarrow.table({"text": texts})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path, list[str]], None]] = {
    "text": write_text,
    "json": write_json,
    "parquet": write_parquet,
    "arrow": write_arrow,
}


def run_over(**data: Any) -> RunConfig:
    """The default run over other data, in rows of 32 tokens."""
    run = RunConfig()
    settings: dict[str, Any] = {"sequence_length": 32, "heldout_fraction": 0.2, **data}
    return replace(run, data=DataConfig(**settings), batch=replace(run.batch, initial_batch=2))
