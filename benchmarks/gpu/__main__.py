"""Measures this node on a GPU: speed beside a loop of one's own, gaps, memory, precision, several instances, adapters.

python -m benchmarks.gpu --out DIR                     all parts, one after another, a process each; fifteen minutes on an H200
python -m benchmarks.gpu --out DIR --only speed gaps

Each part prints a table, which also goes to DIR/NAME.txt. A part that fails, or takes too long, leaves the others alone.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

SECONDS = {
    "speed": 185,
    "gaps": 110,
    "memory": 120,
    "probe": 90,
    "precision": 120,
    "instances": 120,
    "adapters": 120,
    "documents": 40,
    "determinism": 90,
    "peers": 330,
}
"""The most seconds that each part, a module of this package, may take."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=SECONDS, default=list(SECONDS), metavar="NAME")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        run_part(name, arguments.out / f"{name}.txt")


def run_part(name: str, path: Path) -> None:
    started = time.monotonic()
    with path.open("w") as output:
        command = [sys.executable, "-m", f"benchmarks.gpu.{name}"]
        try:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS[name], check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    end = "" if code == 0 else f", exit code {code}"
    print(f"== {name}: {time.monotonic() - started:.0f} s{end}\n{path.read_text(errors='replace')[-6000:]}", flush=True)


if __name__ == "__main__":
    main()
