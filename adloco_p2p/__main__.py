"""`adloco-peer` and `python -m adloco_p2p`."""

import contextlib
import logging
import os
import sys
from typing import NoReturn

from adloco_p2p import cli


def main() -> NoReturn:
    """Run the verb and end the process at once: all that must last is on the disk by then, and taking torch and all the other
    modules apart takes seconds, of which a supervisor that sent SIGTERM grants few."""
    code = cli.main()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # whoever read it is gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
