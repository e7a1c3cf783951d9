"""Studies: many runs that answer one question. Imports the API below it, never the report."""
