"""Checks the nesting of JSON from others before a library reads it: pyarrow's parser crashes where it is too deep."""

from pathlib import Path

import numpy as np

MAX_DEPTH = 64
_BLOCK_BYTES = 1 << 20
_NEWLINE, _QUOTE, _OPENING, _CLOSING = b"\n"[0], b'"'[0], b"[{", b"]}"


def json_problem(path: Path) -> str:
    """Return why the file is not safe to parse, or "" where it is nested at most `MAX_DEPTH` deep, from whichever line a reader
    begins. The file need not be JSON otherwise."""
    depth, in_string, carried = 0, 0, b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            text = carried + block
            whole = text.rstrip(b"\\")  # a backslash belongs to what follows it
            carried = text[len(whole) :]
            if len(carried) > _BLOCK_BYTES:
                return "holds nothing but backslashes"
            values = np.frombuffer(whole.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), dtype=np.uint8)
            if not values.size:
                continue
            strings = (in_string + np.cumsum(values == _QUOTE)) % 2
            if (strings.astype(bool) & (values == _NEWLINE)).any():  # a reader may begin at any line
                return "has a line that ends within a string"
            steps = np.isin(values, list(_OPENING)).astype(np.int64) - np.isin(values, list(_CLOSING))
            depths = depth + np.cumsum(steps * (1 - strings))
            if depths.max() > MAX_DEPTH or depths.min() < 0:
                return f"is nested more than {MAX_DEPTH} deep, or closes what it never opened"
            depth, in_string = int(depths[-1]), int(strings[-1])
    return ""
