"""The ConfigMaps and Secrets of home to which pods on the virtual node refer: which these are, and
the watch of each by its name.
"""
