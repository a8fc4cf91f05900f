"""Token embeddings: read from files, drawn at random, or trained by Word2Vec."""
