"""The command line: a module a command, and the only place that exits."""
