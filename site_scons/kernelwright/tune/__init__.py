"""``kernelwright tune``: measures which variant of a kernel suits a device, and writes that down in a table."""
