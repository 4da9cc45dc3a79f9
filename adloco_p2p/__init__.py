"""adloco-peer: a peer-to-peer node for leaderless, low-communication training of language models (AdLoCo, arXiv 2508.18182)."""
