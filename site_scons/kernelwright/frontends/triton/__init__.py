"""Triton: definitions return functions of Triton, with their arguments and launches."""
