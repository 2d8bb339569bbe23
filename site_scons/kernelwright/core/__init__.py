"""Modules that every part uses: files, records, errors, archs, dtypes, amounts of memory, and the table of stages."""
