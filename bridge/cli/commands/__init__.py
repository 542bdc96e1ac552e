"""One module for each command of `bridge`: its options and what it prints.

The feature's package implements the command; `bridge.cli.command_table` lists the commands.
"""
