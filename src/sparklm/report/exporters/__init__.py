"""Programs that show how training goes elsewhere."""
