"""Exits with code 7 after one epoch."""

import sys

import zeusrun

zeusrun.current().report(epoch=1, accuracy=0.1)
sys.exit(7)
