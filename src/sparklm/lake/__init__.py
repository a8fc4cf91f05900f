"""A model at work on whole corpora: a row of scores, or of generated text, for each document."""
