"""The vocabulary of the core: values, messages, ledger entries, events and effects. Imports nothing else of the package."""
