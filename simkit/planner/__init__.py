"""Studies: many runs that answer one question. Imports the parts of a run below it, never the report."""
