"""How a job stands, and where that is shown."""
