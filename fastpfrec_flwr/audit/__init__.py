"""Attacks on privacy, as measurements on the real uploads of a run: what each observer can tell, against chance.

Nothing below knows of this room: it looks at what leaves the clients from outside. Attacks on the *model* are another room.
"""
