"""Reports of finished runs: reads run directories, knows no engine, draws nothing until called.

Submodules import matplotlib and jinja2, so import them only where a report is written.
"""
