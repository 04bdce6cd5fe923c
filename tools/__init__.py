"""Programs of the repository itself; none of them is in the wheel."""
