"""The tables of the Copy-as-Decode paper, one module each: measured again, beside the paper's own figures."""
