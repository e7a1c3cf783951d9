"""Triton microkernels of the operations of a serving step, one kernel and its launcher a file."""
