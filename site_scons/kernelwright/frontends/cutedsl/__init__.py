"""NVIDIA's CuTe DSL: definitions return host functions, which its compiler makes host and device code of."""
