"""A second scheduler for the easy case: whole prompts, nobody waiting; when it may serve is in `fast_replica`."""
