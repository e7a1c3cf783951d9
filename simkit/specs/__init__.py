"""What a model and a GPU are: the registries, and a Hugging Face config read as a model."""
