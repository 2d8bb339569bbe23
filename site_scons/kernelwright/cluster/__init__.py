"""Builds on a cluster: runs of compilers happen on other machines, everything else stays here."""
