"""Measured claims, one program per claim: `python -m benchmarks.NAME --help`."""

from adloco_p2p.commands.hub import settle

settle(is_offline=False)  # before a benchmark imports transformers, whose libraries warn of kernels for other machines
