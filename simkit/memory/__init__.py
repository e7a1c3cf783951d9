"""How many KV blocks fit on a GPU, and why: the memory budget of an engine as it starts."""
