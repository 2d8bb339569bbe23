"""What Kernelwright costs, measured beside its peers on the same machine; see README.md."""
