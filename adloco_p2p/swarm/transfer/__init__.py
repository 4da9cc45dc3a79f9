"""States by their root hash, from several donors."""
