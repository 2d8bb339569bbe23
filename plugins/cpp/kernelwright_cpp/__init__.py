"""A backend for Kernelwright: kernel packages get a header with a C++ function for each kernel, and a CMake config."""
