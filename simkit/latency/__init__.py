"""Latency models: shapes of steps in, nanoseconds out."""
