"""The modules that are copied into kernel packages. They import each other and nothing else of Kernelwright."""
