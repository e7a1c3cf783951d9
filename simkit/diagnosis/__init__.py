"""What is wrong with a run, and which setting to change: rules from the numbers of a finished run to findings.

Pure: a manifest, a summary and two tables in, findings out. Knows no engine, planner or report.
"""
