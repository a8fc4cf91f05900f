"""Networks: the parts they share, a file for each architecture, and model.zip."""
