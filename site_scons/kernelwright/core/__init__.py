"""What every part uses: files, checked records, errors, and the one definition of an arch, a dtype and a size."""
