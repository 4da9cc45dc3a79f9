"""How a run and its peers are found: signed DHT records, manifests, join links, reachability."""
