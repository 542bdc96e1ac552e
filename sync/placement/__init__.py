"""Placement of pods among remotes: each bridge publishes its remote's free room at home
(`room_publisher`).
"""
