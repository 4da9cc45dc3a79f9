"""For programs of others: what `import adloco_p2p` offers. Names and meanings are in docs/library.md."""
