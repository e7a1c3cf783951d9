"""One run: its replications, its length, its identity and its directory."""
