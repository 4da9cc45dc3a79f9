"""Finding a run and its peers: signed DHT records, manifests, join links, reachability."""
