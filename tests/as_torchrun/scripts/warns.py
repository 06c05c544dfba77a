"""Warnings, as they show with the environment that the case gives."""

import warnings

import neighbour

warnings.warn("of the script")
warnings.warn("deprecated", DeprecationWarning)
neighbour.warn()


def leave_open():
    open("left.txt", "w").write("left")


leave_open()
left = open("global.txt", "w")
