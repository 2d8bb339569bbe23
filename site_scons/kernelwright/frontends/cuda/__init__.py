"""CUDA C++: definitions name device functions, or sources with host code of their own."""
