"""Clients and trusted nodes that lie, wrapped around the honest ones from outside, and what became of it.

Simulations alone: a real device never runs any of this.
"""
