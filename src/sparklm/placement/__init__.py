"""Where work runs. A placement moves work to some processor and never changes what it computes."""
