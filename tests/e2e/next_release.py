"""The command as the next release has it, which can follow one protocol more: python next_release.py ADLOCO_PEER_ARGUMENT..."""

import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path

NAME = "adloco_p2p.core.model.protocol"


def raise_the_newest() -> None:
    """Before anything else of the package is imported."""
    spec = find_spec(NAME)
    assert spec is not None and spec.origin is not None and NAME not in sys.modules
    lines = Path(spec.origin).read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("NEWEST = "))
    lines[place] += " + 1"
    module = module_from_spec(spec)
    exec(compile("\n".join(lines), spec.origin, "exec"), module.__dict__)
    sys.modules[NAME] = module


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # this checkout, whether it is installed or not
    raise_the_newest()
    from adloco_p2p.cli import main

    raise SystemExit(main(sys.argv[1:]))
