"""How good a model is: each evaluation turns a model and data into figures; none of them trains the model."""
