"""Pages over HTTP, for browsers and monitors: the page of a run and the metrics of a node."""
