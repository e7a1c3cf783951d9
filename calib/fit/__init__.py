"""From a kernel table to a profile: checks, one fit an operation, and how wrong it is where it was not fitted."""
