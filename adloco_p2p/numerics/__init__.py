"""Pure functions over tensors: flat buffers, gradient statistics, the outer optimizer, merging, codecs and digests."""
