"""The catalogue of data-path events and what is made of them."""
