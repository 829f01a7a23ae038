"""The tables of the Copy-as-Decode paper, one module each: measured again with the product's own parts, beside theirs."""
