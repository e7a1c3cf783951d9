"""What a step launches: its operations, their work and the kernels that do it."""
