"""A model's tool calls, governed: their arguments, what decides on them, and what the model gets back."""
