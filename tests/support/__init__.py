"""What tests have in common."""
