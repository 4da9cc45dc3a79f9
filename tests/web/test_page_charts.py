"""The axes of the page's charts with values that a liar may report, run by Node.js: no axis may have endless ticks."""

import json
import shutil
import subprocess

import pytest

from tests.web.test_web_server import SOURCES

NODE = shutil.which("node")
RUNNER = """
const node = () => new Proxy({}, { get: () => () => node(), set: () => true });
const document = { createElementNS: node, createElement: node, getElementById: node };
%s
const { ys, isLogarithmic } = %s;
const texts = { xText: String, yText: String, label: "loss" };
const chart = frame({ clientWidth: 800 }, { height: 300, left: 44, xs: [1, 2], ys, isLogarithmic, ...texts });
console.log(JSON.stringify(ys.map(chart.y).map(Math.round)));
"""


def heights(ys: list[float], *, is_logarithmic: bool) -> list[int | None]:
    """Return the pixels from the top of each value in a chart of 300 pixels."""
    source = SOURCES["page.js"].rstrip().removesuffix("start();")
    assert NODE is not None
    program = RUNNER % (source, json.dumps({"ys": ys, "isLogarithmic": is_logarithmic}))
    done = subprocess.run([NODE, "-e", program], capture_output=True, text=True, timeout=60, check=True)
    found: list[int | None] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(NODE is None, reason="no Node.js here")
@pytest.mark.parametrize("is_logarithmic", [False, True])
@pytest.mark.parametrize("ys", [[3.1, 3.2], [1e30, 1e30], [4e15], [3.1, 3.2, 1e38], [3.1, 3.2, 0.0], [0.0, 0.0], [3.1, 1e-300]])
def test_every_axis_ends(ys: list[float], is_logarithmic: bool) -> None:
    found = heights(ys, is_logarithmic=is_logarithmic)
    assert len(found) == len(ys)
    if any(value > 0 for value in ys):
        assert all(height is not None and 0 <= height <= 300 for height in found), found
