"""Decoding: the program grammar, its resolver and state machine, and the decoders that run them."""
