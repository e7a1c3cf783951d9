"""A log becomes the workload of a scenario: arrivals, lengths, reuse and drift fitted."""
