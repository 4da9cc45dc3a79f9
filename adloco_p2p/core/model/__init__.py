"""The vocabulary of the core: values, messages, ledger entries, events and effects. Imports nothing else of the package.

All values are frozen, comparable and printable; scalars are Python floats (fp64).

Conventions: batches and samples count sequences; an instance's batch is GLOBAL (over all its hosts); a host's batch is what
that host does per inner step. Digests are lower-case hex SHA-256.
"""
