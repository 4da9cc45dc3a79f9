"""A benchmark prints its own lines, not those of libraries that it imports."""

import logging
import subprocess
import sys
from pathlib import Path


def test_the_benchmarks_silence_the_warnings_of_torchao_at_its_import() -> None:
    levels = "(logging.getLogger(name).level for name in ('torchao', 'torch.utils._pytree'))"
    program = f"import logging, benchmarks; print(*{levels})"
    repository = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(logging.ERROR)] * 2
