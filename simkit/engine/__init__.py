"""The engine: the only place that imports simpy. Moves requests through replicas in simulated time."""
