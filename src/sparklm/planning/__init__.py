"""The dial: sizes and length of a training, chosen from a corpus, a measured machine and some minutes."""
