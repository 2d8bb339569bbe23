"""The content of definition files and of ``pyproject.toml``: kernels, their options, and settings."""
