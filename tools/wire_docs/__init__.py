"""What is written from the code: the schemas of the wire, and reference pages of the manual."""
