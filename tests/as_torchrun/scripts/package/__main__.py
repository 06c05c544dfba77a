import sys

from . import train

print("main of the package", __name__, __package__, __spec__.name, sys.argv)
print(train.WORD, __file__, sys.path[0])
