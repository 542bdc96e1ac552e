"""Options: how one is declared, how values are parsed, and the options of `join` and of all
commands.

An option that belongs to one command only is declared in that command's module.
"""
