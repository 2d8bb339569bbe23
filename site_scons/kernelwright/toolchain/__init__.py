"""Finds the tools, asks them who they are, and says so in signatures."""
