"""The declaration of options, the parsing of their values, and the options of `join`, `install` and
several commands.

An option that belongs to one command only is declared in that command's module.
"""
