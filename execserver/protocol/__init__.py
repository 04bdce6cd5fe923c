"""The wire: parameter models, result shapes, events and the method table. No I/O."""
