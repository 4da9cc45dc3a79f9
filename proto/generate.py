"""Generates adloco_p2p/v1 from the .proto files beside this script: `python proto/generate.py`.

Generated code runs on the protobuf version of its generator and on later ones. So the code in the repository comes from the
oldest version that `pyproject.toml` allows: `pip install grpcio-tools==1.70.0` before running this.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent


def main() -> int:
    sources = sorted(PROTO.rglob("*.proto"))
    with_service = [path for path in sources if "\nservice " in path.read_text("ascii")]
    return _run("python", sources) or _run("grpc_python", with_service)


def _run(plugin: str, sources: Sequence[Path]) -> int:
    return int(protoc.main(["protoc", f"-I{PROTO}", f"--{plugin}_out={PROTO.parent}", *map(str, sources)]))


if __name__ == "__main__":
    sys.exit(main())
