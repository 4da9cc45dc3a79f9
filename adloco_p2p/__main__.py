"""`adloco-peer` and `python -m adloco_p2p`."""

import sys

from adloco_p2p.cli import main

if __name__ == "__main__":
    sys.exit(main())
