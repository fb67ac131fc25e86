"""What runs on a measured node: the server, the load, the counters, the host probe."""
