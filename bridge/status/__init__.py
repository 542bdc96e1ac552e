"""What a virtual node and its bridge are doing: as data, as a tree for people, and as a page.

`view` is what home's objects say, `own` what a running bridge says of itself (`recent` holds its
last errors), and `tree` turns both into the lines that the command and the page (`page`) show.
docs/reference/status.md names every field.
"""
