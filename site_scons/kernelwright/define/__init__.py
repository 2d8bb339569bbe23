"""What a definition file and ``pyproject.toml`` say: kernels, programs, settings."""
