"""One module for each command of `bridge`: its options and its output.

The feature's package implements the command; `bridge.cli.command_table` lists the commands.
"""
