"""Pure functions over tensors: flat buffers, gradient statistics, outer optimizer, merging, digests."""
