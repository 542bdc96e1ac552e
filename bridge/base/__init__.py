"""Small parts that every other package of `bridge` uses."""
