"""From raw text to windows of token ids."""
