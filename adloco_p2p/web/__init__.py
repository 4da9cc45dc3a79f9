"""What a browser or a monitor is served over HTTP: the page of a run and the metrics of a node."""
