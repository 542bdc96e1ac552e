"""One module for each command of `bridge`: its options and what it prints.

What a command does belongs in the feature's package; `bridge.cli.command_table` lists the commands.
"""
