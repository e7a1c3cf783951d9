"""Kernels against their float64 reference, and their compilation ahead of time: a wrong kernel is never timed."""
