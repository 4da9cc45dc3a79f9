"""The interface for other programs, which `import adloco_p2p` offers. Names and meanings are in docs/library.md."""
