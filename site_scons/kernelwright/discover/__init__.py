"""Which kernels the definition files declare, and which variants of them a package gets."""
